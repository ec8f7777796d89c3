"""The plan of an aggregate step: its state and its output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from penstock.errors import FlowError
from penstock.operators.aggregate import step as aggregate_step
from penstock.operators.aggregate.accumulators import Accumulator, State
from penstock.operators.aggregate.combiner import Combiner, CombiningSender
from penstock.operators.aggregate.compiled import Aggregate, compiled
from penstock.operators.aggregate.signed_accumulators import SignedCount
from penstock.operators.operator import (
    CHANGE,
    PARTIALS,
    ROWS,
    Emit,
    EpochTime,
    OnError,
    Operator,
    Sender,
    StepPlan,
)
from penstock.state.arrays import Array
from penstock.state.keys.codec import Keys
from penstock.state.table.columns import Column
from penstock.state.table.table import KEY

__all__ = ["Aggregate", "AggregatePlan"]


class AggregatePlan(StepPlan):
    """The aggregates of one step, checked against its input.

    If the input has a column `_change`, rows may be taken back. With `emit="changes"` the output has such
    a column too, as its last.

    >>> plan = AggregatePlan(
    ...     pa.schema([("user", pa.string()), ("spent", pa.int32())]),
    ...     ["user"], {"total": Aggregate("sum", "spent"), "mean": Aggregate("avg", "spent")})
    >>> [f"{field.name} {field.type}" for field in plan.output]
    ['user string', 'total int64', 'mean double']
    >>> [column.name for column in plan.columns]
    ['sum(spent)', 'sum(spent) seen', 'count(spent)']
    """

    merges = True
    columns: list[Column]
    """State columns in a combiner; for those in a table see `AggregateState`."""
    partial_schema: pa.Schema
    """Schema of combined states, without the key. Null means that there was no value."""
    packed_schema: pa.Schema
    """Schema of combined states on the wire: the key, then `partial_schema`."""
    raw_names: list[str]
    """The input columns that a host needs: those of the key and of the aggregates."""
    signed: bool
    """Whether the input is a change stream. Then a key is removed when its last row is taken back."""

    def __init__(
        self,
        input_schema: pa.Schema,
        key_names: Sequence[str],
        aggregates: dict[str, Aggregate],
        emit: Emit = "update",
        nulls: bool = False,
    ) -> None:
        self._read(input_schema, key_names, nulls)
        self.aggregates, self.emit = dict(aggregates), emit
        self._check()
        self._parts = compiled(self.aggregates, input_schema)
        results = [
            pa.field(name, part.type) for name, part in zip(aggregates, self._parts, strict=True)
        ]
        change = [pa.field(CHANGE, pa.int8())] if emit == "changes" else []
        self.output = pa.schema(
            [*(input_schema.field(name) for name in key_names), *results, *change]
        )
        self.signed = CHANGE in input_schema.names
        parts: list[Accumulator] = [a for part in self._parts for a in part.accumulators]
        if self.signed:
            parts.append(SignedCount())
        self.accumulators = list(dict.fromkeys(parts))
        self.columns = [column for a in self.accumulators for column in a.columns]
        self.partial_schema = pa.schema(
            [(c.name, c.storage_type) for a in self.accumulators for c in a.combined]
        )
        self.packed_schema = pa.schema([(KEY, self.codec.storage_type), *self.partial_schema])
        inputs = [name for a in self.accumulators for name in a.inputs]
        self.raw_names = list(dict.fromkeys([*key_names, *inputs])) or input_schema.names[:1]

    @property
    def wire(self) -> dict[str, pa.Schema]:
        """The schema of batches sent to hosts, by kind."""
        rows = pa.schema([self.inputs[0].field(name) for name in self.raw_names])
        return {ROWS: rows, PARTIALS: self.packed_schema}

    def __str__(self) -> str:
        return ", ".join(f"{name}={aggregate}" for name, aggregate in self.aggregates.items())

    def sender(self, time: EpochTime, two_stage: bool = False) -> Sender:
        """Create a sender that combines rows where that pays, or always with `two_stage`."""
        return CombiningSender(self.codec, Combiner(self, two_stage))

    def sent_keys(self, batch: pa.RecordBatch) -> Keys:
        """The keys of rows or of combined states."""
        combined = batch.schema.equals(self.packed_schema)
        return self.codec.from_storage(batch.column(KEY)) if combined else self.codec.encode(batch)

    @property
    def code(self) -> tuple[Any, ...]:
        return tuple(a.functions.code for a in self.aggregates.values() if a.functions is not None)

    def operator(
        self, slots: int, step_id: str, on_error: OnError, ordered: bool = False
    ) -> Operator:
        return aggregate_step.AggregateOperator(self, slots, step_id, ordered)

    def results(self, state: State, entries: Array) -> list[pa.Array]:
        """The values of the aggregates for these entries, in output order."""
        return [part.result(state, entries) for part in self._parts]

    def _check(self) -> None:
        for name in self.aggregates:
            if name in self.key_names:
                raise FlowError(
                    f"{name!r} is both a key column and an aggregate", hint="rename the aggregate"
                )
        if CHANGE in (*self.key_names, *self.aggregates):
            raise FlowError(
                f"the column name {CHANGE!r} is reserved for change streams",
                hint="use another name for the key column or the aggregate",
            )
        if self.emit not in ("update", "changes"):
            raise FlowError(
                f"an aggregate without a window cannot emit on {self.emit!r}",
                hint='use "update" or "changes", or a window',
            )
