"""Sinks that live couriers write to."""
