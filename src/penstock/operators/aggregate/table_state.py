"""The state of a plan's aggregates in a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.operators.aggregate.accumulators import State
from penstock.operators.aggregate.combiner import unpack
from penstock.operators.aggregate.distinct_sets import DistinctSet
from penstock.operators.aggregate.value_sets import ValueSets
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
