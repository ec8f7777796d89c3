"""Aggregates of groups that exist only while a batch is worked on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.state.arrays import Array

if TYPE_CHECKING:
    from penstock.operators.aggregate.plan import AggregatePlan


class PassingState:
    """The state of a plan's aggregates for so many groups, at first empty.

    >>> from penstock.operators.aggregate.aggregates import AggregatePlan, sum
    >>> schema = pa.schema([("v", pa.int64())])
    >>> state = PassingState(AggregatePlan(schema, [], {"total": sum("v")}), 2)
    >>> state.update(np.array([0, 1, 0]), pa.RecordBatch.from_pydict({"v": [1, 2, 3]}, schema))
    >>> state.results()[0].to_pylist()
    [4, 2]
    """

    def __init__(self, plan: AggregatePlan, groups: int) -> None:
        self._plan, self._groups = plan, groups
        self._values = {column.name: column.empty(groups) for column in plan.columns}

    def __call__(self, name: str) -> Array:
        """The live values of a state column."""
        return self._values[name]

    def update(self, groups: Array, rows: pa.RecordBatch) -> None:
        """Fold in rows: row i belongs to groups[i]."""
        for accumulator in self._plan.accumulators:
            accumulator.update(self, groups, rows)

    def merge(self, groups: Array, combined: pa.RecordBatch) -> None:
        """Fold in combined states: row i belongs to groups[i]."""
        for accumulator in self._plan.accumulators:
            accumulator.merge(self, groups, combined)

    def combined(self) -> list[pa.Array]:
        """The combined state of each group: columns of the plan's `partial_schema`."""
        everything = slice(0, self._groups)
        return [
            column.to_arrow(self(column.name), accumulator.seen(self, everything))
            for accumulator in self._plan.accumulators
            for column in accumulator.combined
        ]

    def results(self) -> list[pa.Array]:
        """The aggregates of each group."""
        return self._plan.results(self, np.arange(self._groups))
