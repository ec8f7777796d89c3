"""The report that a query leaves when it ends."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import penstock as ps
from penstock.errors import SettingError


def total(spark: SparkSession) -> ps.Flow:
    return ps.flow(spark.range(1_000)).key_by("id", slots=8).aggregate(n=ps.count(), name="totals")


def test_a_run_leaves_a_report(spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "out" / "report.html"
    query = total(spark).start(ps.to("noop"), hosts=1, name="my totals", report=str(file))
    assert query.await_termination(120)
    page = file.read_text()
    assert "my totals ran in micro-batches for" in page
    assert "1,000 rows in 1 epoch," in page
    assert "autoscaling was off" in page


def test_a_failed_run_leaves_a_report_that_says_why(spark: SparkSession, tmp_path: Path) -> None:
    def refuse(df: object, epoch: int) -> None:
        raise ValueError("this sink takes nothing")

    file = tmp_path / "report.html"
    query = total(spark).start(ps.foreach_batch(refuse), hosts=1, report=str(file))
    with pytest.raises(Exception, match="takes nothing"):
        query.await_termination(120)
    assert "It failed: " in file.read_text()


def test_a_report_that_cannot_be_written_is_refused_at_the_start(
    spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(SettingError, match="is a folder"):
        total(spark).start(ps.to("noop"), report=str(tmp_path))
