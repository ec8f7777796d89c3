"""Decides when rows go to burst workers, how many rows, and to how many workers. Pure."""
