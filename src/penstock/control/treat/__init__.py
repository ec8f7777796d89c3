"""Treat: decisions of policies, bounds of steps, hot slots, and the load that burst workers carry."""
