"""Sinks of live couriers without a broker: files, functions, the driver's memory."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import penstock as ps
from penstock.errors import FlowError, SettingError, StepError
from penstock.live.sinks.kafka import KafkaSink
from penstock.live.sinks.sink import LiveSink, RowIds
from penstock.spark.sinks import live_sink
from penstock.state.store.places import Place
from tests.live.sinks.contract import check_delivers_once, check_replaces, write

SCHEMA = pa.schema([("n", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])


def rows(*numbers: int) -> pa.RecordBatch:
    at = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    return pa.RecordBatch.from_pylist([{"n": n, "at": at} for n in numbers], schema=SCHEMA)


def run(sink: LiveSink, courier: int, epochs: dict[int, list[pa.RecordBatch]]) -> None:
    write(sink, courier, epochs, SCHEMA)


def numbers(path: Path, format: str) -> list[int]:
    if not list(path.glob("**/*.*")):
        return []
    rows = ds.dataset(path, format=format, exclude_invalid_files=False).to_table(columns=["n"])
    return sorted(rows.column("n").to_pylist())


@pytest.mark.parametrize("format", ["parquet", "json", "csv"])
def test_files_appear_with_their_epoch_and_are_replaced_when_it_is_run_again(
    tmp_path: Path, format: str
) -> None:
    sink = live_sink(ps.to(format, path=str(tmp_path / "out")))
    writer = sink.writer(0, SCHEMA)
    writer.write(rows(1, 2), RowIds(0, 5, 0))
    assert not list(tmp_path.glob("out/**/*.*"))
    writer.flush(5)
    writer.write(rows(3), RowIds(0, 6, 0))
    writer.flush(6)
    writer.write(rows(4), RowIds(0, 7, 0))
    writer.close()  # a courier that ends before the epoch has passed leaves no file
    run(sink, 1, {6: [rows(30)]})
    assert numbers(tmp_path / "out", format) == [1, 2, 3, 30]

    run(sink, 0, {6: [rows(3), rows(4)]})
    assert numbers(tmp_path / "out", format) == [1, 2, 3, 4, 30]

    sink.rewind(5)  # courier 1 is not restarted
    run(sink, 0, {6: [rows(3, 30)], 7: []})
    assert numbers(tmp_path / "out", format) == [1, 2, 3, 30]
    assert all(path.name == f"courier-0.{format}" for path in (tmp_path / "out").glob("*/*"))


@pytest.mark.parametrize("format", ["parquet", "json", "csv"])
def test_files_hold_the_contract_of_sinks(tmp_path: Path, format: str) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    check_replaces(live_sink(ps.to(format, path=str(one))), lambda: numbers(one, format))
    sink = live_sink(ps.to(format, path=str(two)))
    check_delivers_once(sink, lambda: numbers(two, format), Place(str(tmp_path / "checkpoint")))


def test_many_small_chunks_become_few_row_groups(tmp_path: Path) -> None:
    sink = live_sink(ps.to("parquet", path=str(tmp_path), compression="zstd"))
    run(sink, 0, {1: [rows(n) for n in range(500)]})
    (file,) = tmp_path.glob("*/*")
    meta = pa.parquet.ParquetFile(file).metadata
    assert (meta.num_rows, meta.num_row_groups) == (500, 1)
    assert meta.row_group(0).column(0).compression == "ZSTD"


def test_a_rewind_leaves_what_others_wrote(tmp_path: Path) -> None:
    """But for the next epoch, which may have been interrupted in micro-batches."""
    interrupted, other = (tmp_path / f"epoch={epoch}" / "part-0.parquet" for epoch in (2, 9))
    for file in (interrupted, other):
        file.parent.mkdir()
        file.write_bytes(b"of micro-batches")
    live_sink(ps.to("parquet", path=str(tmp_path))).rewind(1)
    assert (interrupted.exists(), other.exists()) == (False, True)


def test_collected_rows_are_there_with_their_epoch() -> None:
    sink = ps.collect()
    run(sink.live(), 1, {3: [rows(1), rows(2)], 4: []})
    run(sink.live(), 0, {3: [rows(7)], 5: [rows(9)]})
    assert {epoch: table.column("n").to_pylist() for epoch, table in sink.epochs().items()} == {
        3: [7, 1, 2],
        5: [9],
    }
    run(sink.live(), 1, {3: [rows(1)]})
    assert [row["n"] for row in sink.rows()] == [7, 1, 9]


def test_a_function_gets_batches_and_ids() -> None:
    calls: list[tuple[int, str]] = []
    sink = live_sink(
        ps.foreach_arrow(lambda batch, ids: calls.append((batch.num_rows, ids.text(0))))
    )
    run(sink, 4, {2: [rows(1, 2), rows(3)]})
    assert calls == [(2, "4-2-0"), (1, "4-2-2")]


def test_a_function_that_fails_is_reported() -> None:
    def fails(batch: pa.RecordBatch, ids: RowIds) -> None:
        raise ValueError("full")

    writer = live_sink(ps.foreach_arrow(fails)).writer(0, SCHEMA)
    with pytest.raises(StepError, match="ValueError: full"):
        writer.write(rows(1), RowIds(0, 1, 0))


@pytest.mark.parametrize(
    "make",
    [
        lambda: ps.to("delta", path="x"),
        lambda: ps.to("console"),
        lambda: ps.to("parquet", path="x", partition_by="n"),
        lambda: ps.to("parquet", path="x", mode="append"),
        lambda: ps.to("kafka", topic="x"),
        lambda: ps.foreach_batch(lambda df, epoch: None),
    ],
)
def test_sinks_that_only_spark_has_are_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(SettingError, match=r"live mode|servers and a topic"):
        live_sink(make())


def test_messages_that_cannot_be_made_are_refused() -> None:
    for sink, words in (
        (KafkaSink("b", "t", key="user"), "'user' is not a column"),
        (KafkaSink("b", "t", "raw"), "column `value`"),
        (KafkaSink("b", "t", "arrow", key="n"), "cannot have a key"),
        (KafkaSink("b", "t", "avro"), "needs a schema"),
    ):
        with pytest.raises(FlowError, match=words):
            sink.encoder(SCHEMA)
    with pytest.raises(SettingError, match="unknown format"):
        KafkaSink("b", "t", "xml").encoder(SCHEMA)


def test_keys_of_messages() -> None:
    batch = pa.record_batch({"n": [1, None], "s": ["a", "b"]})
    assert KafkaSink("b", "t", key="n").keys(batch) == ["1", None]
    assert KafkaSink("b", "t", key="s").keys(batch) == ["a", "b"]
    assert KafkaSink("b", "t").keys(batch) == [None, None]
