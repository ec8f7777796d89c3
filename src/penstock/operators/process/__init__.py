"""Processors: users' own logic per key, with state and timers."""
