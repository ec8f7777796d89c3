"""Bags: an ordered list of rows for each entry of a table, in columns and without Python objects.

The table has a cell for each entry: the last node of its chain and its number of rows. Nodes and the
rows that they refer to are only appended, never changed. So undo and rollback need only the old cells in
the table's log. Rows that no cell refers to stay until `tidy`.

>>> from penstock.state.keys.codec import KeyCodec
>>> bags = Bags("seen", pa.schema([("n", pa.int64())]))
>>> codec = KeyCodec(pa.schema([("user", pa.string())]))
>>> table = ColumnTable(codec, [bags.column], slots=16)
>>> bags.bind(table)
>>> entries = table.upsert(codec.encode(pa.record_batch({"user": ["a", "b", "a"]})))
>>> bags.append(entries, pa.record_batch({"n": [1, 2, 3]}))
>>> owner, rows = bags.take(np.array([1, 0]))
>>> owner.tolist(), rows.column("n").to_pylist()
([0, 1, 1], [2, 1, 3])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import FlowError, ProtocolError
from penstock.state.arrays import (
    Array,
    fixed_array,
    fixed_values,
    indices,
    one_chunk,
    valid_mask,
    with_room,
)
from penstock.state.table import bag_kernels as kernels
from penstock.state.table.arena import Arena
from penstock.state.table.columns import Column, PatchableColumn
from penstock.state.table.patches import SMALL
from penstock.state.table.table import ColumnTable

_FEW = 1024
"""Number of unused rows and nodes up to which `tidy` does nothing."""


@dataclass(frozen=True)
class BagColumn(PatchableColumn):
    """A column of bags: cells in memory, lists of structs in files (see `patches`)."""

    width: int = 2
    bags: Bags = field(kw_only=True, compare=False, repr=False)

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.int64)

    def to_arrow(self, values: Array, valid: Array | None = None) -> pa.Array:
        return self.bags.lists(values, np.ones(len(values), np.bool_) if valid is None else valid)

    def delta_arrays(
        self, values: Array, present: Array, entries: Array, at_cut: Callable[[], Array]
    ) -> list[pa.Array]:
        gone, skip = self.bags.changes(values, entries)
        patch = skip > 0
        return [
            self.bags.lists(values, present, skip),
            fixed_array(patch, pa.bool_(), present),
            fixed_array(gone, pa.int64(), patch),
        ]

    def from_arrow(self, column: pa.Array | pa.ChunkedArray) -> Array:
        return self.bags.installed(one_chunk(column))

    def kept(self, held: Sequence[Array]) -> None:
        self.bags.gather(held)

    @property
    def held_bytes(self) -> int:
        return self.bags.nbytes


class Looks:
    """Decides when to scan for unused rows again, which takes time proportional to the number of entries:
    once per epoch, or when the number of rows has grown by an eighth.

    >>> looks = Looks()
    >>> [looks.worth(count, cuts) for count, cuts in ((80, 0), (89, 0), (90, 0), (90, 1), (91, 1))]
    [True, False, True, True, False]
    """

    def __init__(self) -> None:
        self._count, self._cuts = 0, -1

    def worth(self, count: int, cuts: int) -> bool:
        """Whether to scan now, with `count` rows or nodes and after `cuts` cuts of the table."""
        if cuts == self._cuts and count < self._count + self._count // 8:
            return False
        self._count, self._cuts = count, cuts
        return True


class Bags:
    """The bags of one column of a table. Single-threaded, as the table is."""

    column: Column
    """Column to include in the table. Its values are for internal use only."""
    _arena: Arena
    _nodes: Array
    _size: int
    """Number of nodes."""
    _place: Array
    """Scratch array with room for one number per entry, to group entries."""
    renumberings: int = 0
    """Number of times rows were renumbered. Ids from before the last time are invalid."""

    def __init__(self, name: str, schema: pa.Schema) -> None:
        if "." in name:
            raise FlowError(
                f"{name!r} is not a valid name for bags", hint="use a name without dots"
            )
        if not len(schema):
            raise FlowError(
                f"the rows of {name!r} have no columns", hint="keep at least one column"
            )
        self.schema = schema
        rows = pa.list_(pa.struct(list(schema)))
        self.column = BagColumn(f"{name}.__list", rows, bags=self)
        self._table: ColumnTable | None = None
        self._arena, self._looks = Arena(schema), Looks()
        self._no_nodes()

    def bind(self, table: ColumnTable) -> None:
        """Set the table that contains the column."""
        self._table = table

    # -- reading

    def counts(self, entries: Array) -> Array:
        """Number of rows of each of these entries (int64)."""
        counts: Array = self._cells[entries, 1]
        return counts

    def take(self, entries: Array) -> tuple[Array, pa.RecordBatch]:
        """For each row of these entries, the position of its entry (ascending), and the rows."""
        owner, ids = self.ids(entries)
        return owner, self.rows(ids)

    def ids(self, entries: Array) -> tuple[Array, Array]:
        """Like `take`, but with ids of rows, which are valid until `tidy` or a renumbering."""
        return self._listed(self._cells[entries])

    def rows(self, ids: Array) -> pa.RecordBatch:
        """The rows with these ids."""
        return self._arena.take(ids)

    def values(self, name: str, ids: Array) -> pa.Array:
        """One field of the rows with these ids."""
        return self._arena.values(name, ids)

    def before(self, entries: Array) -> tuple[Array, Array]:
        """Like `ids`, as of the last step. Entries that are new since then had no rows."""
        return self._listed(self._bound.before(self.column.name, entries))

    # -- changing: entries must have been touched

    def append(self, entries: Array, rows: pa.RecordBatch) -> None:
        """Append row i to the bag of entries[i]. An entry may occur more than once."""
        entries, cells = indices(entries), self._cells
        if not len(entries):
            return
        if len(self._place) < len(cells):
            self._place = np.zeros(len(cells) * 5 // 4, np.int32)
        distinct, counts = np.empty(len(entries), np.int64), np.empty(len(entries), np.int64)
        groups = kernels.group(entries, self._place, distinct, counts)
        order = None
        if groups < len(entries):
            order = kernels.grouped_order(entries, self._place, counts, groups)
        first = self._arena.append(rows, order)
        self._nodes = with_room(self._nodes, self._size, groups)
        kernels.append_runs(
            cells, distinct[:groups], counts[:groups], self._nodes, self._size, first
        )
        self._size += groups

    def replace(self, entries: Array, owner: Array, rows: pa.RecordBatch) -> None:
        """Replace the bags of these distinct entries. Row i goes to the bag of entries[owner[i]]."""
        self.keep(entries, owner, self.put(rows))

    def keep(self, entries: Array, owner: Array, ids: Array) -> None:
        """Like `replace`, with the ids of rows that are stored already."""
        if len(owner) and not (owner[1:] >= owner[:-1]).all():
            order = np.argsort(owner, kind="stable")
            owner, ids = owner[order], ids[order]
        counts = np.bincount(owner, minlength=len(entries))
        self._cells[entries] = self._chained(np.cumsum(counts) - counts, counts, indices(ids))

    def put(self, rows: pa.RecordBatch, order: Array | None = None) -> Array:
        """Store rows, or those at `order`, without adding them to a bag, and return their ids."""
        first = self._arena.append(rows, order)
        return np.arange(first, self._arena.size)

    def tidy(self) -> None:
        """Remove rows that no entry has or can get back by a rollback, if there are many. Operators call it
        when a round begins; within a round it does nothing."""
        most, table = max(self._arena.size, self._size), self._bound
        if most <= _FEW or not table.between_rounds or not self._looks.worth(most, table.cuts):
            return
        held = table.held(self.column.name)
        if most > 2 * sum(int(kernels.total(cells)) for cells in held) + _FEW:
            self.gather(held)

    @property
    def nbytes(self) -> int:
        """Bytes of memory, spare room included."""
        return self._arena.nbytes + self._nodes.nbytes + self._place.nbytes

    # -- for the column

    def gather(self, held: Sequence[Array]) -> None:
        """Keep only the rows of these arrays of cells, and renumber them. A row in several cells is stored
        once."""
        counts = np.concatenate([cells[:, 1] for cells in held])
        ids = np.concatenate([self._listed(cells)[1] for cells in held])
        distinct = kernels.renumbered(ids, self._arena.size)
        if len(distinct) == self._arena.size and self._size == np.count_nonzero(counts):
            return
        self._arena.keep(distinct)
        self._no_nodes()
        self.renumberings += 1
        chained = self._chained(np.cumsum(counts) - counts, counts, ids)
        ends = np.cumsum([len(cells) for cells in held])
        for cells, end in zip(held, ends.tolist(), strict=True):
            cells[:] = chained[end - len(cells) : end]

    def changes(self, cells: Array, entries: Array) -> tuple[Array, Array]:
        """For a delta: how many rows each entry lost at the front since the last cut, and how many of its old
        rows are still the first ones. Both are 0 if the bag is better written as a whole. `cells` are the
        cells of `entries`."""
        old = self._bound.at_cut(self.column.name, entries)
        gone, skip = np.zeros(len(cells), np.int64), np.zeros(len(cells), np.int64)
        large = np.flatnonzero((cells[:, 1] > SMALL) & (old[:, 1] > 0))
        grew = kernels.grew(old[large], cells[large], self._nodes)
        others = large[~grew]
        if len(others):
            was, now = old[others], cells[others]
            ids = self._listed(was)[1], self._listed(now)[1]
            gone[others] = kernels.shifted(was[:, 1].copy(), ids[0], now[:, 1].copy(), ids[1])
        skip[large] = np.where(gone[large] < 0, 0, old[large, 1] - gone[large])
        worth = 2 * (cells[:, 1] - skip) < cells[:, 1]
        return np.where(worth, gone, 0), np.where(worth, skip, 0)

    def lists(self, cells: Array, valid: Array, skip: Array | None = None) -> pa.Array:
        """The bags of these cells in the format of files, without the first `skip` rows of each; null
        where not `valid`."""
        _, ids = self._listed(cells, skip)
        rows = self._arena.take(ids)
        structs = pa.StructArray.from_arrays(rows.columns, fields=list(self.schema))
        offsets = np.zeros(len(cells) + 1, np.int32)
        np.cumsum(cells[:, 1] if skip is None else cells[:, 1] - skip, out=offsets[1:])
        bits = fixed_array(valid, pa.bool_()).buffers()[1]
        buffers = [bits, pa.py_buffer(offsets)]
        return pa.Array.from_buffers(self.column.type, len(cells), buffers, children=[structs])

    def installed(self, lists: pa.Array) -> Array:
        """Store bags from a file, and return their cells."""
        offsets = fixed_values(lists.offsets).astype(np.int64)
        starts, counts = offsets[:-1], np.diff(offsets)
        valid = valid_mask(lists)
        if valid is not None:
            counts = np.where(valid, counts, 0)
        low = int(offsets[0]) if len(offsets) else 0
        high = int(offsets[-1]) if len(offsets) else 0
        structs = lists.values.slice(low, high - low)
        batch = pa.RecordBatch.from_arrays(structs.flatten(), schema=self.schema)
        first = self._arena.append(batch)
        ids = np.arange(first, first + batch.num_rows)
        return self._chained(starts - low, counts, ids)

    # -- how it works

    @property
    def _bound(self) -> ColumnTable:
        if self._table is None:
            raise ProtocolError(
                f"the bags {self.column.name!r} are not bound to a table",
                hint="call bind with the table that contains their column",
            )
        return self._table

    @property
    def _cells(self) -> Array:
        return self._bound.column(self.column.name)

    def _no_nodes(self) -> None:
        self._nodes = np.zeros((64, 3), np.int64)
        self._size = 0
        self._place = np.zeros(0, np.int32)

    def _listed(self, cells: Array, skip: Array | None = None) -> tuple[Array, Array]:
        """For each row of these cells, without the first `skip` of each: the position of its cell, and its
        id."""
        if skip is None:
            skip = np.zeros(len(cells), np.int64)
        rows = int(kernels.total(cells) - skip.sum())
        owner, ids = np.empty(rows, np.int64), np.empty(rows, np.int64)
        kernels.list_ids(cells, skip, self._nodes, owner, ids)
        return owner, ids

    def _chained(self, starts: Array, counts: Array, ids: Array) -> Array:
        """Create bags, and return their cells. Bag i has counts[i] ids from starts[i] on."""
        runs = int(kernels.count_runs(starts, counts, ids))
        self._nodes = with_room(self._nodes, self._size, runs)
        cells = np.empty((len(counts), 2), np.int64)
        kernels.put_runs(starts, counts, ids, self._nodes, self._size, cells)
        self._size += runs
        return cells
