"""Inputs to try Penstock on."""
