"""Treat: what a policy decides, the bounds it keeps to, and what functions carry beside hosts."""
