"""The table: keyed columnar state of one step on one host.

table.py       `ColumnTable`: entries, savepoints, deltas
columns.py     how a declared type lives in memory and stands in a file
undo_log.py    old values, for savepoints and rollback
parted.py      several tables as one, for several workers
bags.py        an ordered list of rows for each entry; arena.py: where the rows lie
patches.py     what a delta says of a map or list of which only a part changed
kernels.py, bag_kernels.py    their compiled loops
"""
