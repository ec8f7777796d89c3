"""Accumulators for values that compiled code cannot hold, such as text, decimals and lists.

A batch is first reduced to one winner (or one sum) per key by Arrow and numpy; only the winners
become Python values.
"""

from __future__ import annotations

import decimal
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.operators.aggregate import kernels
from penstock.operators.aggregate.accumulators import AnySum, Pick, State, named
from penstock.state.arrays import Array, fixed_array, fixed_values, one_chunk, physical, valid_mask
from penstock.state.table.columns import Column

_EXACT = decimal.Context(prec=76)


@dataclass(frozen=True)
class DecimalSum(AnySum):
    """The exact sum of a column of decimals."""

    column: str
    scale: int
    where: str | None = None

    @property
    def name(self) -> str:
        return named("sum", self.column, where=self.where)

    @property
    def combined(self) -> tuple[Column, ...]:
        return (Column(self.name, pa.decimal256(76, self.scale)),)

    def fold(self, state: State, entries: Array, array: pa.Array) -> None:
        rows = pa.table({"entry": entries, "value": array.cast(self.columns[0].type)})
        sums = rows.group_by("entry").aggregate([("value", "sum")])
        held = state(self.name)
        pairs = zip(sums["entry"].to_pylist(), sums["value_sum"].to_pylist(), strict=True)
        for entry, value in pairs:
            if value is not None:
                old = held[entry]
                held[entry] = value if old is None else _EXACT.add(old, value)


@dataclass(frozen=True)
class ObjectPick(Pick):
    """A `Pick` for columns of any type, by Python objects."""

    def _held_as(self, type: pa.DataType) -> pa.DataType:
        return type

    def _fold(self, state: State, entries: Array, arrays: list[pa.Array]) -> None:
        for array in arrays:
            valid = valid_mask(array)
            if valid is not None:
                rows = fixed_array(np.flatnonzero(valid), pa.int64())
                entries, arrays = entries[valid], [array.take(rows) for array in arrays]
                return self._fold(state, entries, arrays)
        ordered = arrays[-1] if self.by is not None or self.kind in ("min", "max") else None
        distinct, best, groups = np.unique(entries, return_index=True, return_inverse=True)
        if len(distinct) < len(entries):
            ranks = _ranks(ordered, len(entries))
            best = kernels.best_rows(groups, ranks, len(distinct), self.kind in ("max", "last"))
        rows = fixed_array(best, pa.int64())
        values = _loose(arrays[0].take(rows))
        order = None if ordered is None else _loose(ordered.take(rows))
        wins = self._wins(state, distinct, order)
        winners = distinct[wins]
        state(self.name)[winners] = _column(values, state(self.name).dtype)[wins]
        state(f"{self.name} seen")[winners] = True
        if self.by is not None and order is not None:
            by = state(f"{self.name} rank")
            by[winners] = _column(order, by.dtype)[wins]
        return None

    def _wins(self, state: State, entries: Array, order: list[Any] | None) -> Array:
        """Mask (bool) of the entries whose value is replaced by the new one."""
        seen = state(f"{self.name} seen")[entries]
        if order is None:
            return seen | True if self.kind == "last" else ~seen
        held = state(self.name if self.by is None else f"{self.name} rank")[entries].tolist()
        pairs = zip(seen.tolist(), order, held, strict=True)
        if self.kind in ("max", "last"):
            return np.array([not s or not _less(new, old) for s, new, old in pairs], np.bool_)
        return np.array([not s or _less(new, old) for s, new, old in pairs], np.bool_)


def _less(one: Any, other: Any) -> bool:
    """Whether one value comes before another; NaN comes last."""
    before: bool = one < other or (other != other and one == one)
    return before


def _column(values: list[Any], dtype: np.dtype[Any]) -> Array:
    column = np.empty(len(values), dtype)
    column[:] = values
    return column


def _ranks(array: pa.Array | None, rows: int) -> Array:
    if array is None:
        return np.zeros(rows, np.int64)
    # Imported here: it takes 10 MB of memory, and most hosts do not need it.
    import pyarrow.compute as pc

    ranks = pc.rank(array, sort_keys="ascending", tiebreaker="dense")
    return fixed_values(one_chunk(ranks)).astype(np.int64)


def _loose(array: pa.Array) -> list[Any]:
    """Python values that can be assigned to a state column of their type."""
    if physical(array.type) is None:
        values: list[Any] = array.to_pylist()
        return values
    numbers: list[Any] = fixed_values(array).tolist()
    return numbers
