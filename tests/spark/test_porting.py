"""The page on porting: its code runs, and both forms of each query give the same rows."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock.testing import FlowTester, source
from tests.test_examples import python_blocks

ORDERS = "user string, item string, amount double, at timestamp"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ROWS = [
    [("ann", "tea", 2.0, 0), ("bob", "tea", 1.0, 20), ("ann", "milk", 1.5, 30)],
    [("ann", "tea", 4.0, 65), ("bob", "rice", 3.0, 10), ("cat", "tea", 8.0, 130)],
    [("ann", "rice", 1.0, 5), ("cat", "tea", 1.0, 140), ("bob", "tea", 2.0, 300)],
    [("cat", "milk", 2.0, 310)],
]
"""Epochs of rows; the last value is a time in seconds. Some rows are late."""
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """The names that the page defines. Its last block asserts something by itself."""
    names: dict[str, Any] = {"__name__": "__main__"}  # so that workers get its classes by value
    for block in python_blocks("porting.md"):
        exec(block, names)
    return names


def _rows(epoch: list[tuple[str, str, float, int]]) -> list[tuple[Any, ...]]:
    return [(*row[:3], NOON + timedelta(seconds=row[3])) for row in epoch]


def _of_spark(
    spark: SparkSession, query: Callable[[DataFrame], DataFrame], folder: Path, mode: str
) -> set[tuple[Any, ...]]:
    """All rows that Spark's query emits. Each epoch of rows is a batch."""
    orders = spark.readStream.schema(ORDERS).parquet(str(folder / "in"))
    name = f"porting_{query.__name__}"
    running = (
        query(orders)
        .writeStream.outputMode(mode)
        .format("memory")
        .queryName(name)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start()
    )
    try:
        for epoch in ROWS:
            frame = spark.createDataFrame(_rows(epoch), ORDERS)
            frame.coalesce(1).write.mode("append").parquet(str(folder / "in"))
            running.processAllAvailable()
    finally:
        running.stop()
    return {_plain(row.asDict()) for row in spark.table(name).collect()}


def _plain(row: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    """A row that can be compared. Spark's times have no zone: they are local ones."""
    times = {n: v.astimezone(UTC) for n, v in row.items() if isinstance(v, datetime)}
    return tuple(sorted((row | times).items()))


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("totals", "update"),
        ("windows", "append"),
        ("counts", "update"),
        ("spending", "update"),
    ],
)
def test_both_forms_give_the_same_rows(
    spark: SparkSession, page: dict[str, Any], tmp_path: Path, name: str, mode: str
) -> None:
    with FlowTester(page[name](source(ORDERS))) as tester:
        tables = [tester.run(_rows(epoch)) for epoch in ROWS] + [tester.run()]
    ours = {_plain(row) for table in tables for row in table.to_pylist()}
    settings = {"spark.sql.streaming.stateStore.providerClass": ROCKSDB}
    settings |= {"spark.sql.shuffle.partitions": "2"}
    before = {key: spark.conf.get(key, None) for key in settings}
    (tmp_path / "in").mkdir()
    try:
        for key, value in settings.items():
            spark.conf.set(key, value)
        theirs = _of_spark(spark, page[f"spark_{name}"], tmp_path, mode)
    finally:
        for key, old in before.items():
            spark.conf.unset(key) if old is None else spark.conf.set(key, old)
    assert theirs == ours
    assert len(ours) > 3
