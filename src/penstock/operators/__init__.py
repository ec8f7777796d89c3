"""Keyed steps: each is a plan (compiled in the driver), a sender (in couriers), an operator (on hosts).

operator.py          what the three are, and what passes between them
table_operator.py    what operators share whose state is one table; when entries fall due
places.py            where output rows belong in an ordered flow
tagged.py            rows of several inputs in one stream
ordering.py          the order of rows by several columns
entry_groups.py      rows grouped by numbers, such as those of their entries
changes.py           rows that are put in and taken back
aggregate/  window/  join/  top/  process/    the kinds of steps
"""
