"""`penstock bench migration`: latency while state moves between hosts, and recovery of a killed host."""
