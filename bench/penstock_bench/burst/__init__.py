"""`penstock bench burst`: latency and cost of load bursts that functions absorb, live and simulated."""
