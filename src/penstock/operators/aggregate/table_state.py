"""The state of a plan's aggregates in a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.operators.aggregate.accumulators import State
from penstock.operators.aggregate.distinct_sets import DistinctSet
from penstock.operators.aggregate.value_sets import ValueSets
from penstock.state.buffers import Array
from penstock.state.columns import Column
from penstock.state.table import ColumnTable

if TYPE_CHECKING:
    from penstock.operators.aggregate.plan import AggregatePlan


class AggregateState:
    """Gives accumulators their columns by name. Make the table with its `columns`, then `bind`.

    Most columns are the plan's own. Sets of distinct values are bags with an index, so that a large
    one costs what is new in it and not what it holds.
    """

    columns: list[Column]

    def __init__(self, plan: AggregatePlan) -> None:
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
