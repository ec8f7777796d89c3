"""Which values are in which sets: an index that grows, and sets that exist only for a while."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from penstock.operators.aggregate import set_kernels as kernels
from penstock.state.arrays import Array, fixed_array

MEMBERS = pa.schema(
    [
        pa.field("value", pa.int64(), nullable=False),
        pa.field("where", pa.uint8(), nullable=False),
    ]
)
"""A value, and bits for the conditions that have held with it."""
LISTS = pa.list_(pa.struct(list(MEMBERS)))
"""Sets as a column."""

_LOAD = 0.6
_LEAST = 1024


class ValueIndex:
    """Values (int64) with bits (uint8) of sets, which are numbered from 1 on (int32).

    >>> index = ValueIndex()
    >>> rows, bits = index.put(np.array([1, 1, 2], np.int32), np.array([7, 7, 7]),
    ...     np.array([1, 3, 1], np.uint8))
    >>> rows.tolist(), bits.tolist(), index.used
    ([0, 1, 2], [1, 2, 1], 2)
    """

    used: int
    """How many values there are in all sets."""

    def __init__(self) -> None:
        self.used = 0
        self._make_room(2 * _LEAST)

    def put(self, numbers: Array, values: Array, bits: Array) -> tuple[Array, Array]:
        """Put each value into the set of its number.

        Returns the rows that brought something new, and which bits those are.
        """
        rows, news = np.empty(len(numbers), np.int64), np.empty(len(numbers), np.uint8)
        row = count = 0
        while True:
            row, self.used, more = kernels.put(
                numbers, values, bits, row, self._sets, self._values, self._bits,
                self.used, int(_LOAD * len(self._sets)), rows[count:], news[count:],
            )  # fmt: skip
            count += more
            if row == len(numbers):
                return rows[:count], news[:count]
            before = self._sets, self._values, self._bits
            self._make_room(2 * len(self._sets))
            kernels.rehash(*before, self._sets, self._values, self._bits)

    def members(self) -> tuple[Array, Array, Array]:
        """Everything: numbers of sets, ascending, values and bits."""
        there = np.flatnonzero(self._sets)
        there = there[np.argsort(self._sets[there], kind="stable")]
        return self._sets[there], self._values[there], self._bits[there]

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self._sets.nbytes + self._values.nbytes + self._bits.nbytes

    def _make_room(self, places: int) -> None:
        self._sets = np.zeros(places, np.int32)
        self._values, self._bits = np.zeros(places, np.int64), np.zeros(places, np.uint8)


class PassingSets:
    """Sets of groups that exist only while rows are combined.

    Stands where the array of a state column does, and can be made longer as those are: by putting
    the old one into a new one.

    >>> sets = PassingSets(2)
    >>> _ = sets.add(np.array([1, 1]), np.array([7, 8]), np.array([1, 1], np.uint8))
    >>> [len(members) for members in sets.lists().to_pylist()]
    [0, 2]
    """

    def __init__(self, room: int) -> None:
        self._size, self._index = room, ValueIndex()

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, some: slice) -> PassingSets:
        first = PassingSets(len(range(self._size)[some]))
        first[:] = self
        return first

    def __setitem__(self, some: slice, other: PassingSets) -> None:
        self._index = other._index

    def add(self, groups: Array, values: Array, bits: Array) -> tuple[Array, Array]:
        """Put values into the sets of groups; see `ValueSets.add`."""
        rows, news = self._index.put((groups + 1).astype(np.int32), values, bits)
        return groups[rows], news

    def lists(self) -> pa.Array:
        """All sets, as a column."""
        numbers, values, bits = self._index.members()
        offsets = np.zeros(self._size + 1, np.int32)
        np.cumsum(np.bincount(numbers - 1, minlength=self._size), out=offsets[1:])
        columns = [fixed_array(values, pa.int64()), fixed_array(bits, pa.uint8())]
        pairs = pa.StructArray.from_arrays(columns, fields=list(MEMBERS))
        buffers: list[Any] = [None, pa.py_buffer(offsets)]
        return pa.Array.from_buffers(LISTS, self._size, buffers, children=[pairs])
