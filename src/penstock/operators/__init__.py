"""Keyed steps: each is a plan (compiled in the driver), a sender (in couriers), an operator (on hosts).

operator.py          the interfaces of the three, and the values that pass between them
table_operator.py    base class of operators whose state is one table; due times of entries
places.py            positions of output rows in an ordered flow
tagged.py            rows of several inputs in one stream
ordering.py          sorting rows by several columns
entry_groups.py      grouping rows by number, such as the number of their entry
changes.py           change streams: rows that are put in and taken back
aggregate/  window/  join/  top/  process/    the kinds of steps
"""
