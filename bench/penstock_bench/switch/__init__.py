"""`penstock bench switch`: policies against each other, live and simulated."""
