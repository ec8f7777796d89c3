"""Policies: each one decides from the vitals of a step how to scale it."""
