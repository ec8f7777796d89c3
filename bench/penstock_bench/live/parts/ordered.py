"""The part `ordered`: what the order of arrival costs in a live chain of two keyed steps.

The same flow with `ordered()` and without, on one host and on two: latency at a steady rate, and the rows
a second that it takes of a source that has always more.
"""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

import penstock as ps
from penstock_bench import sides
from penstock_bench.live.query import running, until
from penstock_bench.report import Goal, PartResult, Show

GOALS: dict[str, Goal] = {}
KEYS, SLOTS = 100_000, 64
_WARM = 4
"""Epochs, of a second each, that do not count."""


@dataclass(frozen=True)
class OrderedScale:
    """How much of it to run."""

    hosts: tuple[int, ...] = (1, 2)
    rate: int = 10_000
    most: int = 4_000_000
    """Rows a second that are offered where throughput is measured."""
    seconds: int = 10


FULL, QUICK = OrderedScale(), OrderedScale(hosts=(2,), seconds=4)


@dataclass(frozen=True)
class Chain:
    """One side."""

    hosts: int
    ordered: bool
    p50_ms: float
    p99_ms: float
    """The medians of the epochs', at the steady rate."""
    rows_per_s: float
    """Rows that were taken a second, of a source that has always more."""


class Marked(ps.KeyedProcessor):
    """Gives every row back with the number of rows of its key so far."""

    output_schema = "key long, value long, n long"

    def init(self, handle: Any) -> None:
        self._count = handle.get_value_state("count", "n long")

    def handle_batch(self, batch: pa.RecordBatch, timers: Any) -> pa.RecordBatch:
        import numpy as np
        import pyarrow.compute as pc

        groups = batch.column("key").dictionary_encode().indices.to_numpy()
        before = pc.fill_null(pc.struct_field(self._count.get_many(batch), "n"), 0).to_numpy()
        now = pa.array(before + np.bincount(groups)[groups])
        self._count.update_many(batch, pa.RecordBatch.from_arrays([now], ["n"]))
        columns = [batch.column("key"), batch.column("value"), now]
        return pa.RecordBatch.from_arrays(columns, ["key", "value", "n"])


def run(show: Show, quick: bool = False) -> PartResult:
    """Run all; takes three minutes, 40 s when quick."""
    scale, found = QUICK if quick else FULL, list[Chain]()
    with sides.bench_session() as spark:
        for hosts in scale.hosts:
            for ordered in (False, True):
                latency = _measured(spark, hosts, ordered, scale.rate, scale.seconds)
                taken = _measured(spark, hosts, ordered, scale.most, scale.seconds)
                one = Chain(hosts, ordered, latency.p50_ms, latency.p99_ms, taken.rows_per_s)
                found.append(one)
                show(
                    f"{hosts} hosts, {'ordered' if ordered else 'unordered'}: p99 {one.p99_ms:.1f} ms "
                    f"at {scale.rate:,} rows/s; at most {one.rows_per_s:,.0f} rows/s"
                )
    return PartResult(asdict(scale) | {"keys": KEYS}, {"chains": [asdict(one) for one in found]})


def ratios(results: dict[str, Any]) -> dict[str, float]:
    """Ordered over unordered, on the most hosts."""
    most = max(one["hosts"] for one in results["chains"])
    of = {one["ordered"]: one for one in results["chains"] if one["hosts"] == most}
    return {
        "ordered_throughput_vs_unordered": of[True]["rows_per_s"] / of[False]["rows_per_s"],
        "ordered_p99_vs_unordered": of[True]["p99_ms"] / of[False]["p99_ms"],
    }


@dataclass(frozen=True)
class _Measured:
    p50_ms: float
    p99_ms: float
    rows_per_s: float


def _measured(spark: SparkSession, hosts: int, ordered: bool, rate: int, seconds: int) -> _Measured:
    first = ps.flow(ps.rate(rate, keys=KEYS)).key_by("key", slots=SLOTS).process(Marked())
    chain = first.key_by("value", slots=SLOTS).process(Passed())
    flow = chain.ordered() if ordered else chain

    def start(checkpoint: str) -> ps.FlowQuery:
        return flow.start(ps.foreach_arrow(_drop), mode="live", checkpoint=checkpoint, hosts=hosts)

    with sides.folder(spark) as folder, running(start, folder) as query:
        until(query, lambda: len(query.progress) > _WARM + seconds, 120 + 4 * seconds)
        epochs = query.progress[_WARM:]
    told = [epoch.latency for epoch in epochs if epoch.latency is not None]
    span_s = (epochs[-1].started_ms - epochs[0].started_ms) / 1000
    return _Measured(
        statistics.median(one.p50_ms for one in told),
        statistics.median(one.p99_ms for one in told),
        sum(epoch.rows for epoch in epochs[:-1]) / span_s,
    )


class Passed(ps.KeyedProcessor):
    """Gives every row back."""

    output_schema = "key long, value long, n long"

    def handle_batch(self, batch: pa.RecordBatch, timers: Any) -> pa.RecordBatch:
        return batch.select(["key", "value", "n"])


def _drop(batch: pa.RecordBatch, ids: object) -> None:
    """A sink that keeps nothing."""
