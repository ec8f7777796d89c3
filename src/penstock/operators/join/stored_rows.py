"""Rows in a join's bags: finding equal rows, and marking rows that have a match.

Rows of a bag never change, which makes undo cheap. To change its mark, a row is replaced by a new row.
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
"""Column (int64) of bags whose rows are compared: the hash of the row's other columns."""


class Equal(NamedTuple):
    """The result of comparing new rows with stored rows. Rows with the same number are equal."""

    stored: Array
    """Numbers of the stored rows that may be equal to a new row."""
    ids: Array
    """Ids of those stored rows."""
    entries: Array
    """Entries of those stored rows."""
    new: Array
    """Numbers of the new rows."""
    groups: int
    """Count of distinct numbers; all numbers are below it."""


class EqualRows:
    """Compares rows by these columns, which include the key: equal rows share an entry."""

    def __init__(self, schema: pa.Schema) -> None:
        try:
            self._codec = KeyCodec(schema, nulls=True)
        except FlowError as problem:
            raise FlowError(
                f"rows of this step's input cannot be compared: {problem.message}",
                hint="drop such columns before this step, or cast them to text",
            ) from problem

    def odd_rows(self, batch: pa.RecordBatch) -> Array | None:
        """Mask (bool) of the rows that cannot be compared because of a null inside a nested value; None
        if there are none."""
        return self._codec.null_rows(batch)

    def hashes(self, batch: pa.RecordBatch) -> pa.Array:
        """The values of column `HASH` for these rows."""
        keys = self._codec.encode(batch)
        return fixed_array(keys.hashes.view(np.int64), pa.int64())

    def find(self, bags: Bags, entries: Array, batch: pa.RecordBatch) -> Equal:
        """Compare new rows, which have the column `HASH`, with each other and with their entries' bags."""
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
"""Column (bool) of a left join's left rows: whether the row has a match."""


def with_column(batch: pa.RecordBatch, name: str, column: pa.Array) -> pa.RecordBatch:
    """Append a column, or replace the column of this name."""
    at = batch.schema.get_field_index(name)
    if at >= 0:
        return batch.set_column(at, batch.schema.field(at), column)
    return batch.append_column(pa.field(name, column.type), column)


def mark(bags: Bags, entries: Array, ids: Array, matched: bool) -> None:
    """Set the mark of rows of these entries, which must be touched. `ids` may have duplicates."""
    other = fixed_values(bags.values(MATCHED, ids)) != matched
    if not other.any():
        return
    changed, touched = np.unique(ids[other]), distinct(entries[other])
    marks = fixed_array(np.full(len(changed), matched), pa.bool_())
    new = bags.put(with_column(bags.rows(changed), MATCHED, marks))
    owner, kept = bags.ids(touched)
    place = np.minimum(np.searchsorted(changed, kept), len(changed) - 1)
    bags.keep(touched, owner, np.where(changed[place] == kept, new[place], kept))
