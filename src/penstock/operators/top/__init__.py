"""The first rows of each key in an order, and the first row of each key that comes.

order.py       the order of rows, and the first of those kept and those that have just come
plan.py        the plan of a top-n, and its senders
step.py        its operator
distinct.py    the first row of each key: plan, sender and operator
kernels.py     compiled loops
"""
