"""`penstock demo`: a keyed aggregation of generated rows, shown while it runs and checked at the end."""
