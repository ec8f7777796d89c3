"""Exact counts of distinct values: the state of `count_distinct`.

All `count_distinct` of a column share one set, whatever their conditions (`where`). Each value has one
bit per condition, set if the condition was true in some row with that value. In a combiner, and wherever
else state is temporary, a set is only an index of values (`PassingSets`).

In a table a set is a bag (`ValueSets`). The bag is the state; the index beside it finds new values
quickly. A rollback does not touch the index. Instead it remembers the bag cell of each entry that it has
indexed. If the table holds another cell, the entry's values are indexed again, under a new set number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pyarrow as pa

from penstock.operators.aggregate import kernels
from penstock.operators.aggregate.accumulators import (
    Accumulator,
    State,
    named,
    true_rows,
    with_where,
)
from penstock.state.arrays import Array, fixed_array, fixed_values, grown, one_chunk, valid_mask
from penstock.state.table.bags import Bags, Looks
from penstock.state.table.columns import Column

MEMBERS = pa.schema(
    [
        pa.field("value", pa.int64(), nullable=False),
        pa.field("where", pa.uint8(), nullable=False),
    ]
)
"""Schema of a set's members: a value, and one bit for each condition that was true with it."""
LISTS = pa.list_(pa.struct(list(MEMBERS)))
"""Type of a column of sets."""

_LOAD = 0.6
"""Share of used positions above which the index grows."""
_LEAST = 1024
"""Half the initial number of positions of the index."""


class ValueIndex:
    """An index of the values (int64) of many sets, with bits (uint8). Sets have numbers from 1 (int32).

    >>> index = ValueIndex()
    >>> rows, bits = index.put(np.array([1, 1, 2], np.int32), np.array([7, 7, 7]),
    ...     np.array([1, 3, 1], np.uint8))
    >>> rows.tolist(), bits.tolist(), index.used
    ([0, 1, 2], [1, 2, 1], 2)
    """

    used: int
    """Number of values in all sets."""

    def __init__(self) -> None:
        self.used = 0
        self._make_room(2 * _LEAST)

    def put(self, numbers: Array, values: Array, bits: Array) -> tuple[Array, Array]:
        """Put values[i] into the set numbers[i].

        Returns the rows with a new value or new bits, and their new bits.
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
        """All members: set numbers (ascending), values and bits."""
        there = np.flatnonzero(self._sets)
        there = there[np.argsort(self._sets[there], kind="stable")]
        return self._sets[there], self._values[there], self._bits[there]

    @property
    def nbytes(self) -> int:
        """Memory of the index, in bytes."""
        return self._sets.nbytes + self._values.nbytes + self._bits.nbytes

    def _make_room(self, places: int) -> None:
        self._sets = np.zeros(places, np.int32)
        self._values, self._bits = np.zeros(places, np.int64), np.zeros(places, np.uint8)


class PassingSets:
    """The sets of temporary groups, while rows are combined.

    It takes the place of a state column's array. It grows as those do: by copying it into a longer one.
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
        """Add values to the sets of groups; see `ValueSets.add`."""
        rows, news = self._index.put((groups + 1).astype(np.int32), values, bits)
        return groups[rows], news

    def lists(self) -> pa.Array:
        """All sets, as an Arrow column."""
        numbers, values, bits = self._index.members()
        offsets = np.zeros(self._size + 1, np.int32)
        np.cumsum(np.bincount(numbers - 1, minlength=self._size), out=offsets[1:])
        columns = [fixed_array(values, pa.int64()), fixed_array(bits, pa.uint8())]
        pairs = pa.StructArray.from_arrays(columns, fields=list(MEMBERS))
        buffers: list[Any] = [None, pa.py_buffer(offsets)]
        return pa.Array.from_buffers(LISTS, self._size, buffers, children=[pairs])


_SPARE = 1 << 16
"""Number of unused values in the index that is not worth a clean-up."""


