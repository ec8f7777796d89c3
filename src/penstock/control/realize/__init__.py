"""Realize: the progress of treatments after a decision, and how long an epoch waits for new hosts."""
