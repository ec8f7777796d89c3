"""The TPCx-BB queries on Spark, over a stream of files and over a static DataFrame."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import penstock as ps
from penstock.errors import SettingError
from penstock_bench.workloads.nexmark.output import read_epochs
from penstock_bench.workloads.tpcx_bb.catalog import TITLES, begin, final, find, query
from penstock_bench.workloads.tpcx_bb.config import TpcxBbConfig
from penstock_bench.workloads.tpcx_bb.files import batches_of, static, streaming, write
from tests.bench.workloads.tpcx_bb_sql import answer

CONFIG = TpcxBbConfig(
    tickets=1_200, sessions=1_000, tickets_per_day=200, sessions_per_day=100, items=200, users=100
)


def result(number: int, rows: DataFrame, work: Path, streams: bool) -> pa.Table:
    flow = query(number, begin(number, rows))
    how: dict[str, Any] = {
        "checkpoint": str(work / "checkpoint"),
        "trigger": "available_now",
        "close": True,
    }
    running = flow.start(
        ps.to("parquet", path=str(work / "rows")), hosts=2, **(how if streams else {})
    )
    try:
        assert running.await_termination(120)
    finally:
        running.stop()
    return final(number, read_epochs(work / "rows", flow.schema))


def check(number: int, found: pa.Table) -> None:
    (rows,) = batches_of(CONFIG, find(number).stream, 1)
    expected = answer(number, rows)
    assert len(expected)
    assert found.column_names == expected.column_names
    for name in expected.column_names:
        wanted = expected[name].to_pylist()
        exact = not pa.types.is_floating(expected[name].type)
        assert found[name].to_pylist() == (wanted if exact else pytest.approx(wanted))


@pytest.mark.parametrize("number", TITLES)
def test_answers_over_a_stream(spark: SparkSession, number: int, tmp_path: Path) -> None:
    stream = find(number).stream
    write(CONFIG, stream, tmp_path / "stream", batches=3)
    rows = streaming(spark, stream, tmp_path / "stream")
    check(number, result(number, rows, tmp_path, streams=True))


@pytest.mark.parametrize("number", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_answers_over_a_static_frame(spark: SparkSession, number: int, tmp_path: Path) -> None:
    stream = find(number).stream
    write(CONFIG, stream, tmp_path / "stream")
    rows = static(spark, stream, tmp_path / "stream")
    check(number, result(number, rows, tmp_path, streams=False))


def test_a_static_frame_of_several_batches_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    write(CONFIG, "clicks", tmp_path / "stream", batches=2)
    with pytest.raises(SettingError, match="several batches"):
        static(spark, "clicks", tmp_path / "stream")
