"""Bursts: short-lived workers that take up rows for which there are too few hosts."""
