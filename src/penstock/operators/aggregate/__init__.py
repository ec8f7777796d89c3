"""Aggregates per key: accumulators, their combination in couriers, their state on hosts."""
