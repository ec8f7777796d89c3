"""The sides that are compared: each a query over the same rows, gone when its `with` ends."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere in PySpark
from pyspark.sql.streaming.query import StreamingQuery

import penstock as ps
from penstock.spark.quiet import quiet_session

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
    """A checkpoint folder that goes when its query does."""
    path = tempfile.mkdtemp(dir=spark.conf.get(_PLACE))
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
