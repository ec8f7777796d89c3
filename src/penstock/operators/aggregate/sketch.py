"""Approximate numbers of distinct values: the state of `approx_distinct`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from penstock.operators.aggregate import kernels
from penstock.operators.aggregate.accumulators import Accumulator, State, both, true_rows
from penstock.state.arrays import Array, fixed_array
from penstock.state.keys.codec import KeyCodec
from penstock.state.table.columns import Column


@dataclass(frozen=True)
class DistinctSketch(Accumulator):
    """HyperLogLog registers of a column's values: 2**precision bytes per key."""

    column: str
    type: pa.DataType
    precision: int
    where: str | None = None

    @property
    def name(self) -> str:
        where = f" where {self.where}" if self.where else ""
        return f"distinct({self.column}, {self.precision}{where})"

    @property
    def combined(self) -> tuple[Column, ...]:
        return (Column(self.name, pa.uint8(), 1 << self.precision),)

    @cached_property
    def _codec(self) -> KeyCodec:
        return KeyCodec(pa.schema([(self.column, self.type)]))

    def update(self, state: State, entries: Array, batch: pa.RecordBatch) -> None:
        rows = batch.select([self.column])
        null = self._codec.null_rows(rows)
        some = both(None if null is None else ~null, true_rows(batch, self.where))
        if some is not None:
            rows, entries = rows.filter(fixed_array(some, pa.bool_())), entries[some]
        hashes = self._codec.encode(rows).hashes
        kernels.raise_registers(state(self.name), entries, hashes, self.precision)

    def merge(self, state: State, entries: Array, combined: pa.RecordBatch) -> None:
        others = self.columns[0].from_arrow(combined.column(self.name))
        kernels.merge_registers(state(self.name), entries, others)

    def estimate(self, state: State, entries: Array) -> Array:
        """The estimated number of distinct values of each entry."""
        estimates: Array = kernels.estimate(state(self.name), entries, self.precision)
        return np.rint(estimates).astype(np.int64)
