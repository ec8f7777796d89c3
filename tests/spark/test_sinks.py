"""Sinks: each gets every epoch's output once, however it reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import penstock as ps
from penstock.faults import Fault, InjectedFault
from penstock.spark import private
from tests.spark.sources import numbers, run, stream, write_files
from tests.spark.test_flow import sums


@pytest.fixture
def tables(tmp_path: Path) -> list[Any]:
    made = numbers(files=4, rows=300, keys=40)
    write_files(tmp_path / "in", made)
    return made


def flow(spark: SparkSession, folder: Path) -> ps.Flow:
    return (
        ps.flow(stream(spark, folder / "in", files_per_epoch=2))
        .key_by("k", slots=8)
        .aggregate(total=ps.sum("v"), n=ps.count())
    )


def test_a_function_may_read_in_any_way(
    spark: SparkSession, tmp_path: Path, checkpoint: str, tables: list[Any]
) -> None:
    """Twice, in part, merged: what it does not read is still counted."""
    latest: dict[int, tuple[int | None, int]] = {}
    counts = []

    def save(df: DataFrame, epoch: int) -> None:
        assert len(df.limit(1).collect()) == 1
        rows = df.coalesce(1).collect()
        counts.append((df.count(), len(rows)))
        latest.update({r["k"]: (r["total"], r["n"]) for r in rows})

    run(flow(spark, tmp_path), checkpoint, sink=ps.foreach_batch(save))
    assert latest == sums(tables)
    assert [a for a, _ in counts] == [b for _, b in counts]


def test_a_function_that_reads_nothing_loses_nothing(
    spark: SparkSession, tmp_path: Path, checkpoint: str, tables: list[Any]
) -> None:
    def ignore(df: DataFrame, epoch: int) -> None:
        """Does not look at all."""

    run(flow(spark, tmp_path), checkpoint, sink=ps.foreach_batch(ignore))
    write_files(tmp_path / "in", tables, start=4)
    _, sink = run(flow(spark, tmp_path), checkpoint)
    assert {k: (r["total"], r["n"]) for k, r in sink.latest("k").items()} == sums(tables * 2)


@pytest.mark.parametrize("format", ["parquet", "json", "csv"])
def test_files_have_a_folder_for_each_epoch(
    spark: SparkSession, tmp_path: Path, checkpoint: str, tables: list[Any], format: str
) -> None:
    out = str(tmp_path / "out")
    run(flow(spark, tmp_path), checkpoint, sink=ps.to(format, path=out))
    schema = "k long, total long, n long, epoch int"
    rows = spark.read.schema(schema).format(format).load(out).orderBy("epoch").collect()
    assert {r["k"]: (r["total"], r["n"]) for r in rows} == sums(tables)
    assert {r["epoch"] for r in rows} == {0, 1}


def test_console_prints_and_loses_nothing(
    spark: SparkSession, tmp_path: Path, checkpoint: str, tables: list[Any]
) -> None:
    query, _ = run(flow(spark, tmp_path), checkpoint, sink=ps.to("console"))
    assert [p.rows for p in query.progress] == [600, 600]


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_a_raising_function_ends_the_query_with_its_error(
    spark: SparkSession,
    tmp_path: Path,
    checkpoint: str,
    tables: list[Any],
    error: type[BaseException],
) -> None:
    """Also with what is no Exception: py4j tells Spark nothing of it, which would wait for ever."""

    def fail(df: DataFrame, epoch: int) -> None:
        raise error("the sink is closed")

    with pytest.raises(error, match="the sink is closed"):
        run(flow(spark, tmp_path), checkpoint, sink=ps.foreach_batch(fail))
    _, sink = run(flow(spark, tmp_path), checkpoint)
    assert {k: (r["total"], r["n"]) for k, r in sink.latest("k").items()} == sums(tables)


class Remembering:
    """Takes an epoch once and then ignores it, as Delta does; optionally only one partition of it."""

    def __init__(self, limit: int | None = None) -> None:
        self.kept, self.limit = ps.collect(), limit

    def write(self, df: DataFrame, epoch: int, flow_id: str) -> None:
        if epoch not in self.kept.epochs():
            self.kept.write(df if self.limit is None else df.limit(self.limit), epoch, flow_id)


@pytest.mark.parametrize("limit", [None, 1])
def test_a_sink_that_has_an_epoch_already_takes_nothing_from_the_state(
    spark: SparkSession, tmp_path: Path, checkpoint: str, tables: list[Any], limit: int | None
) -> None:
    """The couriers of a replayed epoch run although the sink does not want it."""
    sink = Remembering(limit)
    dying = ps.Settings(faults=(Fault("driver.written", where={"epoch": 1}),))
    with pytest.raises(InjectedFault):
        run(flow(spark, tmp_path), checkpoint, sink=sink, settings=dying)
    assert list(sink.kept.epochs()) == [0, 1]
    write_files(tmp_path / "in", tables, start=4)
    query, _ = run(flow(spark, tmp_path), checkpoint, sink=sink)
    assert [(p.epoch, p.rows) for p in query.progress] == [(1, 600), (2, 600), (3, 600)]
    if limit is None:
        found = {k: (r["total"], r["n"]) for k, r in sink.kept.latest("k").items()}
        assert found == sums(tables * 2)


def test_a_function_may_read_again_what_was_lost(
    spark: SparkSession, tmp_path: Path, checkpoint: str, tables: list[Any]
) -> None:
    """As when an executor dies that held the output: couriers get the answers that hosts keep."""
    tracker = spark.sparkContext._jsc.sc().env().mapOutputTracker()
    counts = []

    def save(df: DataFrame, epoch: int) -> None:
        before = sorted(df.collect())
        tracker.unregisterAllMapAndMergeOutput(private.shuffle_of(df))
        merged = sorted(df.coalesce(1).collect())
        tracker.unregisterAllMapAndMergeOutput(private.shuffle_of(df))
        counts.append((before == merged == sorted(df.collect()), len(before)))

    query, _ = run(flow(spark, tmp_path), checkpoint, sink=ps.foreach_batch(save))
    assert counts == [(True, 40), (True, 40)]
    assert [p.runs for p in query.progress] == [1, 1]
