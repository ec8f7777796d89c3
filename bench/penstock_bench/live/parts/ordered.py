"""The part `ordered`: the cost of preserving arrival order in a live chain of two keyed steps.

The same flow runs with and without `ordered()`, on one host and on two. Measured are latency at a steady
rate, and throughput from a source that never runs out of rows.
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
"""Epochs of a second at the start that do not count."""


@dataclass(frozen=True)
class OrderedScale:
    """Size of the benchmark."""

    hosts: tuple[int, ...] = (1, 2)
    rate: int = 10_000
    most: int = 4_000_000
    """Rows per second offered when throughput is measured."""
    seconds: int = 10


FULL, QUICK = OrderedScale(), OrderedScale(hosts=(2,), seconds=4)


@dataclass(frozen=True)
class Chain:
    """The result of one side."""

    hosts: int
    ordered: bool
    p50_ms: float
    """Median of the epochs' p50 at the steady rate."""
    p99_ms: float
    """Median of the epochs' p99 at the steady rate."""
    rows_per_s: float
    """Rows per second processed from a source that never runs out."""


class Marked(ps.KeyedProcessor):
    """Outputs every row with the number of rows of its key so far."""

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
    """Run this part, which takes three minutes, or 40 s when quick."""
    scale, chains = QUICK if quick else FULL, list[Chain]()
    with sides.bench_session() as spark:
        for hosts in scale.hosts:
            for ordered in (False, True):
                latency = _measured(spark, hosts, ordered, scale.rate, scale.seconds)
                most = _measured(spark, hosts, ordered, scale.most, scale.seconds)
                chain = Chain(hosts, ordered, latency.p50_ms, latency.p99_ms, most.rows_per_s)
                chains.append(chain)
                show(
                    f"{hosts} hosts, {'ordered' if ordered else 'unordered'}: p99 {chain.p99_ms:.1f} ms "
                    f"at {scale.rate:,} rows/s; at most {chain.rows_per_s:,.0f} rows/s"
                )
    return PartResult(asdict(scale) | {"keys": KEYS}, {"chains": [asdict(c) for c in chains]})


def ratios(results: dict[str, Any]) -> dict[str, float]:
    """Ordered divided by unordered, on the largest number of hosts."""
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
    latencies = [epoch.latency for epoch in epochs if epoch.latency is not None]
    span_s = (epochs[-1].started_ms - epochs[0].started_ms) / 1000
    return _Measured(
        statistics.median(latency.p50_ms for latency in latencies),
        statistics.median(latency.p99_ms for latency in latencies),
        sum(epoch.rows for epoch in epochs[:-1]) / span_s,
    )


class Passed(ps.KeyedProcessor):
    """Outputs every row unchanged."""

    output_schema = "key long, value long, n long"

    def handle_batch(self, batch: pa.RecordBatch, timers: Any) -> pa.RecordBatch:
        return batch.select(["key", "value", "n"])


def _drop(batch: pa.RecordBatch, ids: object) -> None:
    """A sink that drops all rows."""
