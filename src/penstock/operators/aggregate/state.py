"""The state of a plan's aggregates: in a table, or of temporary groups while a batch is processed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.operators.aggregate.accumulators import State
from penstock.operators.aggregate.distinct_sets import DistinctSet, ValueSets
from penstock.operators.operator import PARTIALS
from penstock.state.arrays import Array
from penstock.state.keys.codec import KeyCodec, Keys
from penstock.state.table.columns import Column
from penstock.state.table.table import KEY, ColumnTable

if TYPE_CHECKING:
    from penstock.operators.aggregate.plan import AggregatePlan


class AggregateState:
    """The state columns of accumulators in a table. Create the table with its `columns`, then `bind`.

    Most columns are those of the plan. Sets of distinct values are bags with an index, so that the cost of
    an update depends on the number of new values and not on the size of the set.
    """

    columns: list[Column]
    """Columns for the table."""

    def __init__(self, plan: AggregatePlan) -> None:
        self._plan = plan
        sets = [a.name for a in plan.accumulators if isinstance(a, DistinctSet)]
        self._sets = {name: ValueSets(name) for name in sets}
        self.columns = [
            self._sets[column.name].column if column.name in self._sets else column
            for column in plan.columns
        ]

    def bind(self, table: ColumnTable) -> None:
        """Use this table, which was created with `columns`."""
        self._table = table
        for sets in self._sets.values():
            sets.bind(table)

    def take_in(self, kind: str, batch: pa.RecordBatch) -> tuple[Keys, Array]:
        """Fold in a batch of rows or of combined states. Returns its keys and their entries."""
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
        """The values of a state column, indexed by entry; or a `ValueSets`."""
        return self._sets[name] if name in self._sets else self._table.column(name)

    def before(self, entries: Array) -> State:
        """The values of these entries as of the end of the last round: value i is that of entries[i]."""
        return lambda name: self._table.before(name, entries)

    def tidy(self) -> None:
        """Drop set members that no entry holds, if they are the majority. Called when a round begins."""
        for sets in self._sets.values():
            sets.tidy()


class PassingState:
    """The state of a plan's aggregates for temporary groups; empty at first."""

    def __init__(self, plan: AggregatePlan, room: int = 0) -> None:
        self._plan = plan
        self._values = {column.name: column.empty(room) for column in plan.columns}

    def __call__(self, name: str) -> Array:
        """The values of a state column, indexed by group."""
        return self._values[name]

    def grow(self, groups: int, room: int) -> None:
        """Make room for `room` groups, keeping the first `groups`."""
        for column in self._plan.columns:
            old = self._values[column.name]
            if len(old) < room:
                new = self._values[column.name] = column.empty(room)
                new[:groups] = old[:groups]

    def update(self, groups: Array, rows: pa.RecordBatch) -> None:
        """Fold in rows: row i belongs to groups[i]."""
        for accumulator in self._plan.accumulators:
            accumulator.update(self, groups, rows)

    def merge(self, groups: Array, combined: pa.RecordBatch) -> None:
        """Fold in combined states: row i belongs to groups[i]."""
        for accumulator in self._plan.accumulators:
            accumulator.merge(self, groups, combined)

    def combined(self, groups: int) -> list[pa.Array]:
        """The combined states of the first `groups` groups: columns of the plan's `partial_schema`."""
        first = slice(0, groups)
        return [
            column.to_arrow(self(column.name)[first], accumulator.seen(self, first))
            for accumulator in self._plan.accumulators
            for column in accumulator.combined
        ]

    def results(self, groups: int) -> list[pa.Array]:
        """The aggregates of the first `groups` groups."""
        return self._plan.results(self, np.arange(groups))


def pack(codec: KeyCodec, keys: Keys, partials: pa.RecordBatch) -> pa.RecordBatch:
    """Put the keys before their combined states, for the wire."""
    schema = pa.schema([pa.field(KEY, codec.storage_type), *partials.schema])
    return pa.RecordBatch.from_arrays([codec.to_storage(keys), *partials.columns], schema=schema)


def unpack(codec: KeyCodec, batch: pa.RecordBatch) -> tuple[Keys, pa.RecordBatch]:
    """Split a batch made by `pack` into keys and combined states."""
    keys = codec.from_storage(batch.column(KEY))
    return keys, batch.select([name for name in batch.schema.names if name != KEY])
