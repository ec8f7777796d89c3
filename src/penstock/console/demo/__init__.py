"""`penstock demo`: a keyed aggregation on generated rows, watched live and checked at the end."""
