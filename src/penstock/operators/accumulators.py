"""Accumulators: the pieces of state that aggregates are made of.

An aggregate is computed from one or two of them, and two aggregates may share one (a sum and an
average of the same column). Each owns some columns of state. It folds rows into them (`update`) and
states that couriers or functions have combined (`merge`); a combined state travels as Arrow columns
in which null stands for "nothing seen", so that merging is like updating.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

import numpy as np
import pyarrow as pa

from penstock.operators import aggregate_kernels as kernels
from penstock.state.buffers import (
    Array,
    fixed_array,
    fixed_values,
    one_chunk,
    physical,
    valid_mask,
)
from penstock.state.columns import Column
from penstock.state.keys import KeyCodec

State = Callable[[str], Array]
"""Gives the live values of a state column, by entry."""


class Accumulator(Protocol):
    """One piece of state. A frozen value: equal ones are kept once."""

    @property
    def columns(self) -> tuple[Column, ...]:
        """Its columns of state, in a table or a combiner."""
        ...

    @property
    def inputs(self) -> tuple[str, ...]:
        """The input columns that it reads."""
        ...

    @property
    def combined(self) -> tuple[Column, ...]:
        """Those of its columns that a combined state is made of."""
        ...

    def update(self, state: State, entries: Array, batch: pa.RecordBatch) -> None:
        """Fold in rows: row i belongs to entries[i]."""
        ...

    def merge(self, state: State, entries: Array, combined: pa.RecordBatch) -> None:
        """Fold in combined states: row i belongs to entries[i]."""
        ...

    def seen(self, state: State, entries: Array | slice) -> Array | None:
        """Which entries hold a value; None: all do."""
        ...


def is_fast(type: pa.DataType) -> bool:
    """Whether values of this type are folded by compiled code."""
    dtype = physical(type)
    return dtype is not None and dtype != np.uint64


def carried(type: pa.DataType) -> pa.DataType:
    """The type of a state column for values of a fast type: int64 or float64 beneath."""
    if pa.types.is_temporal(type) and type.bit_width == 64:
        return type
    return pa.float64() if pa.types.is_floating(type) else pa.int64()


def numbers(array: pa.Array, dtype: type[np.int64 | np.float64] | None = None) -> Array:
    """The values of a fixed-width array as int64 or float64; anything where they are null."""
    values = fixed_values(array)
    if dtype is None:
        dtype = np.float64 if values.dtype.kind == "f" else np.int64
    if values.dtype == np.uint64 and dtype is np.int64:
        return values.view(np.int64)
    return values.astype(dtype, copy=False)


@dataclass(frozen=True)
class Count:
    """The number of rows, or of rows in which a column is not null."""

    column: str | None = None

    @property
    def name(self) -> str:
        return f"count({self.column or '*'})"

    @property
    def inputs(self) -> tuple[str, ...]:
        return () if self.column is None else (self.column,)

    @property
    def columns(self) -> tuple[Column, ...]:
        return (Column(self.name, pa.int64()),)

    combined = columns

    def update(self, state: State, entries: Array, batch: pa.RecordBatch) -> None:
        valid = None if self.column is None else valid_mask(one_chunk(batch.column(self.column)))
        kernels.count_rows(state(self.name), entries if valid is None else entries[valid])

    def merge(self, state: State, entries: Array, combined: pa.RecordBatch) -> None:
        kernels.add_counts(state(self.name), entries, numbers(combined.column(self.name)))

    def seen(self, state: State, entries: Array | slice) -> Array | None:
        return None


@dataclass(frozen=True)
class Sum:
    """The sum of a column of numbers, as int64 (wrapping around) or as float64."""

    column: str
    number: Literal["int", "float"]

    @property
    def name(self) -> str:
        return f"sum({self.column})" if self.number == "int" else f"float sum({self.column})"

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def columns(self) -> tuple[Column, ...]:
        return (*self.combined, Column(f"{self.name} seen", pa.bool_()))

    @property
    def combined(self) -> tuple[Column, ...]:
        return (Column(self.name, pa.int64() if self.number == "int" else pa.float64()),)

    def update(self, state: State, entries: Array, batch: pa.RecordBatch) -> None:
        self._fold(state, entries, one_chunk(batch.column(self.column)))

    def merge(self, state: State, entries: Array, combined: pa.RecordBatch) -> None:
        self._fold(state, entries, combined.column(self.name))

    def seen(self, state: State, entries: Array | slice) -> Array | None:
        mask: Array = state(f"{self.name} seen")[entries]
        return mask

    def _fold(self, state: State, entries: Array, array: pa.Array) -> None:
        values = numbers(array, np.int64 if self.number == "int" else np.float64)
        valid = valid_mask(array)
        if valid is not None:
            entries, values = entries[valid], values[valid]
        kernels.add(state(self.name), state(f"{self.name} seen"), entries, values)


@dataclass(frozen=True)
class Pick:
    """One value of a column: the least, the greatest, the first or the last, in compiled code.

    First and last go by the order of processing, or by a second column.
    """

    kind: Literal["min", "max", "first", "last"]
    column: str
    type: pa.DataType
    by: str | None = None
    by_type: pa.DataType | None = None

    @property
    def name(self) -> str:
        return f"{self.kind}({self.column}{f' by {self.by}' if self.by else ''})"

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.column,) if self.by is None else (self.column, self.by)

    @property
    def columns(self) -> tuple[Column, ...]:
        return (*self.combined, Column(f"{self.name} seen", pa.bool_()))

    @property
    def combined(self) -> tuple[Column, ...]:
        value = Column(self.name, carried(self.type))
        if self.by is None:
            return (value,)
        return (value, Column(f"{self.name} rank", carried(self.by_type)))

    def update(self, state: State, entries: Array, batch: pa.RecordBatch) -> None:
        self._fold(state, entries, [one_chunk(batch.column(name)) for name in self.inputs])

    def merge(self, state: State, entries: Array, combined: pa.RecordBatch) -> None:
        self._fold(state, entries, [combined.column(column.name) for column in self.combined])

    def seen(self, state: State, entries: Array | slice) -> Array | None:
        mask: Array = state(f"{self.name} seen")[entries]
        return mask

    def _fold(self, state: State, entries: Array, arrays: list[pa.Array]) -> None:
        values = [numbers(array) for array in arrays]
        valid = _all_valid(arrays)
        if valid is not None:
            entries, values = entries[valid], [value[valid] for value in values]
        held, seen = state(self.name), state(f"{self.name} seen")
        if self.by is None:
            _PLAIN[self.kind](held, seen, entries, values[0])
        else:
            kernel = kernels.put_first_by if self.kind == "first" else kernels.put_last_by
            kernel(held, state(f"{self.name} rank"), seen, entries, values[0], values[1])


_PLAIN = {
    "min": kernels.least,
    "max": kernels.greatest,
    "first": kernels.put_first,
    "last": kernels.put_last,
}


def _all_valid(arrays: list[pa.Array]) -> Array | None:
    """True in rows without a null; None when there is no null at all."""
    valid = None
    for array in arrays:
        mask = valid_mask(array)
        if mask is not None:
            valid = mask if valid is None else valid & mask
    return valid


@dataclass(frozen=True)
class Distinct:
    """HyperLogLog registers of a column's values: 2**precision bytes per key."""

    column: str
    type: pa.DataType
    precision: int

    @property
    def name(self) -> str:
        return f"distinct({self.column}, {self.precision})"

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def columns(self) -> tuple[Column, ...]:
        return (Column(self.name, pa.uint8(), 1 << self.precision),)

    combined = columns

    @cached_property
    def _codec(self) -> KeyCodec:
        return KeyCodec(pa.schema([(self.column, self.type)]))

    def update(self, state: State, entries: Array, batch: pa.RecordBatch) -> None:
        rows = batch.select([self.column])
        null = self._codec.null_rows(rows)
        if null is not None:
            rows, entries = rows.filter(fixed_array(~null, pa.bool_())), entries[~null]
        hashes = self._codec.encode(rows).hashes
        kernels.raise_registers(state(self.name), entries, hashes, self.precision)

    def merge(self, state: State, entries: Array, combined: pa.RecordBatch) -> None:
        others = self.columns[0].from_arrow(combined.column(self.name))
        kernels.merge_registers(state(self.name), entries, others)

    def seen(self, state: State, entries: Array | slice) -> Array | None:
        return None

    def estimate(self, state: State, entries: Array) -> Array:
        """The number of distinct values of each entry."""
        found: Array = kernels.estimate(state(self.name), entries, self.precision)
        return np.rint(found).astype(np.int64)
