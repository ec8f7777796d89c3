"""Top-n: the first rows of each key in an order. Distinct: the first row of each key to arrive.

order.py       the order of rows; merging kept rows and new rows in that order
plan.py        the plan of a top-n, and its senders
step.py        the operator of a top-n
distinct.py    the plan, sender and operator of distinct
kernels.py     compiled loops
"""
