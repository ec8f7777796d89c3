"""`penstock bench switch`: scaling policies compared, live and simulated."""
