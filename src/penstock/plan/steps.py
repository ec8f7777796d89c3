"""The steps of a flow, compiled: schemas known, ready to be shipped to couriers and hosts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from penstock.operators.aggregate_step import AggregateOperator
from penstock.operators.aggregates import AggregatePlan
from penstock.operators.operator import Operator
from penstock.operators.process_step import ProcessOperator, ProcessPlan
from penstock.state.keys import KeyCodec

OnError = Literal["fail", "dead_letter"]
BatchFunction = Callable[[pa.RecordBatch], Any]


@dataclass(frozen=True)
class MapStep:
    """A stateless step between keyed ones: a user's function on Arrow batches, run by couriers."""

    id: str
    function: BatchFunction
    input: pa.Schema
    output: pa.Schema


@dataclass(frozen=True)
class KeyedStep:
    """A step with state: its key space is cut into slots, which hosts own."""

    id: str
    slots: int
    plan: AggregatePlan | ProcessPlan
    on_error: OnError = "fail"

    @property
    def keys(self) -> list[str]:
        return list(self.plan.key_names)

    @property
    def codec(self) -> KeyCodec:
        return self.plan.codec

    @property
    def output(self) -> pa.Schema:
        return self.plan.output

    @property
    def has_timers(self) -> bool:
        """Whether the step needs epochs even when its stream is quiet."""
        return isinstance(self.plan, ProcessPlan) and self.plan.has_timers

    def operator(self) -> Operator:
        """A new, empty operator for one host."""
        if isinstance(self.plan, AggregatePlan):
            return AggregateOperator(self.plan, self.slots, self.id)
        return ProcessOperator(self.plan, self.slots, self.id, on_error=self.on_error)


Step = MapStep | KeyedStep


@dataclass(frozen=True)
class FlowPlan:
    """A whole flow, ready to run."""

    input: pa.Schema
    steps: tuple[Step, ...]
    arrival: str | None = None
    event_time: str | None = None
    delay_ms: int = 0
    on_error: OnError = "fail"

    @property
    def output(self) -> pa.Schema:
        return self.steps[-1].output if self.steps else self.input

    @property
    def keyed(self) -> tuple[KeyedStep, ...]:
        return tuple(step for step in self.steps if isinstance(step, KeyedStep))
