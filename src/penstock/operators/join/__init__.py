"""Joins of two inputs on equal keys: in a window, within an interval, or of all rows.

bounds.py          time bounds of a join, and how long rows are kept
plan.py            the plan, and the sender in couriers
step.py            base classes of the operators
regular_join.py, window_join.py, interval_join.py    the three kinds
stored_rows.py     rows in bags: finding equal rows, marking rows that have a match
kernels.py         compiled loops
"""
