"""Rows in a join's bags: which are equal to each other or to new ones, and which have met a match.

Rows of a bag never change, so that undoing is cheap: a row whose mark changes is stored anew in its place.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from penstock.errors import FlowError
from penstock.operators.entry_groups import distinct
from penstock.state.arrays import Array, fixed_array, fixed_values
from penstock.state.keys.codec import KeyCodec
from penstock.state.keys.index import key_index
from penstock.state.table.bags import Bags

HASH = "__hash"
"""A column of bags in which rows are looked for: the hash of the row's other columns (int64)."""


class Equal(NamedTuple):
    """Rows that may be equal: those of one number are."""

    stored: Array
    """Numbers of stored rows that may be equal to a new one."""
    ids: Array
    """Their ids."""
    entries: Array
    """Their entries."""
    new: Array
    """The numbers of the new rows."""
    groups: int
    """Numbers are below this."""


class EqualRows:
    """Compares rows by some of their columns: all of the key, so that equal rows share an entry."""

    def __init__(self, schema: pa.Schema) -> None:
        try:
            self._codec = KeyCodec(schema, nulls=True)
        except FlowError as problem:
            raise FlowError(
                f"rows of this step's input cannot be compared: {problem.message}",
                hint="leave such columns out before this step, or turn them into text",
            ) from problem

    def odd_rows(self, batch: pa.RecordBatch) -> Array | None:
        """Rows that cannot be compared: with a null inside a nested value; None if there are none."""
        return self._codec.null_rows(batch)

    def hashes(self, batch: pa.RecordBatch) -> pa.Array:
        """The column `HASH` for these rows."""
        keys = self._codec.encode(batch)
        return fixed_array(keys.hashes.view(np.int64), pa.int64())

    def find(self, bags: Bags, entries: Array, batch: pa.RecordBatch) -> Equal:
        """Compare new rows, which have their hash, with each other and with their entries' bags."""
        touched = distinct(entries)
        owner, ids = bags.ids(touched)
        wanted = np.unique(fixed_values(batch.column(HASH)))
        hashes = fixed_values(bags.values(HASH, ids))
        place = np.minimum(np.searchsorted(wanted, hashes), len(wanted) - 1)
        likely = np.flatnonzero(wanted[place] == hashes) if len(ids) else np.empty(0, np.int64)
        index = key_index(self._codec.layout)
        stored = index.upsert(self._codec.encode(bags.rows(ids[likely])))
        new = index.upsert(self._codec.encode(batch))
        return Equal(stored, ids[likely], touched[owner[likely]], new, index.size)


MATCHED = "__matched"


def with_column(batch: pa.RecordBatch, name: str, column: pa.Array) -> pa.RecordBatch:
    """The rows with one more column, or with another in the place of the one of this name."""
    at = batch.schema.get_field_index(name)
    if at >= 0:
        return batch.set_column(at, batch.schema.field(at), column)
    return batch.append_column(pa.field(name, column.type), column)


def mark(bags: Bags, entries: Array, ids: Array, matched: bool) -> None:
    """Mark rows of these (touched) entries; a row may be there more than once."""
    other = fixed_values(bags.values(MATCHED, ids)) != matched
    if not other.any():
        return
    changed, touched = np.unique(ids[other]), distinct(entries[other])
    marks = fixed_array(np.full(len(changed), matched), pa.bool_())
    new = bags.put(with_column(bags.rows(changed), MATCHED, marks))
    owner, kept = bags.ids(touched)
    place = np.minimum(np.searchsorted(changed, kept), len(changed) - 1)
    bags.keep(touched, owner, np.where(changed[place] == kept, new[place], kept))
