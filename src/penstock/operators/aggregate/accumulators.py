"""Accumulators: the state of aggregates.

An aggregate is computed from one or two accumulators. Two aggregates may share one, such as a sum and an
average of the same column. Each accumulator owns some state columns. It folds in rows (`update`), and
partial states that couriers or burst workers have combined (`merge`). A combined state is sent as Arrow
columns in which null means "no value yet", so that merging works like updating.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa

from penstock.errors import SumOverflowError
from penstock.operators.aggregate import kernels
from penstock.state.arrays import (
    Array,
    filled_values,
    fixed_array,
    fixed_values,
    one_chunk,
    physical,
    valid_mask,
)
from penstock.state.table.columns import Column

State = Callable[[str], Array]
"""Function that maps the name of a state column to its values, indexed by entry."""


class Accumulator(ABC):
    """One part of an aggregate's state. A frozen value: equal accumulators share their state."""

    column: str | None
    """The input column to aggregate; None for a count of rows."""
    where: str | None
    """The input column of bools that selects the rows; None for all rows."""
    marks_seen: ClassVar[bool] = False
    """Whether a state column marks the entries that hold a value. If not, all entries do."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the first state column."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """The input columns that the accumulator reads."""
        return with_where((self.column,), self.where)

    @property
    @abstractmethod
    def combined(self) -> tuple[Column, ...]:
        """The columns of a combined state."""

    @property
    def columns(self) -> tuple[Column, ...]:
        """The state columns, in a table or a combiner."""
        seen = (Column(f"{self.name} seen", pa.bool_()),) if self.marks_seen else ()
        return (*self.combined, *seen)

    @abstractmethod
    def update(self, state: State, entries: Array, batch: pa.RecordBatch) -> None:
        """Fold in rows: row i belongs to entries[i]."""

    @abstractmethod
    def merge(self, state: State, entries: Array, combined: pa.RecordBatch) -> None:
        """Fold in combined states: row i belongs to entries[i]."""

    def seen(self, state: State, entries: Array | slice) -> Array | None:
        """Mask (bool) of the entries that hold a value; None if all do."""
        return state(f"{self.name} seen")[entries] if self.marks_seen else None


def is_fast(type: pa.DataType) -> bool:
    """Whether compiled code can fold values of this type."""
    dtype = physical(type)
    return dtype is not None and dtype != np.uint64


def carried(type: pa.DataType) -> pa.DataType:
    """The type of a state column for values of a fast type; its values are stored as int64 or float64."""
    if pa.types.is_temporal(type) and type.bit_width == 64:
        return type
    return pa.float64() if pa.types.is_floating(type) else pa.int64()


def numbers(array: pa.Array, dtype: type[np.int64 | np.float64] | None = None) -> Array:
    """The values of a fixed-width array as int64 or float64; undefined for nulls."""
    values = fixed_values(array)
    if dtype is None:
        dtype = np.float64 if values.dtype.kind == "f" else np.int64
    if values.dtype == np.uint64 and dtype is np.int64:
        return values.view(np.int64)
    return values.astype(dtype, copy=False)


def named(kind: str, column: str | None, by: str | None = None, where: str | None = None) -> str:
    """The name of an aggregate and of its state.

    >>> named("last", "city", by="at", where="paid"), named("count", None)
    ('last(city by at where paid)', 'count(*)')
    """
    by = f" by {by}" if by else ""
    return f"{kind}({column or '*'}{by}{f' where {where}' if where else ''})"


def true_rows(batch: pa.RecordBatch, where: str | None) -> Array | None:
    """Mask (bool) of the rows in which column `where` is true; null is false. None if `where` is None."""
    if where is None:
        return None
    return filled_values(one_chunk(batch.column(where)))


def chosen(
    batch: pa.RecordBatch, names: tuple[str, ...], where: str | None, entries: Array
) -> tuple[Array, list[pa.Array]]:
    """The entries and the named columns, restricted to rows in which `where` is true."""
    arrays = [one_chunk(batch.column(name)) for name in names]
    mask = true_rows(batch, where)
    if mask is None:
        return entries, arrays
    rows = np.flatnonzero(mask)
    places = fixed_array(rows, pa.int64())
    return entries[rows], [array.take(places) for array in arrays]


def with_where(names: tuple[str | None, ...], where: str | None) -> tuple[str, ...]:
    """The column names that are not None, with that of the condition."""
    return tuple(name for name in (*names, where) if name is not None)


@dataclass(frozen=True)
class Count(Accumulator):
    """The number of rows, or of rows in which a column is not null."""

    column: str | None = None
    where: str | None = None

    @property
    def name(self) -> str:
        return named("count", self.column, where=self.where)

    @property
    def combined(self) -> tuple[Column, ...]:
        return (Column(self.name, pa.int64()),)

    def update(self, state: State, entries: Array, batch: pa.RecordBatch) -> None:
        valid = self._counted(batch)
        kernels.count_rows(state(self.name), entries if valid is None else entries[valid])

    def merge(self, state: State, entries: Array, combined: pa.RecordBatch) -> None:
        kernels.add_counts(state(self.name), entries, numbers(combined.column(self.name)))

    def _counted(self, batch: pa.RecordBatch) -> Array | None:
        """Mask (bool) of the rows to count; None for all."""
        column = None if self.column is None else one_chunk(batch.column(self.column))
        return both(None if column is None else valid_mask(column), true_rows(batch, self.where))


class AnySum(Accumulator):
    """The sum of a column of numbers."""

    column: str

    def update(self, state: State, entries: Array, batch: pa.RecordBatch) -> None:
        entries, arrays = chosen(batch, (self.column,), self.where, entries)
        self.fold(state, entries, arrays[0])

    def merge(self, state: State, entries: Array, combined: pa.RecordBatch) -> None:
        self.fold(state, entries, combined.column(self.name))

    @abstractmethod
    def fold(self, state: State, entries: Array, array: pa.Array) -> None:
        """Add values: value i to the sum of entries[i]."""


@dataclass(frozen=True)
class Sum(AnySum):
    """The sum of a column as int64 or float64. An int64 overflow raises SumOverflowError."""

    column: str
    number: Literal["int", "float"]
    where: str | None = None
    marks_seen = True

    @property
    def name(self) -> str:
        name = named("sum", self.column, where=self.where)
        return name if self.number == "int" else f"float {name}"

    @property
    def combined(self) -> tuple[Column, ...]:
        return (Column(self.name, pa.int64() if self.number == "int" else pa.float64()),)

    def fold(self, state: State, entries: Array, array: pa.Array) -> None:
        values = numbers(array, np.int64 if self.number == "int" else np.float64)
        valid = valid_mask(array)
        if valid is not None:
            entries, values = entries[valid], values[valid]
        sums, seen = state(self.name), state(f"{self.name} seen")
        unsigned = array.type == pa.uint64()
        if self.number == "float":
            kernels.add(sums, seen, entries, values)
        elif (unsigned and np.any(values < 0)) or not kernels.add_exactly(
            sums, seen, entries, values
        ):
            raise SumOverflowError.of(self.column)


@dataclass(frozen=True)
class Pick(Accumulator):
    """One value of a column: the least, the greatest, the first or the last, picked by compiled code.

    First and last are by the order of processing, or by a second column.
    """

    kind: Literal["min", "max", "first", "last"]
    column: str
    type: pa.DataType
    by: str | None = None
    by_type: pa.DataType | None = None
    where: str | None = None
    marks_seen = True

    @property
    def name(self) -> str:
        return named(self.kind, self.column, self.by, self.where)

    @property
    def inputs(self) -> tuple[str, ...]:
        return with_where((self.column, self.by), self.where)

    @property
    def combined(self) -> tuple[Column, ...]:
        value = Column(self.name, self._held_as(self.type))
        if self.by is None:
            return (value,)
        return (value, Column(f"{self.name} rank", self._held_as(self.by_type)))

    def _held_as(self, type: pa.DataType) -> pa.DataType:
        """The type of a state column for values of a type."""
        return carried(type)

    def update(self, state: State, entries: Array, batch: pa.RecordBatch) -> None:
        names = with_where((self.column, self.by), None)
        self._fold(state, *chosen(batch, names, self.where, entries))

    def merge(self, state: State, entries: Array, combined: pa.RecordBatch) -> None:
        self._fold(state, entries, [combined.column(column.name) for column in self.combined])

    def _fold(self, state: State, entries: Array, arrays: list[pa.Array]) -> None:
        values = [numbers(array) for array in arrays]
        valid = _all_valid(arrays)
        if valid is not None:
            entries, values = entries[valid], [value[valid] for value in values]
        held, seen = state(self.name), state(f"{self.name} seen")
        if self.by is not None:
            by, latest = state(f"{self.name} rank"), self.kind == "last"
            kernels.put_by(held, by, seen, entries, values[0], values[1], latest)
        elif self.kind in ("min", "max"):
            kernels.put_by(held, held, seen, entries, values[0], values[0], self.kind == "max")
        else:
            put = kernels.put_first if self.kind == "first" else kernels.put_last
            put(held, seen, entries, values[0])


def _all_valid(arrays: list[pa.Array]) -> Array | None:
    """Mask (bool) of the rows without a null; None if there is no null at all."""
    valid = None
    for array in arrays:
        valid = both(valid, valid_mask(array))
    return valid


def both(one: Array | None, other: Array | None) -> Array | None:
    """The conjunction of two masks; None stands for a mask that is true everywhere."""
    if one is None or other is None:
        return other if one is None else one
    mask: Array = one & other
    return mask
