"""The driver's part: keeping workers ready, and telling what they did."""
