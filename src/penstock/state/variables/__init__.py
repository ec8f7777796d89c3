"""State variables of user code. Each variable is a few columns of the step's table.

handle.py              the handle that a processor's `init` gets, to declare state and set timers
variable.py            base class of variables, and the cells of the current keys
value_state.py         one row per key
collection_state.py    lists and maps per key; collection_cells.py: their changes in place, and undo
timers.py              timers
values.py, scalars.py  conversion of rows and values between user code and Arrow
ddl.py                 schemas from Spark's DDL text
"""
