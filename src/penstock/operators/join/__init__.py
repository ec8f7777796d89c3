"""Joins of two inputs on equal keys: in a window, within an interval, or of all rows.

bounds.py          how far apart rows may be, and so how long they are kept
plan.py            the plan, and the sender in couriers
step.py            what the operators of all joins share
regular_join.py, window_join.py, interval_join.py    the three kinds
stored_rows.py     rows in bags: which are equal, which have met a match
kernels.py         compiled loops
"""
