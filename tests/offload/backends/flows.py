"""Flows for tests of burst workers. User code here is pickled by value, since burst workers cannot import
this module."""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import penstock.operators.aggregate.aggregates as ps
from penstock.offload.backends.messages import Request, Requests
from penstock.operators.aggregate.plan import AggregatePlan
from penstock.operators.join.plan import JoinPlan, Regular
from penstock.operators.operator import EpochTime
from penstock.operators.process.processor import KeyedProcessor
from penstock.operators.process.step import ProcessPlan
from penstock.plan.steps import BatchFunction, FlowPlan, KeyedStep, MapStep, SourcePlan

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])
COUNT = KeyedStep("count-2", 8, AggregatePlan(SCHEMA, ["k"], {"total": ps.sum("v")}))


def counting(function: BatchFunction) -> FlowPlan:
    """A flow that passes rows through a function of the user, then sums them by key."""
    return FlowPlan((SourcePlan(SCHEMA),), (MapStep("map-1", function, SCHEMA, SCHEMA), COUNT))


def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.set_column(1, "v", pc.multiply(batch.column("v"), 2))


def slow_or_wrong(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Key "slow" takes v milliseconds, key "wrong" fails; others are doubled."""
    for row in batch.to_pylist():
        if row["k"] == "slow":
            time.sleep(row["v"] / 1000)
        if row["k"] == "wrong":
            raise ValueError("such a row")
    return doubled(batch)


class Longest(KeyedProcessor):
    """Keeps the greatest value of each key. It merges."""

    output_schema = "k string, v long"

    def init(self, handle: Any) -> None:
        self.most = handle.get_value_state("most", "v long")

    def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> None:
        for row in rows:
            self._saw(row.v)

    def merge(self, other: Longest) -> None:
        self._saw(other.most.get().v)

    def handle_merged(self, key: Any, timers: Any) -> Any:
        yield key[0], self.most.get().v

    def _saw(self, v: int) -> None:
        known = self.most.get()
        if known is None or known.v < v:
            self.most.update((v,))


def users() -> FlowPlan:
    """A flow of a user's own aggregate, a processor that merges, and a join."""
    product = ps.aggregator(1, lambda s, v: s * v, lambda a, b: a * b, state="long")
    plans = {
        "product": AggregatePlan(SCHEMA, ["k"], {"product": product("v")}),
        "longest": ProcessPlan(SCHEMA, ["k"], Longest()),
    }
    steps = [KeyedStep(name, 8, plan, reads=(0,)) for name, plan in plans.items()]
    join = JoinPlan(SCHEMA, SCHEMA, (("k", "k"),), "inner", Regular())
    return FlowPlan((SourcePlan(SCHEMA),) * 2, (*steps, KeyedStep("pairs", 8, join, reads=(0, 1))))


def rows(*pairs: tuple[str | None, int]) -> pa.RecordBatch:
    columns: list[Any] = [[k for k, _ in pairs], [v for _, v in pairs]]
    return pa.RecordBatch.from_pydict(dict(zip(SCHEMA.names, columns, strict=True)), SCHEMA)


def request(flow: FlowPlan, *pairs: tuple[str | None, int], name: str = "test") -> Request:
    return Requests.of(flow, flow.steps, EpochTime(0, 0), name).one(0, [rows(*pairs)])
