"""The state of a plan's aggregates: in a table, or of groups that exist only while a batch is worked on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.operators.aggregate.accumulators import State
from penstock.operators.aggregate.combiner import unpack
from penstock.operators.aggregate.distinct_sets import DistinctSet, ValueSets
from penstock.operators.operator import PARTIALS
from penstock.state.arrays import Array
from penstock.state.keys.codec import Keys
from penstock.state.table.columns import Column
from penstock.state.table.table import ColumnTable

if TYPE_CHECKING:
    from penstock.operators.aggregate.plan import AggregatePlan


class AggregateState:
    """Gives accumulators their columns by name. Make the table with its `columns`, then `bind`.

    Most columns are the plan's own. Sets of distinct values are bags with an index, so that a large
    one costs what is new in it and not what it holds.
    """

    columns: list[Column]

    def __init__(self, plan: AggregatePlan) -> None:
        self._plan = plan
        sets = [a.name for a in plan.accumulators if isinstance(a, DistinctSet)]
        self._sets = {name: ValueSets(name) for name in sets}
        self.columns = [
            self._sets[column.name].column if column.name in self._sets else column
            for column in plan.columns
        ]

    def bind(self, table: ColumnTable) -> None:
        """This is the table with the columns."""
        self._table = table
        for sets in self._sets.values():
            sets.bind(table)

    def keys(self, kind: str, batch: pa.RecordBatch) -> Keys:
        """The keys of a batch of a channel."""
        codec = self._plan.codec
        return unpack(codec, batch)[0] if kind == PARTIALS else codec.encode(batch)

    def take_in(self, kind: str, batch: pa.RecordBatch) -> tuple[Keys, Array]:
        """Fold in a batch, of rows or of combined states; gives its keys and their entries."""
        plan = self._plan
        if kind == PARTIALS:
            keys, partials = unpack(plan.codec, batch)
            entries = self._table.upsert(keys)
            for accumulator in plan.accumulators:
                accumulator.merge(self, entries, partials)
        else:
            keys = plan.codec.encode(batch)
            entries = self._table.upsert(keys)
            for accumulator in plan.accumulators:
                accumulator.update(self, entries, batch)
        return keys, entries

    def __call__(self, name: str) -> Any:
        """The live values of a state column, by entry; or a `ValueSets`."""
        return self._sets[name] if name in self._sets else self._table.column(name)

    def before(self, entries: Array) -> State:
        """The values of these entries as of the last seal: value i is that of entries[i]."""
        return lambda name: self._table.before(name, entries)

    def tidy(self) -> None:
        """An epoch opens: forget what no entry holds any more, if it prevails."""
        for sets in self._sets.values():
            sets.tidy()


class PassingState:
    """The state of a plan's aggregates for a number of groups, at first empty.

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
