"""The sides that are compared: each a query over the same rows, gone when its `with` ends; and how their
triggers are timed, the same way for each.
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
    """A column `value` that counts on, `rows` of them an epoch, in two partitions."""
    options = {"rowsPerBatch": rows, "numPartitions": 2, "startTimestamp": 0}
    return spark.readStream.format("rate-micro-batch").options(**options).load()


def spread(spark: SparkSession, rows: int, keys: int) -> DataFrame:
    """`rows` rows (k, v) an epoch, with the keys spread evenly."""
    key = F.pmod(F.xxhash64("value"), F.lit(keys)).alias("k")
    return numbered(spark, rows).select(key, F.col("value").alias("v"))


@contextmanager
def bench_session(cores: int = 8, more: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """The session that all sides share, with a place for their checkpoints."""
    # Removed after the session: Spark's upkeep of its state stores may write to a folder once more.
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", ignore_cleanup_errors=True) as place:
        conf = {"spark.sql.shuffle.partitions": "2", _PLACE: place, **(more or {})}
        with quiet_session("penstock-bench", cores, conf) as spark:
            yield spark


@contextmanager
def folder(spark: SparkSession) -> Iterator[str]:
    """A checkpoint folder that goes when its query does, in the place of the session if it has one."""
    path = tempfile.mkdtemp(dir=spark.conf.get(_PLACE, None))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def penstock_sum(rows: DataFrame, arrival: str | None = None) -> Iterator[ps.FlowQuery]:
    """Penstock: two hosts, deltas and manifests, as a user gets it."""
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
    """The same couriers' stage with nothing in it: what any Python on Spark must pay."""

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
            # Stopped in the middle of a job, Spark chokes on the error that the callback then raises.
            stopping.set()
            with working:
                pass
            query.stop()


@contextmanager
def updates(df: DataFrame) -> Iterator[StreamingQuery]:
    """A query with state, in Spark's update mode, into nothing."""
    writer = df.writeStream.format("noop").outputMode("update")
    with folder(df.sparkSession) as checkpoint:
        query = writer.option("checkpointLocation", checkpoint).start()
        try:
            yield query
        finally:
            query.stop()


def keep_state_in(spark: SparkSession, store: str) -> None:
    """Choose the store of Spark's own stateful queries that start from now on."""
    prefix = "spark.sql.streaming.stateStore"
    spark.conf.set(f"{prefix}.providerClass", store)
    spark.conf.set(f"{prefix}.rocksdb.changelogCheckpointing.enabled", "true")


def _pass_on(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


_POLL_S = 0.25


class Triggers:
    """Reads a running query's progress until enough of it has been seen."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query

    def progress(self, until: int, timeout_s: float = 900) -> list[dict[str, Any]]:
        """Waits for epoch `until`, then gives the progress that Spark keeps, in order: 100 epochs.

        Asks for the newest only while it waits: telling all of it ten times a second would cost
        the query that is being timed a good part of a core.
        """
        pause = threading.Event()
        waited = 0.0
        while (newest := self._query.lastProgress) is None or newest["batchId"] < until:
            if self._query.exception() is not None or not self._query.isActive:
                reason = str(self._query.exception()).strip().split("\n")[0]
                raise PenstockError(f"a side of the bench ended: {reason}")
            if waited > timeout_s:
                raise PenstockError(f"a side of the bench took over {timeout_s:.0f} s")
            pause.wait(_POLL_S)
            waited += _POLL_S
        # By value: the object behind it may be gone with the query.
        return [dict(p) for p in self._query.recentProgress]

    def cycles_ms(self, warm: int, measured: int) -> list[float]:
        """Milliseconds from one trigger's start to the next, after `warm` triggers."""
        progress = self.progress(until=warm + measured)
        starts = [started_ms(p) for p in progress if p["batchId"] >= warm]
        return [b - a for a, b in pairwise(starts)]


def started_ms(progress: dict[str, Any]) -> float:
    """When a trigger began, in milliseconds since 1970."""
    text = str(progress["timestamp"]).replace("Z", "+00:00")
    return datetime.fromisoformat(text).timestamp() * 1000


def in_sink_ms(progress: dict[str, Any]) -> float:
    """When a trigger's output was in the sink, in milliseconds since 1970."""
    took = progress["durationMs"]
    return started_ms(progress) + float(took["triggerExecution"] - took.get("commitOffsets", 0))


def end_row(progress: dict[str, Any]) -> int:
    """Rows that the first source, one of `arriving`, had given at the end of a trigger."""
    return _row(progress["sources"][0]["endOffset"])


def start_row(progress: dict[str, Any]) -> int:
    """The same at its beginning."""
    return _row(progress["sources"][0]["startOffset"])


def _row(offset: Any) -> int:
    facts = json.loads(offset) if isinstance(offset, str) else offset
    return int(facts["row"]) if facts else 0
