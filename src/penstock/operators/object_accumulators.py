"""Accumulators for values that compiled code cannot hold: text, decimals, lists and the like.

A batch is first reduced to one winner (or one sum) per key by Arrow and numpy; only the winners
become Python values.
"""

from __future__ import annotations

import decimal
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.operators import aggregate_kernels as kernels
from penstock.operators.accumulators import State
from penstock.state.buffers import Array, fixed_values, one_chunk, physical, valid_mask
from penstock.state.columns import Column

_EXACT = decimal.Context(prec=76)


@dataclass(frozen=True)
class DecimalSum:
    """The exact sum of a column of decimals."""

    column: str
    scale: int

    @property
    def name(self) -> str:
        return f"sum({self.column})"

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def columns(self) -> tuple[Column, ...]:
        return (Column(self.name, pa.decimal256(76, self.scale)),)

    combined = columns

    def update(self, state: State, entries: Array, batch: pa.RecordBatch) -> None:
        self._fold(state, entries, one_chunk(batch.column(self.column)))

    def merge(self, state: State, entries: Array, combined: pa.RecordBatch) -> None:
        self._fold(state, entries, combined.column(self.name))

    def seen(self, state: State, entries: Array | slice) -> Array | None:
        return None

    def _fold(self, state: State, entries: Array, array: pa.Array) -> None:
        rows = pa.table({"entry": entries, "value": array.cast(self.columns[0].type)})
        sums = rows.group_by("entry").aggregate([("value", "sum")])
        held = state(self.name)
        pairs = zip(sums["entry"].to_pylist(), sums["value_sum"].to_pylist(), strict=True)
        for entry, value in pairs:
            if value is not None:
                old = held[entry]
                held[entry] = value if old is None else _EXACT.add(old, value)


@dataclass(frozen=True)
class ObjectPick:
    """One value of a column of any type: the least, the greatest, the first or the last."""

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
        value = Column(self.name, self.type)
        return (value,) if self.by is None else (value, Column(f"{self.name} rank", self.by_type))

    def update(self, state: State, entries: Array, batch: pa.RecordBatch) -> None:
        self._fold(state, entries, [one_chunk(batch.column(name)) for name in self.inputs])

    def merge(self, state: State, entries: Array, combined: pa.RecordBatch) -> None:
        self._fold(state, entries, [combined.column(column.name) for column in self.combined])

    def seen(self, state: State, entries: Array | slice) -> Array | None:
        mask: Array = state(f"{self.name} seen")[entries]
        return mask

    def _fold(self, state: State, entries: Array, arrays: list[pa.Array]) -> None:
        for array in arrays:
            valid = valid_mask(array)
            if valid is not None:
                rows = pa.array(np.flatnonzero(valid))
                entries, arrays = entries[valid], [array.take(rows) for array in arrays]
                return self._fold(state, entries, arrays)
        latest = self.kind in ("max", "last")
        ordered = arrays[-1] if self.by is not None or self.kind in ("min", "max") else None
        distinct, groups = np.unique(entries, return_inverse=True)
        best = kernels.best_rows(groups, _ranks(ordered, len(entries)), len(distinct), latest)
        values = _loose(arrays[0].take(pa.array(best)))
        ranks = None if ordered is None else _loose(ordered.take(pa.array(best)))
        self._put(state, distinct.tolist(), values, ranks, latest)
        return None

    def _put(
        self, state: State, entries: list[int], values: list[Any], ranks: list[Any] | None,
        latest: bool,
    ) -> None:  # fmt: skip
        held, seen = state(self.name), state(f"{self.name} seen")
        by = held if self.by is None else state(f"{self.name} rank")
        for i, entry in enumerate(entries):
            if seen[entry]:
                if ranks is None:
                    wins = latest
                elif latest:
                    wins = not _less(ranks[i], by[entry])
                else:
                    wins = _less(ranks[i], by[entry])
                if not wins:
                    continue
            seen[entry] = True
            held[entry] = values[i]
            if self.by is not None and ranks is not None:
                by[entry] = ranks[i]


def _less(one: Any, other: Any) -> bool:
    """Whether one value comes before another; NaN comes last."""
    return bool(one < other or (other != other and one == one))


def _ranks(array: pa.Array | None, rows: int) -> Array:
    if array is None:
        return np.zeros(rows, np.int64)
    ranks = pc.rank(array, sort_keys="ascending", tiebreaker="dense")
    return fixed_values(one_chunk(ranks)).astype(np.int64)


def _loose(array: pa.Array) -> list[Any]:
    """Values as a state column of their type takes them."""
    if physical(array.type) is None:
        values: list[Any] = array.to_pylist()
        return values
    return list(fixed_values(array))
