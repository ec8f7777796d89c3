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
from penstock.operators.operator import EpochTime
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


def rows(*pairs: tuple[str | None, int]) -> pa.RecordBatch:
    columns: list[Any] = [[k for k, _ in pairs], [v for _, v in pairs]]
    return pa.RecordBatch.from_pydict(dict(zip(SCHEMA.names, columns, strict=True)), SCHEMA)


def request(flow: FlowPlan, *pairs: tuple[str | None, int], name: str = "test") -> Request:
    return Requests.of(flow, flow.steps, EpochTime(0, 0), name).one(0, [rows(*pairs)])
