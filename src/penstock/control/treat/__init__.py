"""Treat: what a policy decides, the bounds it keeps to, and what burst workers carry beside hosts."""
