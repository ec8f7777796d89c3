"""The sides that are compared: each a query over the same rows, gone when its `with` ends."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere in PySpark
from pyspark.sql.streaming.query import StreamingQuery

import penstock as ps

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
def folder() -> Iterator[str]:
    """A checkpoint folder that goes when its query does."""
    path = tempfile.mkdtemp(prefix="penstock-bench-")
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def penstock_sum(rows: DataFrame, arrival: str | None = None) -> Iterator[ps.FlowQuery]:
    """Penstock: two hosts, deltas and manifests, as a user gets it."""
    flow = ps.flow(rows, arrival=arrival).key_by("k", slots=64).aggregate(s=ps.sum("v"))
    with folder() as checkpoint:
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

    def save(df: DataFrame, epoch: int) -> None:
        df.write.format("noop").mode("append").save()

    passed = rows.mapInArrow(_pass_on, rows.schema).writeStream.foreachBatch(save)
    with folder() as checkpoint:
        query = passed.option("checkpointLocation", checkpoint).start()
        try:
            yield query
        finally:
            query.stop()


@contextmanager
def updates(df: DataFrame) -> Iterator[StreamingQuery]:
    """A query with state, in Spark's update mode, into nothing."""
    writer = df.writeStream.format("noop").outputMode("update")
    with folder() as checkpoint:
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
