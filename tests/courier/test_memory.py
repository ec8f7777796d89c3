"""A courier frees rows: it holds only a few batches at a time, however long its input is."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import penstock.operators.aggregate.aggregates as ps
from penstock.courier import channels, delivery
from penstock.courier.courier import Courier
from penstock.courier.delivery import Task
from penstock.courier.witness import Witness
from penstock.model import HostId, StepId
from penstock.operators.aggregate import combiner
from penstock.operators.aggregate.plan import AggregatePlan
from penstock.operators.operator import EpochTime, StepPlan
from penstock.operators.process.step import ProcessPlan
from penstock.operators.top.distinct import DistinctPlan
from penstock.operators.top.plan import TopPlan
from penstock.operators.window.plan import WindowPlan
from penstock.operators.window.windows import hopping, session_window, tumbling
from penstock.plan.epoch import EpochPlan, RouteTable, StepRoutes
from penstock.plan.steps import FlowPlan, KeyedStep, SourcePlan
from penstock.wire.access import Access
from tests.operators.processors import Summed

SCHEMA = pa.schema([("user", pa.string()), ("n", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
ROWS, BATCHES, HELD = 40_000, 30, 10
"""Rows per batch, batches of a long input, and largest number of batches that a courier may hold."""
ALL = {"n": ps.sum("n"), "rows": ps.count()}
PLANS: dict[str, StepPlan] = {
    "aggregate": AggregatePlan(SCHEMA, ["user"], ALL),
    "tumbling": WindowPlan(SCHEMA, ["user"], ALL, tumbling("1h"), "at"),
    "hopping": WindowPlan(SCHEMA, ["user"], ALL, hopping("1h", "30m"), "at"),
    "session": WindowPlan(SCHEMA, ["user"], ALL, session_window("1s"), "at"),
    "top": TopPlan(SCHEMA, ["user"], 3, "n desc"),
    "distinct": DistinctPlan(SCHEMA, ["user"]),
    "process": ProcessPlan(SCHEMA.remove(2), ["user"], Summed()),
}


class Sink:
    """A stand-in for hosts and the driver that accepts everything and keeps nothing."""

    greeted = True

    @contextmanager
    def exchange(self, header: bytes, timeout_ms: int) -> Iterator[tuple[Any, Any]]:
        def take(*_: object) -> None:
            pass

        writer = SimpleNamespace(
            begin=take, write_batch=take, write_metadata=take, done_writing=take
        )
        yield writer, []

    def call(self, *_: object, **__: object) -> bool:
        return True

    def greet(self, timeout_ms: int) -> None:
        pass

    def hearing_errors(self) -> AbstractContextManager[None]:
        return nullcontext()


def batch(number: int, schema: pa.Schema, keys: int) -> pa.RecordBatch:
    """Return a batch in Arrow's own memory, which Arrow counts."""
    rows = np.arange(number * ROWS, (number + 1) * ROWS)
    columns = [
        pa.array((rows % keys).astype(str)),
        pa.array(rows),
        pa.array(rows).cast(SCHEMA.field(2).type),
    ]
    made = pa.RecordBatch.from_arrays(columns[: len(schema)], schema=schema)
    return made.take(pa.array(np.arange(ROWS)))


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("name", PLANS)
def test_a_long_input_of_few_keys(monkeypatch: pytest.MonkeyPatch, name: str, late: bool) -> None:
    plan = PLANS[name]
    monkeypatch.setattr(channels, "endpoint", lambda place, access: Sink())
    monkeypatch.setattr(delivery, "endpoint", lambda place, access: Sink())
    routes = RouteTable.even([HostId("step/0"), HostId("step/1")], 8)
    time = EpochTime(0, 0, watermark_ms=1 << 50 if late else None)
    steps = (StepRoutes(StepId("step"), routes, ("a", "b"), time),)
    flow = FlowPlan((SourcePlan(plan.inputs[0]),), (KeyedStep("step", 8, plan),))
    one = batch(0, plan.inputs[0], keys=50).get_total_buffer_size()
    before, held = pa.total_allocated_bytes(), []

    def coming() -> Iterator[pa.RecordBatch]:
        for number in range(BATCHES):
            yield batch(number, plan.inputs[0], keys=50)
            held.append(pa.total_allocated_bytes() - before)

    epoch = EpochPlan(0, 0, 1, steps, "")
    for _ in Courier(flow, lambda: (epoch, Task(0, 0)), Access("token"), 1000, 1000)(coming()):
        pass
    assert len(held) == BATCHES
    assert max(held) < HELD * one, f"{max(held) / one:.0f} batches were held"


def test_many_keys_are_sent_before_they_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sender that has begun to combine goes on, and sends states when there are many."""
    monkeypatch.setattr(combiner, "_MOST_BYTES", 1 << 14)
    plan = AggregatePlan(SCHEMA, ["user"], ALL)
    sender, operator = plan.sender(EpochTime(0, 0)), plan.operator(8, "step", "fail")
    sent = [out.batch for number in range(4) for out in sender.add(0, batch(number, SCHEMA, 5_000))]
    assert len(sent) > 10
    kind, rest = sender.finish()
    operator.open(EpochTime(0, 0))
    operator.apply(kind, [*sent, *(out.batch for out in rest)])
    totals = pa.Table.from_batches(operator.close().batches)
    assert totals.num_rows == 5_000
    assert pc.sum(totals["rows"]).as_py() == 4 * ROWS
    assert pc.sum(totals["n"]).as_py() == sum(range(4 * ROWS))


def test_times_of_arrival_are_held_in_few_buckets() -> None:
    schema = pa.schema([("at", pa.timestamp("ms"))])
    witness, rng = Witness([SourcePlan(schema, arrival="at")]), np.random.default_rng(3)
    times = rng.integers(0, 3_600_000, (60, ROWS))

    def note(some: Any) -> None:
        column = pa.array(some, pa.int64()).cast(pa.timestamp("ms"))
        witness.note(0, pa.RecordBatch.from_arrays([column], schema=schema))

    note(times[0])
    tracemalloc.start()
    for some in times[1:]:
        note(some)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < times.nbytes / 4
    seen = witness.seen()
    assert sum(seen.counts) == seen.rows == times.size
    for share in (0.1, 0.5, 0.9):
        reported = np.repeat(seen.arrivals_ms, seen.counts)
        assert abs(np.quantile(reported, share) - np.quantile(times, share)) < 2 * 3_600_000 / 512
