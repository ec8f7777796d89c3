"""Columns of lists of numbers, without Python objects.

The table has a cell for each entry: the position of its list's first value, plus one, and the number of its
values. (0, 0) is null. The values of all lists are in one pool. They are only appended, never changed, so
undo and rollback need only the old cells in the table's log. Values that no cell refers to stay until
`tidy`.

>>> column = ListColumn("seen", pa.list_(pa.int64()), pool=ListPool(pa.int64()))
>>> cells = column.from_arrow(pa.array([[1, 2], None, [], [3]]))
>>> cells.tolist()
[[1, 2], [0, 0], [1, 0], [3, 1]]
>>> column.to_arrow(cells[::-1]).to_pylist()
[[3], [], None, [1, 2]]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.state.arrays import Array, fixed_values, one_chunk, pack_bits, physical, valid_mask
from penstock.state.table import bag_kernels as kernels
from penstock.state.table.arena import Arena
from penstock.state.table.columns import Column

_FEW = 4096
"""Number of unused values up to which `tidy` does nothing."""


class ListPool:
    """The values of all lists of a column."""

    def __init__(self, type: pa.DataType) -> None:
        self._arena = Arena(pa.schema([pa.field("value", type)]))
        self._kept = 0
        """Number of values that were in use when the pool was last cleaned."""

    @property
    def is_wasteful(self) -> bool:
        """Whether more than half of the values may be unused, and they are many."""
        return self._arena.size > 2 * self._kept + _FEW

    @property
    def nbytes(self) -> int:
        """Bytes of memory, spare room included."""
        return self._arena.nbytes

    def put(self, lists: pa.Array) -> Array:
        """Store lists, and return their cells."""
        offsets = fixed_values(lists.offsets).astype(np.int64)
        counts, valid = np.diff(offsets), valid_mask(lists)
        low, high = (int(offsets[0]), int(offsets[-1])) if len(offsets) else (0, 0)
        values = lists.values.slice(low, high - low)
        first = self._arena.append(pa.RecordBatch.from_arrays([values], ["value"]))
        cells = np.empty((len(lists), 2), np.int64)
        # An empty list has no position: its neighbour's may be the same.
        cells[:, 0] = np.where(counts > 0, offsets[:-1] + (first - low + 1), 1)
        cells[:, 1] = counts
        if valid is not None:
            cells[~valid] = 0
        return cells

    def lists(self, cells: Array, type: pa.DataType) -> pa.Array:
        """The lists of these cells."""
        offsets = np.zeros(len(cells) + 1, np.int32)
        np.cumsum(cells[:, 1], out=offsets[1:])
        values = self._arena.values("value", self._numbers(cells))
        there = cells[:, 0] > 0
        bits = None if there.all() else pack_bits(there)
        buffers = [bits, pa.py_buffer(offsets)]
        return pa.Array.from_buffers(type, len(cells), buffers, children=[values])

    def gather(self, held: Sequence[Array]) -> None:
        """Keep only the values of these arrays of cells, and change the cells to their new positions."""
        full = [np.flatnonzero(cells[:, 1]) for cells in held]
        used = np.concatenate([cells[at] for cells, at in zip(held, full, strict=True)])
        if used[:, 1].sum() < self._arena.size:
            # A list is in several arrays if a rollback would restore it.
            _, first, which = np.unique(used[:, 0], return_index=True, return_inverse=True)
            kept = used[first]
            self._arena.keep(self._numbers(kept))
            positions = (np.cumsum(kept[:, 1]) - kept[:, 1] + 1)[which]
            begin = 0
            for cells, at in zip(held, full, strict=True):
                cells[at, 0] = positions[begin : begin + len(at)]
                begin += len(at)
        self._kept = self._arena.size

    def _numbers(self, cells: Array) -> Array:
        """Positions of all values of these cells, one list after the other."""
        numbers = np.empty(int(cells[:, 1].sum()), np.int64)
        kernels.list_runs(np.ascontiguousarray(cells), numbers)
        return numbers


@dataclass(frozen=True)
class ListColumn(Column):
    """A column of lists of numbers: cells in memory, lists in files."""

    width: int = 2
    pool: ListPool = field(kw_only=True, compare=False, repr=False)

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.int64)

    @property
    def storage_type(self) -> pa.DataType:
        return self.type

    def to_arrow(self, values: Array, valid: Array | None = None) -> pa.Array:
        return self.pool.lists(values, self.type)

    def from_arrow(self, column: pa.Array | pa.ChunkedArray) -> Array:
        return self.pool.put(one_chunk(column))

    def kept(self, held: Sequence[Array]) -> None:
        self.pool.gather(held)

    @property
    def held_bytes(self) -> int:
        return self.pool.nbytes


def is_number_list(type: pa.DataType) -> bool:
    """Whether `ListColumn` can hold values of this type.

    >>> is_number_list(pa.list_(pa.timestamp("us"))), is_number_list(pa.list_(pa.string()))
    (True, False)
    """
    return pa.types.is_list(type) and physical(type.value_type) is not None
