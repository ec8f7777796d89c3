"""Couriers, inside Spark tasks: the roads of rows through steps, channels to hosts, reports."""
