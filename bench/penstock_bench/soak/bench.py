"""`penstock bench soak`: memory, descriptors, threads and files of a query that runs for an hour.

Rows arrive at a steady rate; some are bad and become dead letters. Every few minutes a step is scaled and
slots move. The store is compacted and cleaned with the default settings. Growth is measured from the middle
of the run to its end.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

import penstock as ps
from penstock.errors import PenstockError
from penstock.sim.shapes import Steady
from penstock.spark.arriving import Arriving, arriving
from penstock.spark.session import quiet_session
from penstock_bench.chaos.load import DELAY_MS, SLOTS, ChaosRows
from penstock_bench.report import Goal, Report, Show
from penstock_bench.soak.samples import ROLES, SoakSample, by_role, files_below, growth

GOALS = {
    "memory_growth": Goal(at_most=1.05),
    "heap_growth": Goal(at_most=1.1),
    "descriptors_growth": Goal(at_most=1.02),
    "threads_growth": Goal(at_most=1.02),
    "checkpoint_growth": Goal(at_most=1.05),
    "files_growth": Goal(at_most=1.05),
}
_MINUTES, _QUICK_MINUTES = 60.0, 2.0
_RATE = 500.0
_HOSTS, _MORE_HOSTS = 2, 3
_CORES = 10
_SAMPLES, _CHANGES = 360, 12
"""Samples, and changes of the number of hosts, in a run. Short runs have fewer of them."""
_LINES_S = 60.0
_CONF = {
    "spark.sql.shuffle.partitions": "2",
    # The whole heap is allocated at the start, so that growth is visible elsewhere or in `heap_mb`.
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-Xms1g -XX:+AlwaysPreTouch",
}


def run(show: Show, quick: bool = False, minutes: float | None = None) -> Report:
    """Run for this many minutes, and half a minute more."""
    seconds = 60 * (minutes or (_QUICK_MINUTES if quick else _MINUTES))
    show("starting Spark")
    with quiet_session("penstock-soak", _CORES, _CONF) as spark:
        samples = soak(spark, seconds, show)
    return report(samples, seconds)


def soak(spark: SparkSession, seconds: float, show: Show) -> list[SoakSample]:
    """Run the query in this session for some seconds, and sample its resources."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-soak-"))
    try:
        query = _flow(spark).start(
            ps.to("parquet", path=str(folder / "sink")),
            checkpoint=str(folder / "checkpoint"),
            hosts=_HOSTS,
            on_error="dead_letter",
        )
        try:
            return _watched(spark, query, folder, seconds, show)
        finally:
            query.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _flow(spark: SparkSession) -> ps.Flow:
    source = arriving(spark, "soak", Arriving(Steady(_RATE), ChaosRows(), partitions=2))
    return (
        ps.flow(source, arrival="arrival", event_time="at", delay=DELAY_MS / 1000)
        .map_batches(_checked)
        .key_by("g", "k", slots=SLOTS)
        .window(ps.tumbling("1s"))
        .aggregate(n=ps.count(), s=ps.sum("v"))
        .key_by("g", slots=SLOTS)
        .aggregate(windows=ps.count(), n=ps.sum("n"), s=ps.sum("s"))
    )


def _checked(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Raises for batches with a bad row; one row of a thousand is bad."""
    if pc.any(pc.equal(batch["v"], 999)).as_py():
        raise ValueError("a bad row: v is 999")
    return batch


def _watched(
    spark: SparkSession, query: ps.FlowQuery, folder: Path, seconds: float, show: Show
) -> list[SoakSample]:
    pause, samples = threading.Event(), list[SoakSample]()
    while not query.progress:
        _must_run(query)
        pause.wait(0.1)
    began = shown_s = time.monotonic()
    every_s, change_s = max(seconds / _SAMPLES, 1.0), max(seconds / _CHANGES, 5.0)
    changes = 0
    while (now := time.monotonic()) - began < seconds:
        _must_run(query)
        if now - began > change_s * (changes + 1):
            changes += 1
            _change(query, changes)
        samples.append(_sample(spark, query, folder, now - began))
        if now - shown_s >= _LINES_S:
            shown_s = now
            show(_line(samples[-1]))
        pause.wait(max(0.0, began + len(samples) * every_s - time.monotonic()))
    return samples


def _must_run(query: ps.FlowQuery) -> None:
    if not query.is_active:
        raise PenstockError(f"the query ended: {query.status.message}")


def _change(query: ps.FlowQuery, number: int) -> None:
    """Scale one step up, or down again, and move half of the slots of the other one."""
    one, other = sorted(query.placements())[:: 1 if (number - 1) % 4 < 2 else -1]
    query.scale(one, _MORE_HOSTS if number % 2 else _HOSTS)
    query.move(other, range(0, SLOTS, 2), to=f"{other}/{number % _HOSTS}")


def _sample(spark: SparkSession, query: ps.FlowQuery, folder: Path, at_s: float) -> SoakSample:
    newest, hosts = query.progress[-1], query.status.hosts
    return SoakSample(
        at_s=round(at_s, 1),
        roles=by_role(hosts),
        hosts=len(hosts),
        heap_mb=_heap_mb(spark),
        checkpoint=files_below(folder / "checkpoint"),
        sink_entries=len(os.listdir(folder / "sink")),
        epochs=newest.epoch + 1,
        p99_ms=None if newest.latency is None else newest.latency.p99_ms,
    )


def _heap_mb(spark: SparkSession) -> float:
    """Megabytes in use on the JVM's heap after a garbage collection, which takes about 50 ms."""
    runtime = spark._jvm.java.lang.Runtime.getRuntime()  # type: ignore[union-attr]
    runtime.gc()
    return float((runtime.totalMemory() - runtime.freeMemory()) / 2**20)


def report(samples: list[SoakSample], seconds: float) -> Report:
    """The report of a run."""
    at_s = [sample.at_s for sample in samples]

    def grown(resource: str) -> float:
        """Growth of a resource, summed over all roles."""
        totals = [sum(getattr(sample.roles[r], resource) for r in ROLES) for sample in samples]
        return growth(at_s, totals)

    return Report(
        "soak",
        settings={"minutes": seconds / 60, "rate": _RATE, "hosts": _HOSTS, "slots": SLOTS},
        results={"samples": [asdict(sample) for sample in samples]},
        ratios={
            "memory_growth": grown("memory_mb"),
            "heap_growth": growth(at_s, [sample.heap_mb for sample in samples]),
            "descriptors_growth": grown("descriptors"),
            "threads_growth": grown("threads"),
            "checkpoint_growth": growth(at_s, [sample.checkpoint.mb for sample in samples]),
            "files_growth": growth(at_s, [float(s.checkpoint.number) for s in samples]),
        },
    )


def _line(sample: SoakSample) -> str:
    held = [f"{role} {sample.roles[role].memory_mb:,.0f} MB" for role in ROLES]
    return (
        f"{sample.at_s / 60:4.0f} min: {', '.join(held)}; heap {sample.heap_mb:,.0f} MB; "
        f"checkpoint {sample.checkpoint.mb:.1f} MB in {sample.checkpoint.number:,} files; "
        f"{sample.epochs:,} epochs"
    )
