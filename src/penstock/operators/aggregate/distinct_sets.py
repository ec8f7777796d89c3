"""Exact counts of distinct values: the state of `count_distinct`.

One set serves all `count_distinct` of a column, whatever their conditions (`where`): each value is
kept with the conditions that have held in some row with it, as bits. In a table a set is a bag, with
an index beside it (see `value_sets`); in a combiner, and wherever else state lives only for a while,
the index is all there is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pyarrow as pa

from penstock.operators.aggregate import kernels
from penstock.operators.aggregate.accumulators import State, named, true_rows, with_where
from penstock.operators.aggregate.value_index import LISTS, PassingSets
from penstock.state.arrays import Array, fixed_values, one_chunk, valid_mask
from penstock.state.table.columns import Column

MOST_CONDITIONS = 8
"""As many as there are bits beside a value."""


@dataclass(frozen=True)
class SetColumn(Column):
    """Sets of groups that exist only for a while; a table has `ValueSets` in its place."""

    type: pa.DataType = LISTS

    def empty(self, room: int) -> Array:
        return cast("Array", PassingSets(room))

    def to_arrow(self, values: Array, valid: Array | None = None) -> pa.Array:
        return cast("PassingSets", values).lists()


@dataclass(frozen=True)
class DistinctSet:
    """The distinct values of a column, and how many there are under each condition."""

    column: str
    type: pa.DataType
    wheres: tuple[str | None, ...]
    """Conditions; None: any row counts."""
    part: int = 0
    """A column with very many conditions has several sets."""

    @property
    def name(self) -> str:
        return f"distinct({self.column})" + (f" {self.part}" if self.part else "")

    def count_name(self, where: str | None) -> str:
        """The column with the number of values under a condition."""
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

    def seen(self, state: State, entries: Array | slice) -> Array | None:
        return None

    def _fold(self, state: State, entries: Array, values: Array, bits: Array) -> None:
        sets: Any = state(self.name)
        entries, bits = sets.add(entries, values, bits)
        for place, where in enumerate(self.wheres):
            new = entries[(bits >> np.uint8(place)) & np.uint8(1) != 0]
            kernels.count_rows(state(self.count_name(where)), new)


def member_codes(array: pa.Array) -> Array:
    """Values of at most 8 bytes as int64, equal where they are: zeros and NaNs of any sign."""
    values = fixed_values(array)
    if values.dtype.kind == "f":
        numbers = values.astype(np.float64) + 0.0
        numbers[np.isnan(numbers)] = np.nan
        return numbers.view(np.int64)
    return values.view(np.int64) if values.dtype == np.uint64 else values.astype(np.int64)


def _members(lists: pa.Array) -> tuple[Array, Array, Array]:
    """How many members each list has, and the values and bits of all of them."""
    offsets = fixed_values(lists.offsets).astype(np.int64)
    counts = np.diff(offsets)
    low, high = int(offsets[0]), int(offsets[-1])
    members, bits = lists.values.slice(low, high - low).flatten()
    return counts, fixed_values(members), fixed_values(bits)
