"""Merging of tables of rows into one with the newest row of each key, patches applied.

Tables are added newest first. Without patches, the first row of a key counts and older ones are ignored.
A patch waits for older rows of its key until a complete one is added.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from penstock.errors import CheckpointError
from penstock.state.arrays import Array, fixed_array, fixed_values, one_chunk, with_room
from penstock.state.keys.codec import KeyCodec
from penstock.state.keys.index import key_index
from penstock.state.store.blocks import stored_keys
from penstock.state.store.segment import take_rows
from penstock.state.table import patches
from penstock.state.table.table import HASH, KEY, PRESENT, SLOT, columns_text

_UNSEEN, _PATCH, _SETTLED = 0, 1, 2


class Newest:
    """Collects the newest rows. Keys are represented by numbers."""

    def __init__(self, schema: pa.Schema, numbers: int = 0) -> None:
        self._schema = schema
        self._patches = patches.has_patches(schema)
        self._known = np.zeros(numbers, np.uint8)
        self._parts: list[tuple[Array, pa.Table]] = []

    def add(self, numbers: Array, table: pa.Table) -> None:
        """Add a table that is older than all before it and has each number at most once."""
        if len(numbers) == 0:
            return
        have = len(self._known)
        self._known = with_room(self._known, have, int(numbers.max()) + 1 - have)
        wanted = np.flatnonzero(self._known[numbers] < _SETTLED)
        if len(wanted) == 0:
            return
        self.put(numbers[wanted], take_rows(table, wanted))

    def put(self, numbers: Array, table: pa.Table) -> None:
        """Add rows of keys that are not settled and whose numbers there is room for."""
        self._known[numbers] = _SETTLED
        if self._patches:
            self._known[numbers[patches.unresolved(table)]] = _PATCH
        self._parts.append((numbers, table))

    def settled(self, numbers: Array) -> Array:
        """A mask of the keys for which older rows no longer matter."""
        mask: Array = self._known[numbers] == _SETTLED
        return mask

    def table(self) -> pa.Table:
        """The rows, one per key; still a patch if no complete row of its key was added."""
        rows = _joined([table for _, table in self._parts], self._schema)
        if not self._patches or len(self._parts) < 2:
            return rows
        numbers = np.concatenate([numbers for numbers, _ in self._parts])
        counts = np.bincount(numbers)
        if counts.max() == 1:
            return rows
        if not patches.has_parts(self._schema):
            return patches.with_older_values(rows, numbers)
        once, several = [], None
        for numbers, table in self._parts:
            single = counts[numbers] == 1
            once.append(take_rows(table, np.flatnonzero(single)))
            rest = np.flatnonzero(~single)
            if len(rest):
                older = (numbers[rest], take_rows(table, rest))
                several = older if several is None else _folded(older, several)
        return _joined([*once, *([several[1]] if several else [])], self._schema)


def newest(tables: Iterable[pa.Table], schema: pa.Schema, codec: KeyCodec) -> pa.Table:
    """The newest row of each key, including removed entries. Tables are passed newest first."""
    seen, rows = key_index(codec.layout), Newest(schema)
    for table in tables:
        rows.add(seen.upsert(stored_keys(table, codec)), table)
    return rows.table()


def whole(table: pa.Table) -> pa.Table:
    """The entries that are present, complete. A patch without an older row is applied to an empty one."""
    present = fixed_values(one_chunk(table.column(PRESENT)))
    if not present.all():
        table = table.filter(fixed_array(present, pa.bool_()))
    if not patches.has_patches(table.schema):
        return table
    open = patches.unresolved(table)
    if not open.any():
        return table
    waiting = take_rows(table, np.flatnonzero(open))
    folded = patches.fold(_absent(waiting), waiting)
    return pa.concat_tables([take_rows(table, np.flatnonzero(~open)), folded])


def no_rows(schema: pa.Schema) -> pa.Table:
    """An empty table. Unlike `Schema.empty_table`, this does not import pandas."""
    return pa.Table.from_batches([], schema)


def fitting(table: pa.Table, schema: pa.Schema, name: str) -> pa.Table:
    """Convert rows of a file to the flow's schema. Raises a `CheckpointError` if they do not match it."""
    if table.schema.equals(schema):
        return table
    table = patches.completed(table, schema)
    if table.schema.equals(schema):
        return table
    raise CheckpointError(
        f"{name} has the columns {columns_text(table.schema)}, "
        f"but the flow's step has {columns_text(schema)}",
        hint="run the flow that wrote the checkpoint, or start with a new checkpoint folder",
    )


def _folded(older: tuple[Array, pa.Table], newer: tuple[Array, pa.Table]) -> tuple[Array, pa.Table]:
    """Rows by number: the newer ones, applied to older ones of the same number, and all other older ones."""
    place = np.full(int(max(older[0].max(), newer[0].max())) + 1, -1, np.int64)
    place[older[0]] = np.arange(len(older[0]))
    at = place[newer[0]]
    both = np.flatnonzero(at >= 0)
    place[newer[0]] = -1
    only_newer, only_older = np.flatnonzero(at < 0), np.flatnonzero(place[older[0]] >= 0)
    below = older[1].take(fixed_array(at[both], pa.int64()))
    folded = patches.fold(below, take_rows(newer[1], both))
    numbers = [newer[0][both], newer[0][only_newer], older[0][only_older]]
    tables = [folded, take_rows(newer[1], only_newer), take_rows(older[1], only_older)]
    return np.concatenate(numbers), pa.concat_tables(tables)


def _absent(rows: pa.Table) -> pa.Table:
    """Rows of the same keys that are not present."""
    kept = {HASH, KEY, SLOT}
    columns = [
        rows.column(field.name) if field.name in kept else pa.nulls(rows.num_rows, field.type)
        for field in rows.schema
    ]
    at = rows.schema.get_field_index(PRESENT)
    columns[at] = fixed_array(np.zeros(rows.num_rows, np.bool_), pa.bool_())
    return pa.Table.from_arrays(columns, schema=rows.schema)


def _joined(tables: list[pa.Table], schema: pa.Schema) -> pa.Table:
    return pa.concat_tables(tables) if tables else no_rows(schema)
