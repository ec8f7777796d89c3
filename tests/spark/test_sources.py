"""Sources that couriers can read by themselves, in micro-batches: Spark brings the same rows."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

import penstock as ps
from penstock.live.sinks.sink import RowIds
from tests.live.sources.test_python_source import END, Counting, Simple


def until(query: ps.FlowQuery, done: object, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    try:
        while not done() and time.monotonic() < deadline:  # type: ignore[operator]
            assert query.exception() is None
            time.sleep(0.1)
    finally:
        query.stop()


def test_a_rate_with_stateless_steps_gives_the_rows_that_a_courier_reads(
    spark: SparkSession, checkpoint: str
) -> None:
    source = ps.rate(2000, rows=1000, keys=10, partitions=2)
    reader = source.reader({name: {"row": 0, "start_ms": 0} for name in source.partitions()})
    expected: Counter[int] = Counter()
    while polled := reader.poll(0, 10_000):
        for one in polled:
            expected.update(k for k, v in zip(*_columns(one.batch), strict=True) if v % 2 == 0)
    sink = ps.collect()
    flow = (
        ps.flow(source)
        .filter(pc.equal(pc.bit_wise_and(pc.field("value"), 1), 0))
        .with_columns(one=pc.field("value") * 0 + 1)
        .key_by("key", slots=4)
        .aggregate(n=ps.sum("one"))
    )
    query = flow.start(sink, checkpoint=checkpoint)
    until(query, lambda: sum(row["n"] for row in sink.latest("key").values()) >= 500)
    assert {key: row["n"] for key, row in sink.latest("key").items()} == expected


def _columns(batch: pa.RecordBatch) -> tuple[list[int], list[int]]:
    return batch.column("key").to_pylist(), batch.column("value").to_pylist()


def test_python_data_sources(spark: SparkSession, tmp_path: Path) -> None:
    for kind, options in ((Counting, {"step": END}), (Simple, {})):
        sink = ps.collect()
        query = (
            ps.flow(ps.source(kind, **options))
            .select("n", "word")
            .start(sink, checkpoint=str(tmp_path / kind.__name__))
        )
        until(query, lambda sink=sink: len(sink.rows()) >= END)
        assert sorted(row["n"] for row in sink.rows()) == list(range(END))


def test_a_function_gets_arrow_batches_where_the_rows_are(
    spark: SparkSession, tmp_path: Path
) -> None:
    def write(batch: pa.RecordBatch, ids: RowIds) -> None:
        name = f"{ids.epoch}-{ids.courier}-{ids.first}-{os.getpid()}"
        tmp_path.joinpath(name).write_text("\n".join(map(str, batch.column("id").to_pylist())))

    df = spark.range(100).repartition(2)
    ps.flow(df).select("id").start(ps.foreach_arrow(write)).await_termination(60)
    found = [int(n) for file in tmp_path.iterdir() for n in file.read_text().split()]
    assert sorted(found) == list(range(100))
    assert not any(file.name.endswith(f"-{os.getpid()}") for file in tmp_path.iterdir())
