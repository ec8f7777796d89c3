"""`penstock bench ordered`: ordered execution on many cores."""
