"""Treat: decisions of policies, the bounds of steps, and the load that burst workers carry."""
