"""The overhead of functions while they are idle, and their cold start times.

A flow with functions and one without take turns. Each is a query of its own over the same rows, as
fast as hosts can process them. The measure is the time from one trigger to the next. Hosts have no set
service rate here, so they are never as busy as in a burst and no rows go to functions; that is checked.
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
_ACCESS = Access("token", functions=ps.LocalFunctions())
_GONE_S, _POLL_S, _INVOKE_MS = 30.0, 0.01, 30_000


def overhead(rounds: int, warm: int, measured: int, show: Show) -> dict[str, Any]:
    """Milliseconds from trigger to trigger per round, with functions and without, and the ratios."""
    rounds_ms: dict[str, list[float]] = {"with_ms": [], "without_ms": []}
    # A session of its own, so that earlier queries do not affect the measurement.
    with sides.bench_session() as spark:
        # A JVM gets faster for minutes: the first round warms it up and does not count.
        for number in range(rounds + 1):
            # The machine may get faster or slower during the run: the order alternates.
            for side in sorted(rounds_ms, reverse=bool(number % 2)):
                cycle_ms = _cycle_ms(spark, side == "with_ms", warm, measured)
                if number:
                    rounds_ms[side].append(cycle_ms)
    ratios = [a / b for a, b in zip(rounds_ms["with_ms"], rounds_ms["without_ms"], strict=True)]
    sample = Sample.of(ratios)
    show(
        f"idle functions: triggers take {sample.median:.3f} times as long as without functions "
        f"({sample.low:.3f} to {sample.high:.3f} in {sample.n} rounds)"
    )
    return {**rounds_ms, "rows": _ROWS, "ratios": ratios}


def _cycle_ms(spark: SparkSession, functions: bool, warm: int, measured: int) -> float:
    rows = ps.flow(sides.spread(spark, _ROWS, _KEYS)).key_by("k", slots=_SLOTS)
    # A fixed number of hosts, so that functions are the only difference.
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
        raise PenstockError(
            f"{len(used)} epochs sent rows to functions, which should have been idle"
        )
    return Sample.of(cycles).median


def cold_starts(count: int, show: Show) -> dict[str, list[float]]:
    """Milliseconds to start a function, and from a request to its answer, cold and warm."""
    step = KeyedStep("sum", _SLOTS, AggregatePlan(_SCHEMA, ["k"], {"s": sum("v")}))
    flow = FlowPlan((SourcePlan(_SCHEMA),), (step,))
    rows = pa.RecordBatch.from_pydict({"k": [1, 2, 1], "v": [1, 2, 3]}, _SCHEMA)
    request = Requests.of(flow, flow.steps, EpochTime(0, 0), "bench").one(0, [rows]).to_bytes()
    times_ms: dict[str, list[float]] = {"start_ms": [], "cold_ms": [], "warm_ms": []}
    with _started(flow) as started:
        invoker = invoker_at(started.reach, _ACCESS)

        def invoke_ms() -> float:
            began = time.perf_counter()
            invoker.invoke(request, _INVOKE_MS)
            return 1000 * (time.perf_counter() - began)

        invoke_ms()  # The service loads its own modules for its first answer.
        for _ in range(count):
            _await(lambda: not started.up())
            before = started.used()
            times_ms["cold_ms"].append(invoke_ms())
            after = started.used()
            if after.cold_starts != before.cold_starts + 1:
                raise PenstockError(
                    "the request did not cold-start a function: an idle one was still up"
                )
            times_ms["start_ms"].append(after.cold_start_ms - before.cold_start_ms)
            times_ms["warm_ms"].append(invoke_ms())
    medians = {name: Sample.of(values).median for name, values in times_ms.items()}
    show(
        f"a function: {medians['start_ms']:.1f} ms to start, {medians['cold_ms']:.1f} ms to its "
        f"first answer, {medians['warm_ms']:.1f} ms to the next"
    )
    return times_ms


@contextmanager
def _started(flow: FlowPlan) -> Iterator[LocalWorkers]:
    # Idle workers end at once, so that the next request is a cold start.
    started = ps.LocalFunctions(at_most=1, idle_ms=1).start(flow, "bench", _ACCESS)
    try:
        yield started
    finally:
        started.stop()


def _await(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + _GONE_S
    while not condition():
        if time.monotonic() > until:
            raise PenstockError(f"an idle function was still up after {_GONE_S:g} s")
        time.sleep(_POLL_S)
