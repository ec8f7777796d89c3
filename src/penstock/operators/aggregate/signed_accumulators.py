"""Counts and sums of a change stream, in which rows are also taken back.

Rows have a column `_change`: 1 if the row is put in, -1 if it is taken back. A sum is null when as many
values were taken back as were put in.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.errors import SumOverflowError
from penstock.operators.aggregate import kernels
from penstock.operators.aggregate.accumulators import (
    Accumulator,
    AnySum,
    Count,
    State,
    chosen,
    numbers,
    with_where,
)
from penstock.operators.operator import CHANGE
from penstock.state.arrays import Array, filled_values, fixed_array, one_chunk, valid_mask
from penstock.state.table.columns import Column

_LEAST = np.iinfo(np.int64).min
"""Smallest int64, the only one that cannot be negated."""


@dataclass(frozen=True)
class SignedCount(Count):
    """The number of rows put in minus those taken back, or of those in which a column is not null."""

    @property
    def inputs(self) -> tuple[str, ...]:
        return with_where((self.column, CHANGE), self.where)

    def update(self, state: State, entries: Array, batch: pa.RecordBatch) -> None:
        signs, valid = _signs(batch.column(CHANGE)), self._counted(batch)
        if valid is not None:
            entries, signs = entries[valid], signs[valid]
        kernels.add_counts(state(self.name), entries, signs)


@dataclass(frozen=True)
class SignedSum(Accumulator):
    """The sum of the values put in minus those taken back, and the number of remaining values."""

    sum: AnySum

    @property
    def name(self) -> str:
        return self.sum.name

    @property
    def rows(self) -> str:
        """Name of the column with the number of remaining values."""
        return f"{self.name} rows"

    @property
    def inputs(self) -> tuple[str, ...]:
        return (*self.sum.inputs, CHANGE)

    @property
    def columns(self) -> tuple[Column, ...]:
        return (*self.sum.columns, Column(self.rows, pa.int64()))

    @property
    def combined(self) -> tuple[Column, ...]:
        return (*self.sum.combined, Column(self.rows, pa.int64()))

    def update(self, state: State, entries: Array, batch: pa.RecordBatch) -> None:
        names = (self.sum.column, CHANGE)
        entries, (values, change) = chosen(batch, names, self.sum.where, entries)
        valid, signs = valid_mask(values), _signs(change)
        if valid is not None:
            entries, signs = entries[valid], signs[valid]
            values = values.drop_null()
        self.sum.fold(state, entries, _times(self.sum.column, values, signs))
        kernels.add_counts(state(self.rows), entries, signs)

    def merge(self, state: State, entries: Array, combined: pa.RecordBatch) -> None:
        self.sum.merge(state, entries, combined)
        kernels.add_counts(state(self.rows), entries, numbers(combined.column(self.rows)))

    def there(self, state: State, entries: Array) -> Array:
        """Mask (bool) of the entries that have a sum."""
        mask: Array = state(self.rows)[entries] > 0
        return mask

    def settle(self, state: State, entries: Array) -> None:
        """Reset float sums without values to 0, to remove rounding errors, infinities and NaN."""
        held = state(self.name)
        if held.dtype == np.float64:
            held[entries[state(self.rows)[entries] == 0]] = 0

    def is_open(self, state: State, entries: Array) -> Array:
        """Mask (bool) of the entries with no remaining values but a sum that is not zero: a value was taken
        back before it was put in. In a live flow changes may overtake one another while slots move."""
        held = state(self.name)[entries]
        if held.dtype == object:
            held = np.array([value is not None and value != 0 for value in held], np.bool_)
        mask: Array = (state(self.rows)[entries] == 0) & (held != 0)
        return mask


def _signs(change: pa.Array | pa.ChunkedArray) -> Array:
    return filled_values(one_chunk(change)).astype(np.int64, copy=False)


def _times(column: str, values: pa.Array, signs: Array) -> pa.Array:
    """The values, which have no nulls, multiplied by their signs."""
    if pa.types.is_decimal(values.type):
        import pyarrow.compute as pc

        whole = values.cast(pa.decimal256(56, values.type.scale))
        return pc.multiply(whole, fixed_array(signs, pa.int64()).cast(pa.decimal256(19, 0)))
    if pa.types.is_floating(values.type):
        return fixed_array(numbers(values) * signs, pa.float64())
    whole = numbers(values, np.int64)
    if np.any((whole == _LEAST) & (signs < 0)):
        raise SumOverflowError.of(column)
    return fixed_array(whole * signs, pa.int64())
