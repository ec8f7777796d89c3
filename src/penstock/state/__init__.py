"""Keyed state: encoded keys, tables in memory, state variables of user code, and checkpoint files.

    arrays.py    conversion between Arrow columns and numpy arrays
    keys/        key columns as encoded keys, hashes, slots and dense entry numbers
    table/       one step's state on one host: columns, undo, deltas, bags of rows
    variables/   state variables that user code declares: values, lists, maps and timers
    store/       the checkpoint: deltas, runs, snapshots, layouts, manifests

Imports go one way: store and variables build on table, table on keys, keys on arrays.
"""
