"""Inputs that break off in Spark, in the middle of a partition and between two Arrow batches."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import penstock as ps
from penstock.errors import CutInputError
from penstock.spark import private
from tests.spark.sources import numbers, run, stream, write_files
from tests.spark.test_flow import sums

FILES, ROWS, BATCH = 4, 4000, 500
"""Batches of 500 rows with some 200 bytes each are more than Spark gathers before it sends them."""


def once(marker: Path) -> bool:
    """Whether this is the first call with this marker, in any process."""
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def breaking(
    marker: Path, times: int, after: int
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A Spark step before the flow that fails in the middle of partitions, this many times."""

    def function(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            if number == after and any(once(Path(f"{marker}{time}")) for time in range(times)):
                raise RuntimeError("the source broke off")
            yield batch

    return function


@pytest.fixture
def small_batches(spark: SparkSession) -> Iterator[None]:
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(BATCH))
    yield
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("one_host", [False, True])
def test_an_input_that_breaks_off_is_not_taken_for_a_short_one(
    spark: SparkSession, tmp_path: Path, checkpoint: str, one_host: bool
) -> None:
    tables = [
        table.append_column("text", pa.array(["x" * 200] * ROWS))
        for table in numbers(FILES, ROWS, keys=100)
    ]
    write_files(tmp_path / "in", tables)
    source = stream(spark, tmp_path / "in", files_per_epoch=2)
    broken = source.mapInArrow(breaking(tmp_path / "broke", times=3, after=5), source.schema)
    flow = ps.flow(broken).key_by("k", slots=16).aggregate(total=ps.sum("v"), n=ps.count())
    query, sink = run(flow.on_one_host() if one_host else flow, checkpoint)
    assert len(list(tmp_path.glob("broke*"))) == 3
    assert {k: (r["total"], r["n"]) for k, r in sink.latest("k").items()} == sums(tables)
    assert sum(epoch.rows for epoch in query.progress) == FILES * ROWS


def test_another_input_on_a_second_try_means_another_run(
    spark: SparkSession, tmp_path: Path, checkpoint: str
) -> None:
    """A task gives half of its rows to hosts, and fails; all of them come when it is tried again."""
    tables = numbers(1, ROWS, keys=100)
    write_files(tmp_path / "in", tables)
    source = stream(spark, tmp_path / "in")

    def halved(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        short = once(tmp_path / "halved")
        for batch in batches:
            yield batch.slice(0, batch.num_rows // 2) if short else batch

    def failing(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.num_rows and once(tmp_path / "failed"):
            raise SystemExit("the task dies here")
        return batch

    keyed = ps.flow(source.mapInArrow(halved, source.schema)).key_by("k", slots=16)
    flow = keyed.aggregate(total=ps.sum("v"), n=ps.count()).map_batches(failing)
    query, sink = run(flow, checkpoint, hosts=2)
    assert {k: (r["total"], r["n"]) for k, r in sink.latest("k").items()} == sums(tables)
    assert [(epoch.runs, epoch.rows) for epoch in query.progress] == [(2, ROWS)]


@pytest.mark.usefixtures("small_batches")
def test_a_source_that_always_breaks_tells_why(
    spark: SparkSession, tmp_path: Path, checkpoint: str
) -> None:
    """Not that an input was cut, which is all that couriers know."""
    write_files(tmp_path / "in", numbers(1, ROWS, keys=100))
    source = stream(spark, tmp_path / "in")
    broken = source.mapInArrow(breaking(tmp_path / "broke", times=99, after=5), source.schema)
    flow = ps.flow(broken).key_by("k", slots=16).aggregate(n=ps.count())
    with pytest.raises(Exception, match="the source broke off"):
        run(flow, checkpoint)


@pytest.mark.parametrize("rows", [0, 1, 7 * BATCH])
@pytest.mark.usefixtures("small_batches")
def test_sparks_mark_is_found_behind_the_last_batch_only(spark: SparkSession, rows: int) -> None:
    """Notices when a release of Spark reads its input, or ends it, in another way."""

    def ends(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        early = 0
        for _ in batches:
            with suppress(CutInputError):
                private.check_input_end()
                early += 1
        private.check_input_end()
        private.check_input_end()  # looking does not take it away
        yield pa.record_batch({"early": pa.array([early], pa.int64())})

    source = spark.range(0, max(rows, 1), 1, 1).where(f"id < {rows}")
    assert [row.early for row in source.mapInArrow(ends, "early long").collect()] == [0]
