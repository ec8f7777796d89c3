"""Couriers, inside Spark tasks: slots of rows, their split by host, the exchange with hosts, counts."""
