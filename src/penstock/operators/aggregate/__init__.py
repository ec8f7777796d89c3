"""Aggregates per key.

aggregates.py      the public functions: `count`, `sum`, `last` and so on
plan.py            the plan of the step; compiled.py: an aggregate checked against its input
accumulators.py    the state of aggregates; object_accumulators.py: for values that compiled code
                   cannot hold; signed_accumulators.py: for rows that are taken back
distinct_sets.py   exact counts of distinct values; sketch.py: approximate ones
user_functions.py, user_state.py    aggregates that users define, and their state
combiner.py        the courier's side: rows of one key are combined before they are sent
state.py, step.py  the host's side
kernels.py         compiled loops
"""
