"""Keyed state: how keys are encoded, tables hold them, user code sees them, and files keep them.

    arrays.py    Arrow columns as numpy arrays and back
    keys/        key columns as encoded keys, hashes, slots and dense entry numbers
    table/       one step's state on one host: columns, undo, deltas, bags of rows
    variables/   what user code declares: values, lists, maps and timers, as columns of a table
    store/       the checkpoint: deltas, runs, snapshots, layouts, manifests

Imports go down: store and variables build on table, table on keys, keys on arrays.
"""
