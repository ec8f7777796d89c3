"""Files of many epochs become few, with the same rows, in every format and through every fault."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import penstock as ps
from penstock.faults import Fault, InjectedFault, armed
from penstock.spark.merger import Merger
from penstock.spark.sinks import Writer

ODD = [
    "plain",
    'a "quoted" one',
    "back\\slash\\",
    "two\nlines",
    "",
    None,
    " blank ",
    "comma, and ;",
]


def epoch_rows(spark: SparkSession, epoch: int, columns: list[str]) -> DataFrame:
    rows = [(f"0{epoch % 2}", epoch * 10 + n, text) for n, text in enumerate(ODD)]
    df = spark.createDataFrame(rows, "p string, n long, s string")
    return df.select(*columns).repartition(2)


def run_epochs(
    spark: SparkSession, sink: Writer, columns: list[str], epochs: range, start: bool = True
) -> None:
    """What a query does with its sink; a fault ends it."""
    merger = Merger(spark, sink)
    try:
        for epoch in epochs:
            merger.begin(epoch)
            sink.write(epoch_rows(spark, epoch, columns), epoch, "flow")
            merger.committed(epoch)
            if merger._task is not None:
                merger._task.result()
    finally:
        merger.stop()


def content(spark: SparkSession, sink: Writer, columns: list[str]) -> Counter[Any]:
    """All rows but their epochs, as a reader gets them; lines for text."""
    reader = spark.read.format(sink.format).options(
        **sink.options | {"multiLine": sink.format == "csv"}
    )
    schema = ", ".join(f"{c} {'long' if c == 'n' else 'string'}" for c in columns)
    return Counter(reader.schema(f"{schema}, epoch int").load().drop("epoch").collect())


def epochs_of(sink: Writer) -> list[int]:
    root = Path(sink.options["path"])
    return sorted(int(f.name.removeprefix("epoch=")) for f in root.glob("epoch=*"))


@pytest.mark.parametrize(
    ("format", "columns", "options"),
    [
        ("parquet", ["n", "s", "p"], {"partition_by": "p"}),
        ("orc", ["n", "s"], {"compression": "zlib"}),
        ("json", ["n", "s", "p"], {"partition_by": ["p"], "compression": "gzip"}),
        ("csv", ["n", "s"], {"header": True}),
        ("csv", ["n", "s"], {"compression": "bzip2"}),
        ("text", ["s"], {}),
    ],
)
def test_merged_files_hold_what_single_ones_held(
    spark: SparkSession, tmp_path: Path, format: str, columns: list[str], options: dict[str, Any]
) -> None:
    merged = ps.to(format, path=str(tmp_path / "merged"), merge_epochs=3, **options)
    single = ps.to(format, path=str(tmp_path / "single"), merge_epochs=0, **options)
    for sink in (merged, single):
        run_epochs(spark, sink, columns, range(5))
        run_epochs(spark, sink, columns, range(4, 8))  # the last one is run again
    assert epochs_of(single) == list(range(8))
    assert epochs_of(merged) == [2, 5, 6, 7]
    assert content(spark, merged, columns) == content(spark, single, columns)
    files = list((tmp_path / "merged/epoch=5").rglob("part-*"))
    assert len(files) == (2 if "partition_by" in options else 1)


def test_columns_that_came_or_went_between_two_starts_are_kept(
    spark: SparkSession, tmp_path: Path
) -> None:
    sink = ps.to("parquet", path=str(tmp_path / "out"), merge_epochs=4)
    run_epochs(spark, sink, ["n"], range(2))
    run_epochs(spark, sink, ["s", "n"], range(2, 7))
    assert epochs_of(sink) == [3, 4, 5, 6]
    found = Counter(tuple(row) for row in spark.read.parquet(f"{tmp_path}/out/epoch=3").collect())
    expected: Counter[Any] = Counter(
        (epoch * 10 + n, None) for epoch in range(2) for n in range(len(ODD))
    )
    expected += Counter((e * 10 + n, s) for e in range(2, 4) for n, s in enumerate(ODD))
    assert found == expected


def test_every_row_is_there_once_whichever_operation_fails(
    spark: SparkSession, tmp_path: Path
) -> None:
    fired, hit = True, 0
    while fired:
        hit += 1
        sink = ps.to("json", path=str(tmp_path / str(hit)), merge_epochs=3)
        with armed(Fault("sink.merge", hits=(hit,))) as faults:
            try:
                run_epochs(spark, sink, ["n"], range(4))
            except InjectedFault:
                fired = True
        fired = bool(faults.fired)
        run_epochs(spark, sink, ["n"], range(3, 6))
        there = content(spark, sink, ["n"])
        assert sorted(row["n"] for row in there.elements()) == [
            epoch * 10 + n for epoch in range(6) for n in range(len(ODD))
        ]
        assert epochs_of(sink) == [2, 3, 4, 5]
    assert hit > 6


def test_a_merge_that_fails_leaves_the_query_alone_and_is_tried_again(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sink = ps.to("json", path=str(tmp_path / "out"), merge_epochs=3)
    with armed(Fault("sink.merge", OSError, {"operation": "rename"}, hits=(2,))):
        run_epochs(spark, sink, ["n"], range(8))
    (told,) = [record.getMessage() for record in caplog.records if record.name == "penstock.sinks"]
    assert "could not be merged: fault injected" in told
    assert len(epochs_of(sink)) < 7
    assert sum(content(spark, sink, ["n"]).values()) == 8 * len(ODD)
    assert set(content(spark, sink, ["n"]).values()) == {1}


def test_a_folder_with_a_mode_of_its_own_is_not_merged() -> None:
    assert ps.to("parquet", path="out").merges
    assert not ps.to("parquet", path="out", merge_epochs=0).merges
    assert not ps.to("parquet", path="out", mode="append").merges
    assert not ps.to("avro", path="out").merges
    assert not ps.to("delta", path="out").merges
    with pytest.raises(ps.SettingError, match="at least 2"):
        ps.to("parquet", path="out", merge_epochs=1)
