"""What functions cost while nothing goes to them, and how long one takes to be there.

A flow that has functions and one that has none take turns, each as a query of its own over the same
rows, as fast as hosts can. What counts is the time from one trigger to the next. Nobody keeps to a
rate here, so hosts are never as busy as in a burst and nothing is redirected; that is checked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

import penstock as ps
from penstock.errors import PenstockError
from penstock.offload.backends.backend import invoker_at
from penstock.offload.backends.local.backend import LocalWorkers
from penstock.offload.backends.messages import Requests
from penstock.operators.aggregate.aggregates import AggregatePlan, sum
from penstock.operators.operator import EpochTime
from penstock.plan.steps import FlowPlan, KeyedStep, SourcePlan
from penstock.wire.access import Access
from penstock_bench import sides
from penstock_bench.report import Sample, Show
from penstock_bench.sides import Triggers

_ROWS, _KEYS, _SLOTS = 200_000, 100_000, 64
_SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
_ACCESS = Access("token")
_GONE_S, _POLL_S, _INVOKE_MS = 30.0, 0.01, 30_000


def overhead(rounds: int, warm: int, measured: int, show: Show) -> dict[str, Any]:
    """Milliseconds from trigger to trigger, by round, with functions and without; and their ratios."""
    found: dict[str, list[float]] = {"with_ms": [], "without_ms": []}
    # in a session of its own, which nothing else has made slower or faster
    with sides.bench_session() as spark:
        # A JVM gets faster for minutes: the first round is for it, and does not count.
        for number in range(rounds + 1):
            # A machine may get faster, or slower, by itself: so who comes first changes.
            for side in sorted(found, reverse=bool(number % 2)):
                cycle_ms = _cycle_ms(spark, side == "with_ms", warm, measured)
                if number:
                    found[side].append(cycle_ms)
    ratios = [a / b for a, b in zip(found["with_ms"], found["without_ms"], strict=True)]
    sample = Sample.of(ratios)
    show(
        f"functions that are not used: triggers take {sample.median:.3f} times as long "
        f"({sample.low:.3f} to {sample.high:.3f} in {sample.n} rounds)"
    )
    return {**found, "rows": _ROWS, "ratios": ratios}


def _cycle_ms(spark: SparkSession, functions: bool, warm: int, measured: int) -> float:
    rows = ps.flow(sides.spread(spark, _ROWS, _KEYS)).key_by("k", slots=_SLOTS)
    # as many hosts at least as at most: nothing but the functions differs
    settings: dict[str, Any] = {"at_least": 2, "at_most": 2}
    if functions:
        settings["functions"] = ps.LocalFunctions(at_most=16)
    flow = rows.aggregate(s=ps.sum("v")).sla("10s").elastic(**settings)
    with sides.folder(spark) as checkpoint:
        query = flow.start(ps.to("noop"), checkpoint=checkpoint, hosts=2)
        try:
            cycles = Triggers(query.spark_query()).cycles_ms(warm, measured)
            used = [epoch.epoch for epoch in query.progress if epoch.functions.rows]
        finally:
            query.stop()
    if used:
        raise PenstockError(f"functions were used in {len(used)} epochs: they were to be idle")
    return Sample.of(cycles).median


def cold_starts(count: int, show: Show) -> dict[str, list[float]]:
    """Milliseconds: to start a function, and from a request to its answer, cold and warm."""
    step = KeyedStep("sum", _SLOTS, AggregatePlan(_SCHEMA, ["k"], {"s": sum("v")}))
    flow = FlowPlan((SourcePlan(_SCHEMA),), (step,))
    rows = pa.RecordBatch.from_pydict({"k": [1, 2, 1], "v": [1, 2, 3]}, _SCHEMA)
    request = Requests.of(flow, flow.steps, EpochTime(0, 0), "bench").one(0, [rows]).to_bytes()
    told: dict[str, list[float]] = {"start_ms": [], "cold_ms": [], "warm_ms": []}
    with _started(flow) as started:
        invoker = invoker_at(started.reach, _ACCESS)

        def asked() -> float:
            began = time.perf_counter()
            invoker.invoke(request, _INVOKE_MS)
            return 1000 * (time.perf_counter() - began)

        asked()  # loads what the service itself needs for its first answer
        for _ in range(count):
            _await(lambda: not started.up())
            before = started.used()
            told["cold_ms"].append(asked())
            after = started.used()
            if after.cold_starts != before.cold_starts + 1:
                raise PenstockError("a function was there that should have been gone")
            told["start_ms"].append(after.cold_start_ms - before.cold_start_ms)
            told["warm_ms"].append(asked())
    medians = {name: Sample.of(values).median for name, values in told.items()}
    show(
        f"a function: {medians['start_ms']:.1f} ms to start, {medians['cold_ms']:.1f} ms to its "
        f"first answer, {medians['warm_ms']:.1f} ms to the next"
    )
    return told


@contextmanager
def _started(flow: FlowPlan) -> Iterator[LocalWorkers]:
    # let go at once: so the next one is a cold one
    started = ps.LocalFunctions(at_most=1, idle_ms=1).start(flow, "bench", _ACCESS)
    try:
        yield started
    finally:
        started.stop()


def _await(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + _GONE_S
    while not condition():
        if time.monotonic() > until:
            raise PenstockError("a function that is idle was not let go")
        time.sleep(_POLL_S)
