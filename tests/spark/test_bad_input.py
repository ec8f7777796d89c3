"""Bad input gets a clear error that says what to do, and loses nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import penstock as ps
from tests.spark.sources import numbers, run, stream, write_files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_files(tmp_path / "in", numbers(files=2, rows=100, keys=10))
    return tmp_path / "in"


def test_unknown_key_column(spark: SparkSession, folder: Path) -> None:
    with pytest.raises(ps.FlowError, match=r"no column 'key'.*k, v, x"):
        ps.flow(stream(spark, folder)).key_by("key")


def test_arrival_must_be_a_timestamp(spark: SparkSession, folder: Path) -> None:
    with pytest.raises(ps.FlowError, match="must be a timestamp"):
        ps.flow(stream(spark, folder), arrival="v")


def test_more_hosts_than_the_master_has_cores(
    spark: SparkSession, folder: Path, checkpoint: str
) -> None:
    flow = ps.flow(stream(spark, folder)).key_by("k").aggregate(n=ps.count())
    with pytest.raises(ps.SettingError, match=r"40 hosts and a courier need 41 task slots"):
        flow.start(ps.collect(), checkpoint=checkpoint, hosts=40)


def test_a_folder_that_cannot_be_used(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    flow = ps.flow(stream(spark, folder)).key_by("k").aggregate(n=ps.count())
    with pytest.raises(ps.SettingError, match="cannot use the checkpoint folder"):
        flow.start(ps.collect(), checkpoint=str(tmp_path / "file"))


def test_a_port_that_is_taken(spark: SparkSession, folder: Path, checkpoint: str) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        flow = ps.flow(stream(spark, folder)).key_by("k").aggregate(n=ps.count())
        settings = ps.Settings(driver_port=taken.getsockname()[1])
        with pytest.raises(ps.SettingError, match="cannot listen"):
            flow.start(ps.collect(), checkpoint=checkpoint, settings=settings)


def test_a_stream_without_a_checkpoint(spark: SparkSession, folder: Path) -> None:
    flow = ps.flow(stream(spark, folder)).key_by("k").aggregate(n=ps.count())
    with pytest.raises(ps.SettingError, match="needs a checkpoint"):
        flow.start(ps.collect())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.key_by("k", slots=32).aggregate(n=ps.count()), "slot count"),
        (lambda f: f.key_by("v", slots=16).aggregate(n=ps.count()), "key columns"),
        (lambda f: f.key_by("k", slots=16).aggregate(n=ps.min("x")), "state schema"),
        (
            lambda f: f.key_by("k", slots=16).aggregate(n=ps.count()).global_(t=ps.sum("n")),
            "keyed steps",
        ),
    ],
)
def test_a_checkpoint_of_another_flow(
    spark: SparkSession, folder: Path, checkpoint: str, change: object, message: str
) -> None:
    run(ps.flow(stream(spark, folder)).key_by("k", slots=16).aggregate(n=ps.count()), checkpoint)
    changed = change(ps.flow(stream(spark, folder)))  # type: ignore[operator]
    with pytest.raises(ps.CheckpointError, match=message):
        changed.start(ps.collect(), checkpoint=checkpoint)


def test_null_keys_stop_the_flow_and_name_the_row(
    spark: SparkSession, tmp_path: Path, checkpoint: str
) -> None:
    write_files(tmp_path / "in", [pa.table({"k": [1, None, 2], "v": [1, 2, 3]})])
    flow = ps.flow(stream(spark, tmp_path / "in")).key_by("k").aggregate(t=ps.sum("v"))
    with pytest.raises(ps.NullKeyError, match=r'aggregate-1.*"v": 2.*dead_letter'):
        run(flow, checkpoint)


def test_null_keys_as_dead_letters(spark: SparkSession, tmp_path: Path, checkpoint: str) -> None:
    write_files(tmp_path / "in", [pa.table({"k": [1, None, 2], "v": [1, 2, 3]})])
    flow = ps.flow(stream(spark, tmp_path / "in")).key_by("k").aggregate(t=ps.sum("v"))
    query, sink = run(flow, checkpoint, on_error="dead_letter")
    assert {k: r["t"] for k, r in sink.latest("k").items()} == {1: 1, 2: 3}
    letters = [
        json.loads(line)
        for file in Path(checkpoint, "penstock/dead_letters").iterdir()
        for line in file.read_text().splitlines()
    ]
    assert [json.loads(letter["row"]) for letter in letters] == [{"k": None, "v": 2}]
    assert sum(p.dead_letters for p in query.progress) == 1


def inverse(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Fails on a zero, as user code may."""
    return pa.RecordBatch.from_pydict(
        {"k": batch["k"], "v": [100 // v for v in batch["v"].to_pylist()]}
    )


def test_a_failing_function_names_step_and_row(
    spark: SparkSession, tmp_path: Path, checkpoint: str
) -> None:
    rows = pa.table({"k": [1, 2, 3, 4], "v": [1, 2, 0, 4]})
    write_files(tmp_path / "in", [rows])
    flow = (
        ps.flow(stream(spark, tmp_path / "in"))
        .map_batches(inverse, schema="k long, v long")
        .key_by("k")
        .aggregate(t=ps.sum("v"))
    )
    with pytest.raises(ps.StepError, match="ZeroDivisionError") as raised:
        run(flow, checkpoint)
    assert raised.value.step == "map-1"
    assert json.loads(raised.value.row) == {"k": 3, "v": 0}
    _, sink = run(flow, checkpoint + "2", on_error="dead_letter")
    assert {k: r["t"] for k, r in sink.latest("k").items()} == {1: 100, 2: 50, 4: 25}
