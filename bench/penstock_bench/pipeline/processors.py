"""Throughput of a per-key processor, the session counter, against Spark's three APIs for state in Python.

There are half as many keys as rows per epoch, so that a key has two rows per call on average, on all sides.
Before the measurement the rows of all sides are compared. State is durable after each epoch on all sides.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere in PySpark
from pyspark.sql.streaming.query import StreamingQuery

import penstock as ps
from penstock.errors import PenstockError
from penstock.operators.operator import ROWS, EpochTime
from penstock.operators.process.step import ProcessPlan
from penstock_bench import sides
from penstock_bench.pipeline.sessions import PENSTOCK, SPARK
from penstock_bench.report import Sample, Show
from penstock_bench.sides import Triggers

_STEP_MS = 1000
_CHECKED_ROWS, _CHECKED_EPOCHS = 500, 6


@dataclass(frozen=True)
class ProcessorScale:
    """Size of the comparison of processors."""

    rows: tuple[int, ...] = (20_000, 200_000)
    """Rows per epoch of Penstock's sides."""
    spark_rows: tuple[int, ...] = (20_000, 100_000)
    """Rows per epoch of Spark's sides, which take a second for some 1,000 rows."""
    warm: int = 8
    measured: int = 15
    spark_epochs: int = 2
    """Measured epochs of Spark's sides, after a cold one."""


QUICK = ProcessorScale((200_000,), (10_000,), 5, 8, 1)
FULL = ProcessorScale()


def clicks(spark: SparkSession, rows: int) -> DataFrame:
    """`rows` clicks per epoch. All clicks of an epoch are at the same time, a second after those before."""
    options = {"rowsPerBatch": rows, "numPartitions": 2, "startTimestamp": _STEP_MS}
    stream = spark.readStream.format("rate-micro-batch").options(**options)
    source = stream.option("advanceMillisPerBatch", _STEP_MS).load()
    key = F.pmod(F.xxhash64("value"), F.lit(rows // 2)).alias("k")
    return source.select(
        key, F.unix_millis("timestamp").alias("at"), F.col("timestamp").alias("ts")
    )


def measure(spark: SparkSession, scale: ProcessorScale, show: Show) -> dict[str, Any]:
    """Rows per second of all sides, and the microseconds of a call."""
    sides.keep_state_in(spark, sides.ROCKSDB)
    results: dict[str, Any] = {"call_us": asdict(call_us(show)), "sessions": _check(spark, show)}
    for name in SPARK:
        results[name] = {}
        for rows in scale.spark_rows:
            with sides.updates(SPARK[name](clicks(spark, rows))) as query:
                progress = Triggers(query).progress(until=scale.spark_epochs, timeout_s=900)
            took = [p["durationMs"]["triggerExecution"] for p in progress if p["batchId"] > 0]
            results[name][str(rows)] = rate = rows / Sample.of(took).median * 1000
            show(f"{rows:>9,} rows: {name:<31} {rate:>10,.0f} rows/s")
    for rows in scale.rows:
        for name in PENSTOCK:
            with _penstock(name, clicks(spark, rows)) as query:
                cycles = Triggers(query).cycles_ms(scale.warm, scale.measured)
            results.setdefault(name, {})[str(rows)] = rate = rows / Sample.of(cycles).median * 1000
            show(f"{rows:>9,} rows: {name:<31} {rate:>10,.0f} rows/s")
    return results


def ratios(results: dict[str, Any]) -> dict[str, float]:
    """Penstock's forms over the best of Spark's APIs, each at its best size of epochs."""
    best = max(rate for name in SPARK for rate in results[name].values())
    over = {name: max(results[name].values()) / best for name in PENSTOCK}
    return {f"{name}_vs_tws": ratio for name, ratio in over.items()} | {
        "processor_call_us": results["call_us"]["median"]
    }


@contextmanager
def _penstock(name: str, rows: DataFrame, sink: Any = None) -> Iterator[StreamingQuery]:
    flow = (
        ps.flow(rows, event_time="ts", delay="0s").key_by("k", slots=64).process(PENSTOCK[name]())
    )
    with sides.folder(rows.sparkSession) as checkpoint:
        query = flow.start(sink or ps.to("noop"), checkpoint=checkpoint, hosts=2)
        try:
            yield query.spark_query()
        finally:
            query.stop()


def _check(spark: SparkSession, show: Show) -> int:
    """Compare the sessions of all sides, and return their number."""
    until = (_CHECKED_EPOCHS - 3) * _STEP_MS  # all sides have emitted the sessions that end before
    found: dict[str, set[tuple[int, ...]]] = {}
    for name in PENSTOCK:
        sink = ps.collect()
        with _penstock(name, clicks(spark, _CHECKED_ROWS), sink) as query:
            Triggers(query).progress(until=_CHECKED_EPOCHS, timeout_s=300)
        found[name] = {tuple(row.values()) for row in sink.rows()}
    for name, make in SPARK.items():
        with sides.folder(spark) as checkpoint:
            writer = make(clicks(spark, _CHECKED_ROWS)).writeStream.outputMode("update")
            writer = (
                writer.format("memory").queryName(name).option("checkpointLocation", checkpoint)
            )
            query = writer.start()
            try:
                Triggers(query).progress(until=_CHECKED_EPOCHS, timeout_s=300)
            finally:
                query.stop()
        found[name] = {tuple(row) for row in spark.table(name).collect()}
    ended = {name: {row for row in rows if row[2] < until} for name, rows in found.items()}
    expected = ended["processor"]
    for name, rows in ended.items():
        if rows != expected or not rows:
            raise PenstockError(
                f"{name} found {len(rows)} sessions, not {len(expected)}, or others"
            )
    show(f"all sides found the same {len(expected):,} sessions")
    return len(expected)


class _Count(ps.KeyedProcessor):
    output_schema = "k long, n long"

    def init(self, handle: Any) -> None:
        self.n = handle.get_value_state("n", "n long")

    def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> Iterator[Any]:
        held = self.n.get()
        n = 0 if held is None else held[0]
        for _ in rows:
            n += 1
        self.n.update((n,))
        yield key[0], n


class _Nothing:
    """Value state that does nothing."""

    def get(self) -> None: ...

    def update(self, value: Any) -> None: ...


def call_us(show: Show, keys: int = 50_000, epochs: int = 12) -> Sample:
    """Microseconds of CPU time that Penstock adds to a call of user code: a handler that reads one row, reads
    and updates a value, and emits a row, less the time of the same handler without Penstock."""
    plan = ProcessPlan(pa.schema([("k", pa.int64()), ("at", pa.int64())]), ["k"], _Count())
    operator, alone = plan.operator(64, "count", "fail"), _Count()
    alone.n = _Nothing()
    batch = pa.record_batch(
        {"k": np.random.default_rng(1).permutation(keys), "at": np.arange(keys)}
    )
    took = []
    for epoch in range(epochs):
        operator.begin(EpochTime(epoch, epoch))
        start = time.process_time()
        operator.apply(ROWS, [batch])
        middle = time.process_time()
        for key in range(keys):
            for _ in alone.handle_input_rows((key,), iter((batch,)), None):
                pass
        end = time.process_time()
        operator.table.seal()
        if epoch > 1:
            took.append((2 * middle - start - end) / keys * 1e6)
    sample = Sample.of(took)
    show(f"a call of a processor: {sample.median:.2f} µs of Penstock's own")
    return sample
