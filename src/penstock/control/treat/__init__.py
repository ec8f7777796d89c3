"""Treat: what a policy decides (treatments), its bounds, its budget and its patience."""
