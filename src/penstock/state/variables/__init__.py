"""Keyed state as user code sees it: each variable is some columns of the step's table.

handle.py              what a processor's `init` gets, to declare state and set timers
variable.py            one declared variable, and the cells of the keys at hand
value_state.py         one row per key
collection_state.py    lists and maps; collection_cells.py: how they change in place and are undone
timers.py              timers
values.py, scalars.py  rows and values between user code and Arrow
ddl.py                 schemas from Spark's DDL text
"""
