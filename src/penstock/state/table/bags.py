"""Bags: an ordered list of rows for each entry of a table, as columns and without Python objects.

The table holds a cell for each entry: the last node of its chain and the count of its rows. Nodes
and the rows that they name are only ever appended, never changed, so the old cells that the table
keeps in its log are all that undo and rollback need. What nobody names any more stays until `tidy`.

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

from collections.abc import Sequence
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
"""Rows and nodes that nobody names which are never worth tidying."""


@dataclass(frozen=True)
class BagColumn(PatchableColumn):
    """The cells of bags in memory, lists of structs in files (see `patches`)."""

    width: int = 2
    bags: Bags = field(kw_only=True, compare=False, repr=False)

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.int64)

    def to_arrow(self, values: Array, valid: Array | None = None) -> pa.Array:
        return self.bags.lists(values, np.ones(len(values), np.bool_) if valid is None else valid)

    def delta_arrays(self, values: Array, present: Array, entries: Array) -> list[pa.Array]:
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
    """When to look again for what nobody holds any more, which costs as much as there are entries: once
    in an epoch, or when there is an eighth more of it all.

    >>> looks = Looks()
    >>> [looks.worth(count, cuts) for count, cuts in ((80, 0), (89, 0), (90, 0), (90, 1), (91, 1))]
    [True, False, True, True, False]
    """

    def __init__(self) -> None:
        self._count, self._cuts = 0, -1

    def worth(self, count: int, cuts: int) -> bool:
        """Whether to look now: there are so many, and the table was cut so often."""
        if cuts == self._cuts and count < self._count + self._count // 8:
            return False
        self._count, self._cuts = count, cuts
        return True


class Bags:
    """The bags of one column of a table. Single-threaded, as the table is."""

    column: Column
    """The column that must be among the table's; what it holds is of no use to others."""
    _arena: Arena
    _nodes: Array
    _size: int
    """Number of nodes."""
    _place: Array
    """Room for a number per entry, to group entries by."""
    renumberings: int = 0
    """How often rows were numbered anew: ids from before name other rows now."""

    def __init__(self, name: str, schema: pa.Schema) -> None:
        if "." in name:
            raise FlowError(f"{name!r} cannot name bags", hint="use a name without dots")
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
        """This is the table that the column is in."""
        self._table = table

    # -- reading

    def counts(self, entries: Array) -> Array:
        """How many rows each of these entries has (int64)."""
        counts: Array = self._cells[entries, 1]
        return counts

    def take(self, entries: Array) -> tuple[Array, pa.RecordBatch]:
        """All rows of these entries, and for each the place of its entry among them, ascending."""
        owner, ids = self.ids(entries)
        return owner, self.rows(ids)

    def ids(self, entries: Array) -> tuple[Array, Array]:
        """As `take`, with numbers of rows, which are theirs until `tidy` or a renumbering."""
        return self._listed(self._cells[entries])

    def rows(self, ids: Array) -> pa.RecordBatch:
        """The rows of these ids."""
        return self._arena.take(ids)

    def values(self, name: str, ids: Array) -> pa.Array:
        """One field of the rows of these ids."""
        return self._arena.values(name, ids)

    def before(self, entries: Array) -> tuple[Array, Array]:
        """As `ids`, as of the last step; entries that are new since then had no rows."""
        return self._listed(self._bound.before(self.column.name, entries))

    # -- changing: entries must have been touched

    def append(self, entries: Array, rows: pa.RecordBatch) -> None:
        """Row i goes to the end of the bag of entries[i]; an entry may be there more than once."""
        entries, cells = indices(entries), self._cells
        if not len(entries):
            return
        if len(self._place) < len(cells):
            self._place = np.zeros(len(cells) * 5 // 4, np.int32)
        distinct, counts = np.empty(len(entries), np.int64), np.empty(len(entries), np.int64)
        found = kernels.group(entries, self._place, distinct, counts)
        order = None
        if found < len(entries):
            order = kernels.grouped_order(entries, self._place, counts, found)
        first = self._arena.append(rows, order)
        self._nodes = with_room(self._nodes, self._size, found)
        kernels.append_runs(cells, distinct[:found], counts[:found], self._nodes, self._size, first)
        self._size += found

    def replace(self, entries: Array, owner: Array, rows: pa.RecordBatch) -> None:
        """These distinct entries hold exactly these rows: row i is that of entries[owner[i]]."""
        self.keep(entries, owner, self.put(rows))

    def keep(self, entries: Array, owner: Array, ids: Array) -> None:
        """As `replace`, with rows that are there already."""
        if len(owner) and not (owner[1:] >= owner[:-1]).all():
            order = np.argsort(owner, kind="stable")
            owner, ids = owner[order], ids[order]
        counts = np.bincount(owner, minlength=len(entries))
        self._cells[entries] = self._chained(np.cumsum(counts) - counts, counts, indices(ids))

    def put(self, rows: pa.RecordBatch, order: Array | None = None) -> Array:
        """Store rows, or these of them, that no entry holds yet; returns their ids."""
        first = self._arena.append(rows, order)
        return np.arange(first, self._arena.size)

    def tidy(self) -> None:
        """Forget rows that no entry holds, nor can get back, if they prevail. Operators call it when a
        round begins; in the middle of one it does nothing."""
        most, table = max(self._arena.size, self._size), self._bound
        if most <= _FEW or not table.between_rounds or not self._looks.worth(most, table.cuts):
            return
        held = table.held(self.column.name)
        if most > 2 * sum(int(kernels.total(cells)) for cells in held) + _FEW:
            self.gather(held)

    @property
    def nbytes(self) -> int:
        """Bytes held, slack included."""
        return self._arena.nbytes + self._nodes.nbytes + self._place.nbytes

    # -- for the column

    def gather(self, held: Sequence[Array]) -> None:
        """Store the rows of these arrays of cells anew; only they are left. A row that several cells
        have stays one row."""
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
        """How a delta can tell of these entries, whose cells these are: for each how many of the
        first rows are gone since the last cut, and how many of those left then are still the first
        ones. None are where the bag is better told whole."""
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
        """The bags of these cells, without the first `skip` rows of each, as they are in files; null
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
        """Take in bags from a file; returns their cells."""
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
                hint="call bind with the table that has their column",
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
        """The rows of these cells without the first `skip` of each, and the place of each row's cell."""
        if skip is None:
            skip = np.zeros(len(cells), np.int64)
        rows = int(kernels.total(cells) - skip.sum())
        owner, ids = np.empty(rows, np.int64), np.empty(rows, np.int64)
        kernels.list_ids(cells, skip, self._nodes, owner, ids)
        return owner, ids

    def _chained(self, starts: Array, counts: Array, ids: Array) -> Array:
        """The cells of bags, each of counts[i] of the ids from starts[i] on."""
        runs = int(kernels.count_runs(starts, counts, ids))
        self._nodes = with_room(self._nodes, self._size, runs)
        cells = np.empty((len(counts), 2), np.int64)
        kernels.put_runs(starts, counts, ids, self._nodes, self._size, cells)
        self._size += runs
        return cells
