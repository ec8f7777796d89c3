"""A flow that is stopped in one mode and continued in the other, from the same checkpoint."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

import penstock as ps
from penstock.errors import CheckpointError
from penstock.live.sources.rate import RateSource
from penstock.testing import Fault, armed
from tests.spark.test_live import until

WAIT_S, RATE, KEYS = 60.0, 1_000, 40
LIVE: dict[str, Any] = {"mode": "live", "checkpoint_every": "200ms"}


def flow(source: RateSource) -> ps.Flow:
    """Windows of a tenth of a second, and how many rows each had."""
    return (
        ps.flow(source, event_time="arrival")
        .key_by("key", slots=8)
        .window(ps.tumbling("100ms"))
        .aggregate(n=ps.count())
    )


def windows(out: Path) -> Counter[tuple[int, int]]:
    """(key, start of the window) -> rows, over all files; each window once."""
    rows = ds.dataset(out, format="parquet", partitioning="hive").to_table().to_pylist()
    assert len({(row["key"], row["window_start"]) for row in rows}) == len(rows), (
        "a window is there twice"
    )
    return Counter({(row["key"], row["window_start"]): row["n"] for row in rows})


def test_back_and_forth(spark: SparkSession, checkpoint: str, tmp_path: Path) -> None:
    rows, out = 25_000, tmp_path / "out"
    counted = flow(ps.rate(RATE, keys=KEYS, rows=rows))
    start: dict[str, Any] = {"checkpoint": checkpoint}
    for options in ({}, {**LIVE, "delivery": "transactional"}, {}):
        query = counted.start(ps.to("parquet", path=str(out)), **start, **options)
        try:
            until(query, lambda query=query: sum(one.rows for one in query.progress) > 100)  # type: ignore[misc]
        finally:
            query.stop()
    query = counted.start(ps.to("parquet", path=str(out)), close=True, **start, **LIVE)
    assert query.await_termination(WAIT_S)
    assert sum(windows(out).values()) == rows


@pytest.mark.parametrize(
    ("before", "after"), [({}, LIVE), (LIVE, {})], ids=["micro-batches first", "live first"]
)
def test_an_epoch_that_was_interrupted_in_one_mode_is_replaced_in_the_other(
    spark: SparkSession,
    checkpoint: str,
    tmp_path: Path,
    before: dict[str, Any],
    after: dict[str, Any],
) -> None:
    """Its output is in the sink already, and its epoch is not durable."""
    out, counted = tmp_path / "out", flow(ps.rate(RATE, keys=KEYS))
    sink, start = ps.to("parquet", path=str(out)), dict[str, Any](checkpoint=checkpoint)
    with armed(Fault("driver.sealed", OSError, where={"epoch": 3})):
        query = counted.start(sink, **start, **before)
        with suppress(Exception):
            query.await_termination(WAIT_S)
        assert query.exception() is not None
    assert list(out.glob("epoch=3/*.parquet"))
    query = counted.start(sink, **start, **after)
    until(query, lambda: len(query.progress) > 2)
    query.stop()
    rows = 30_000
    ended = flow(ps.rate(RATE, keys=KEYS, rows=rows))
    query = ended.start(sink, close=True, **start, **LIVE)
    assert query.await_termination(WAIT_S)
    assert sum(windows(out).values()) == rows


def test_partitions_that_have_not_come_equally_far_stay_in_their_mode(
    spark: SparkSession, checkpoint: str
) -> None:
    source = ps.rate(RATE, partitions=2)
    assert source.offset_at(source.positions_at({"row": 7, "start_ms": 5, "first": 0})) == {
        "row": 7,
        "start_ms": 5,
        "first": 0,
    }
    with pytest.raises(CheckpointError, match="equally far"):
        source.offset_at({"0": {"row": 9, "start_ms": 5}, "1": {"row": 4, "start_ms": 5}})


def test_a_data_frame_cannot_go_on_where_couriers_were(
    spark: SparkSession, checkpoint: str, tmp_path: Path
) -> None:
    counted = ps.flow(ps.rate(RATE, keys=4)).key_by("key").aggregate(n=ps.count())
    query = counted.start(ps.collect(), checkpoint=checkpoint, **LIVE)
    until(query, lambda: len(query.progress) > 1)
    query.stop()
    stream = spark.readStream.format("rate").load().selectExpr("value as key")
    with pytest.raises(CheckpointError, match="DataFrame"):
        ps.flow(stream).key_by("key").aggregate(n=ps.count()).start(
            ps.collect(), checkpoint=checkpoint
        )
