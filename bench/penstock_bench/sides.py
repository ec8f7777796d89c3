"""The sides that benchmarks compare, and the timing of their triggers.

Each side is a query over the same rows that ends with its `with` block. All are timed in the same way.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from itertools import pairwise
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere in PySpark
from pyspark.sql.streaming.query import StreamingQuery

import penstock as ps
from penstock.errors import PenstockError
from penstock.spark.session import quiet_session

_PLACE = "spark.penstock.bench.folder"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
HDFS = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"


def numbered(spark: SparkSession, rows: int) -> DataFrame:
    """Consecutive numbers in a column `value`, `rows` of them per epoch, in two partitions."""
    options = {"rowsPerBatch": rows, "numPartitions": 2, "startTimestamp": 0}
    return spark.readStream.format("rate-micro-batch").options(**options).load()


def spread(spark: SparkSession, rows: int, keys: int) -> DataFrame:
    """`rows` rows (k, v) per epoch, with evenly spread keys."""
    key = F.pmod(F.xxhash64("value"), F.lit(keys)).alias("k")
    return numbered(spark, rows).select(key, F.col("value").alias("v"))


@contextmanager
def bench_session(cores: int = 8, more: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """A Spark session for all sides, with a folder for their checkpoints."""
    # The folder is removed after the session, because Spark's state stores may still write to it.
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", ignore_cleanup_errors=True) as place:
        conf = {"spark.sql.shuffle.partitions": "2", _PLACE: place, **(more or {})}
        with quiet_session("penstock-bench", cores, conf) as spark:
            yield spark


@contextmanager
def folder(spark: SparkSession) -> Iterator[str]:
    """A checkpoint folder that is removed at the end of the block, inside the session's folder if there is
    one."""
    path = tempfile.mkdtemp(dir=spark.conf.get(_PLACE, None))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def penstock_sum(rows: DataFrame, arrival: str | None = None) -> Iterator[ps.FlowQuery]:
    """Penstock with two hosts and default settings, so with deltas and manifests."""
    flow = ps.flow(rows, arrival=arrival).key_by("k", slots=64).aggregate(s=ps.sum("v"))
    with folder(rows.sparkSession) as checkpoint:
        query = flow.start(ps.to("noop"), checkpoint=checkpoint, hosts=2)
        try:
            yield query
        finally:
            query.stop()


@contextmanager
def native_sum(rows: DataFrame, store: str = ROCKSDB) -> Iterator[StreamingQuery]:
    """Spark's own streaming aggregation, with one of its two stores."""
    keep_state_in(rows.sparkSession, store)
    with updates(rows.groupBy("k").agg(F.sum("v").alias("s"))) as query:
        yield query


@contextmanager
def limit(rows: DataFrame) -> Iterator[StreamingQuery]:
    """A `mapInArrow` stage that passes rows on: the cost of any Python on Spark."""

    working, stopping = threading.Lock(), threading.Event()

    def save(df: DataFrame, epoch: int) -> None:
        with working:
            if not stopping.is_set():
                df.write.format("noop").mode("append").save()

    passed = rows.mapInArrow(_pass_on, rows.schema).writeStream.foreachBatch(save)
    with folder(rows.sparkSession) as checkpoint:
        query = passed.option("checkpointLocation", checkpoint).start()
        try:
            yield query
        finally:
            # Not stopped during a job: Spark fails on the error that the callback would raise.
            stopping.set()
            with working:
                pass
            query.stop()


@contextmanager
def updates(df: DataFrame) -> Iterator[StreamingQuery]:
    """A stateful query in Spark's update mode, with a sink that drops all rows."""
    writer = df.writeStream.format("noop").outputMode("update")
    with folder(df.sparkSession) as checkpoint:
        query = writer.option("checkpointLocation", checkpoint).start()
        try:
            yield query
        finally:
            query.stop()


def keep_state_in(spark: SparkSession, store: str) -> None:
    """Set the state store of Spark's own stateful queries that are started later."""
    prefix = "spark.sql.streaming.stateStore"
    spark.conf.set(f"{prefix}.providerClass", store)
    spark.conf.set(f"{prefix}.rocksdb.changelogCheckpointing.enabled", "true")


def _pass_on(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


_POLL_S = 0.25


class Triggers:
    """Reads a running query's progress."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query

    def progress(self, until: int, timeout_s: float = 900) -> list[dict[str, Any]]:
        """Wait for epoch `until`, then return the progress that Spark keeps: the last 100 epochs, in order.

        While waiting it polls only the newest epoch: polling all of them would take much CPU from the query
        that is being timed.
        """
        pause = threading.Event()
        waited = 0.0
        while (newest := self._query.lastProgress) is None or newest["batchId"] < until:
            if self._query.exception() is not None or not self._query.isActive:
                reason = str(self._query.exception()).strip().split("\n")[0]
                raise PenstockError(f"a side of the bench ended: {reason}")
            if waited > timeout_s:
                raise PenstockError(f"a side of the bench took more than {timeout_s:.0f} s")
            pause.wait(_POLL_S)
            waited += _POLL_S
        # Copied, because the underlying object may vanish with the query.
        return [dict(p) for p in self._query.recentProgress]

    def cycles_ms(self, warm: int, measured: int) -> list[float]:
        """Milliseconds from one trigger's start to the next, after `warm` triggers."""
        progress = self.progress(until=warm + measured)
        starts = [started_ms(p) for p in progress if p["batchId"] >= warm]
        return [b - a for a, b in pairwise(starts)]


def started_ms(progress: dict[str, Any]) -> float:
    """Start of a trigger, in milliseconds since 1970."""
    text = str(progress["timestamp"]).replace("Z", "+00:00")
    return datetime.fromisoformat(text).timestamp() * 1000


def in_sink_ms(progress: dict[str, Any]) -> float:
    """Time at which a trigger's output was in the sink, in milliseconds since 1970."""
    took = progress["durationMs"]
    return started_ms(progress) + float(took["triggerExecution"] - took.get("commitOffsets", 0))


def end_row(progress: dict[str, Any]) -> int:
    """Number of rows read from the first source, made by `arriving`, up to the end of a trigger."""
    return _row(progress["sources"][0]["endOffset"])


def start_row(progress: dict[str, Any]) -> int:
    """Number of rows read from the first source, made by `arriving`, before a trigger."""
    return _row(progress["sources"][0]["startOffset"])


def _row(offset: Any) -> int:
    facts = json.loads(offset) if isinstance(offset, str) else offset
    return int(facts["row"]) if facts else 0
