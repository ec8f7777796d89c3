"""The table: keyed columnar state of one step on one host.

table.py       `ColumnTable`: entries, savepoints, deltas
columns.py     representation of a declared type in memory and in a file
undo_log.py    old values, for savepoints and rollback
slot_order.py  the entries of a table by slot
parted.py      several tables as one, for several workers
bags.py        an ordered list of rows for each entry; arena.py: storage of these rows
patches.py     partial rows in a delta, for maps and lists that changed in part
kernels.py, bag_kernels.py    compiled loops
"""
