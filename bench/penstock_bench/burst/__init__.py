"""`penstock bench burst`: bursts taken up by functions, live and simulated, and what they cost."""