class ValueSets(Bags):
    """The sets of one aggregate in a table: one per entry."""

    def __init__(self, name: str) -> None:
        # names of bags must not have dots
        super().__init__(name.replace("%", "%25").replace(".", "%2e"), MEMBERS)
        self._counts = Looks()
        self._drop()

    def add(self, entries: Array, values: Array, bits: Array) -> tuple[Array, Array]:
        """Add values to the sets of entries, which must be touched already.

        Returns the entries of new values or values with new bits, and those bits.
        """
        if not len(entries):
            return entries, bits
        self._follow()
        try:
            return self._added(entries, values, bits)
        except BaseException:
            # the index may know values that the bags do not hold
            self._drop()
            raise

    def tidy(self) -> None:
        """Drop rows that no entry holds, if they are the majority; the same for the index."""
        super().tidy()
        used = self._index.used
        if used <= _SPARE or not self._counts.worth(used, self._bound.cuts):
            return
        if used > 2 * int(self._cells[:, 1].sum()) + _SPARE:
            self._drop()

    @property
    def nbytes(self) -> int:
        """Bytes held, with spare room and the index."""
        known = self._known.nbytes + self._numbers.nbytes
        return super().nbytes + self._index.nbytes + known

    def _added(self, entries: Array, values: Array, bits: Array) -> tuple[Array, Array]:
        cells = self._cells
        out = np.empty(len(entries), np.int64)
        count = kernels.stale(entries, cells, self._known, self._numbers, self._next, out)
        if count:
            self._learn_anew(out[:count])
        rows, news = self._index.put(self._numbers[entries], values, bits)
        added = entries[rows]
        columns = [fixed_array(values[rows], pa.int64()), fixed_array(news, pa.uint8())]
        self.append(added, pa.RecordBatch.from_arrays(columns, schema=MEMBERS))
        kernels.learn(added, cells, self._known)
        return added, news

    def _drop(self) -> None:
        self._index, self._next = ValueIndex(), 1
        self._known, self._numbers = np.zeros((0, 2), np.int64), np.zeros(0, np.int32)
        self._seen = -1

    def _follow(self) -> None:
        """Follow changes of the table: new entries, or new numbers of entries and rows."""
        seen = self.renumberings + self._bound.renumberings
        if seen != self._seen or self._next > np.iinfo(np.int32).max // 2:
            self._drop()
            self._seen = seen
        size = len(self._cells)
        if size > len(self._numbers):
            self._known = grown(self._known, len(self._known), size + size // 2)
            self._numbers = grown(self._numbers, len(self._numbers), size + size // 2)

    def _learn_anew(self, entries: Array) -> None:
        self._next += len(entries)
        owner, ids = self.ids(entries)
        if len(ids):
            values = fixed_values(self.values("value", ids))
            bits = fixed_values(self.values("where", ids))
            self._index.put(self._numbers[entries[owner]], values, bits)


MOST_CONDITIONS = 8
"""Highest number of conditions per set: the number of bits of a value."""


@dataclass(frozen=True)
class SetColumn(Column):
    """A column of sets of temporary groups; a table has `ValueSets` in its place."""

    type: pa.DataType = LISTS

    def empty(self, room: int) -> Array:
        return cast("Array", PassingSets(room))

    def to_arrow(self, values: Array, valid: Array | None = None) -> pa.Array:
        return cast("PassingSets", values).lists()


@dataclass(frozen=True)
class DistinctSet(Accumulator):
    """The distinct values of a column, and their number under each condition."""

    column: str
    type: pa.DataType
    wheres: tuple[str | None, ...]
    """Conditions that share this set; None stands for all rows."""
    part: int = 0
    """Number of this set: a column with more than 8 conditions has several."""

    @property
    def name(self) -> str:
        return f"distinct({self.column})" + (f" {self.part}" if self.part else "")

    def count_name(self, where: str | None) -> str:
        """Name of the column with the number of values under a condition."""
        return named("count_distinct", self.column, where=where)

    @property
    def inputs(self) -> tuple[str, ...]:
        return with_where((self.column, *self.wheres), None)

    @property
    def columns(self) -> tuple[Column, ...]:
        counts = [Column(self.count_name(where), pa.int64()) for where in self.wheres]
        return (*self.combined, *counts)

    @property
    def combined(self) -> tuple[Column, ...]:
        return (SetColumn(self.name),)

    def update(self, state: State, entries: Array, batch: pa.RecordBatch) -> None:
        array = one_chunk(batch.column(self.column))
        bits = np.zeros(len(array), np.uint8)
        for place, where in enumerate(self.wheres):
            mask = true_rows(batch, where)
            bits |= np.uint8(1 << place) if mask is None else mask.view(np.uint8) << np.uint8(place)
        valid = valid_mask(array)
        if valid is not None:
            bits[~valid] = 0
        values = member_codes(array)
        some = bits != 0
        if not some.all():
            entries, values, bits = entries[some], values[some], bits[some]
        self._fold(state, entries, values, bits)

    def merge(self, state: State, entries: Array, combined: pa.RecordBatch) -> None:
        counts, values, bits = _members(combined.column(self.name))
        self._fold(state, np.repeat(entries, counts), values, bits)

    def _fold(self, state: State, entries: Array, values: Array, bits: Array) -> None:
        sets: Any = state(self.name)
        entries, bits = sets.add(entries, values, bits)
        for place, where in enumerate(self.wheres):
            new = entries[(bits >> np.uint8(place)) & np.uint8(1) != 0]
            kernels.count_rows(state(self.count_name(where)), new)


def member_codes(array: pa.Array) -> Array:
    """Values of at most 8 bytes as int64. Equal values get equal codes; so do both zeros, and all NaNs."""
    values = fixed_values(array)
    if values.dtype.kind == "f":
        numbers = values.astype(np.float64) + 0.0
        numbers[np.isnan(numbers)] = np.nan
        return numbers.view(np.int64)
    return values.view(np.int64) if values.dtype == np.uint64 else values.astype(np.int64)


def _members(lists: pa.Array) -> tuple[Array, Array, Array]:
    """The number of members of each list, and the values and bits of all members."""
    offsets = fixed_values(lists.offsets).astype(np.int64)
    counts = np.diff(offsets)
    low, high = int(offsets[0]), int(offsets[-1])
    members, bits = lists.values.slice(low, high - low).flatten()
    return counts, fixed_values(members), fixed_values(bits)
