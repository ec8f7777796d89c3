"""Files of many epochs become few, with the same rows, in every format and through every fault."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import penstock as ps
from penstock.faults import Fault, InjectedFault, armed
from penstock.spark.merger import Merger
from penstock.spark.sinks import Writer
from tests.spark import sources

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


def epoch_rows(spark: SparkSession, epochs: range, columns: list[str]) -> DataFrame:
    """The same texts in each epoch, and numbers of its own."""
    text = F.element_at(F.array(*map(F.lit, ODD)), F.col("id").cast("int") % len(ODD) + 1)
    ids = spark.range(epochs.start * len(ODD), epochs.stop * len(ODD), 1, 2)
    parity = F.concat(F.lit("0"), F.col("id") % 2)
    return ids.select(F.col("id").alias("n"), text.alias("s"), parity.alias("p")).select(*columns)


def run_epochs(sink: Writer, epochs: range, write: Callable[[int], None], merger: Merger) -> None:
    """Writes of a query to its sink; a fault ends it."""
    try:
        for epoch in epochs:
            merger.begin(epoch)
            write(epoch)
            merger.committed(epoch)
            if merger._task is not None:
                merger._task.result()
    finally:
        merger.stop()


def content(spark: SparkSession, sink: Writer, columns: list[str]) -> Counter[Any]:
    """All rows but their epochs, as a reader gets them; lines for text."""
    options = sink.options | {"multiLine": sink.format == "csv"}
    schema = ", ".join(f"{c} {'long' if c == 'n' else 'string'}" for c in columns)
    reader = spark.read.format(sink.format).options(**options)
    return Counter(reader.schema(f"{schema}, epoch int").load().drop("epoch").collect())


def epochs_of(sink: Writer) -> list[int]:
    root = Path(sink.options["path"])
    return sorted(int(f.name.removeprefix("epoch=")) for f in root.glob("epoch=*"))


@pytest.mark.parametrize(
    ("format", "columns", "options"),
    [
        ("parquet", ["n", "s", "p"], {"partition_by": "p"}),
        ("json", ["n", "s", "p"], {"partition_by": ["p"], "compression": "gzip"}),
        ("csv", ["n", "s"], {"header": True}),
        pytest.param("csv", ["n", "s"], {"compression": "bzip2"}, marks=pytest.mark.slow),
        pytest.param("orc", ["n", "s"], {"compression": "zlib"}, marks=pytest.mark.slow),
        pytest.param("text", ["s"], {}, marks=pytest.mark.slow),
    ],
)
def test_merged_files_hold_what_single_ones_held(
    spark: SparkSession, tmp_path: Path, format: str, columns: list[str], options: dict[str, Any]
) -> None:
    merged = ps.to(format, path=str(tmp_path / "merged"), merge_epochs=2, **options)
    single = ps.to(format, path=str(tmp_path / "single"), merge_epochs=0, **options)

    def write(epoch: int) -> None:
        merged.write(epoch_rows(spark, range(epoch, epoch + 1), columns), epoch, "flow")

    run_epochs(merged, range(3), write, Merger(spark, merged))
    run_epochs(merged, range(2, 5), write, Merger(spark, merged))  # one of them again
    single.write(epoch_rows(spark, range(5), columns), 0, "flow")
    assert epochs_of(merged) == [1, 3, 4]
    assert content(spark, merged, columns) == content(spark, single, columns)
    files = list((tmp_path / "merged/epoch=3").rglob("part-*"))
    assert len(files) == (2 if "partition_by" in options else 1)


def test_columns_that_came_between_two_starts_are_kept(spark: SparkSession, tmp_path: Path) -> None:
    sink = ps.to("parquet", path=str(tmp_path / "out"), merge_epochs=2)
    for epoch, columns in enumerate((["n"], ["s", "n"], ["s", "n"])):
        sink.write(epoch_rows(spark, range(epoch, epoch + 1), columns), epoch, "flow")
    merger = Merger(spark, sink)
    merger.begin(2)
    merger.committed(2)
    assert merger._task is not None
    merger._task.result()
    merger.stop()
    assert epochs_of(sink) == [1, 2]
    found = {
        (row["n"], row["s"]) for row in spark.read.parquet(f"{tmp_path}/out/epoch=1").collect()
    }
    size = len(ODD)
    assert found == {(n, None if n < size else ODD[n - size]) for n in range(2 * size)}


def by_hand(sink: Writer) -> Callable[[int], None]:
    """Writes an epoch's two files as Spark would."""

    def write(epoch: int) -> None:
        folder = Path(sink.options["path"], f"epoch={epoch}")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for part in range(2):
            name = f"part-0000{part}-{os.urandom(4).hex()}-c000.json"
            (folder / name).write_text(f'{{"n":{2 * epoch + part}}}\n')

    return write


def numbers(sink: Writer) -> list[int]:
    """Rows that a reader finds."""
    files = Path(sink.options["path"]).glob("epoch=*/*.json")
    return sorted(json.loads(line)["n"] for f in files for line in f.read_text().splitlines())


def test_every_row_is_there_once_whichever_operation_fails(
    spark: SparkSession, tmp_path: Path
) -> None:
    fired, hit = True, 0
    while fired:
        hit += 1
        sink = ps.to("json", path=str(tmp_path / str(hit)), merge_epochs=3)
        with armed(Fault("sink.merge", hits=(hit,))) as faults, suppress(InjectedFault):
            run_epochs(sink, range(4), by_hand(sink), Merger(spark, sink))
        fired = bool(faults.fired)
        assert len(numbers(sink)) == len(set(numbers(sink)))
        run_epochs(sink, range(3, 6), by_hand(sink), Merger(spark, sink))
        assert numbers(sink) == list(range(12))
        assert epochs_of(sink) == [2, 3, 4, 5]
    assert hit > 6, "a write, three folders, a rename, a removal"


def test_a_merge_that_fails_leaves_the_query_alone_and_is_tried_again(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sink = ps.to("json", path=str(tmp_path / "out"), merge_epochs=3)
    with armed(Fault("sink.merge", OSError, {"operation": "rename"}, hits=(2,))):
        run_epochs(sink, range(9), by_hand(sink), Merger(spark, sink))
    (told,) = [record.getMessage() for record in caplog.records if record.name == "penstock.sinks"]
    assert "could not be merged: fault injected" in told
    assert len(epochs_of(sink)) < 6
    assert numbers(sink) == list(range(18))


def test_a_folder_with_a_mode_of_its_own_is_not_merged() -> None:
    assert ps.to("parquet", path="out").merges
    assert not ps.to("parquet", path="out", merge_epochs=0).merges
    assert not ps.to("parquet", path="out", mode="append").merges
    assert not ps.to("avro", path="out").merges
    assert not ps.to("delta", path="out").merges
    with pytest.raises(ps.SettingError, match="2 or more"):
        ps.to("parquet", path="out", merge_epochs=1)


def test_a_query_merges_what_it_writes(
    spark: SparkSession, tmp_path: Path, checkpoint: str
) -> None:
    """Over two starts, the first of which dies in an epoch after some were merged."""
    tables = sources.numbers(files=8, rows=30, keys=5)
    sources.write_files(tmp_path / "in", tables)
    sink = ps.to("json", path=str(tmp_path / "out"), merge_epochs=2)
    flow = ps.flow(sources.stream(spark, tmp_path / "in")).key_by("k").aggregate(n=ps.count())
    dying = ps.Settings(faults=(Fault("driver.sealed", where={"epoch": 5}),))
    with pytest.raises(InjectedFault):
        sources.run(flow, checkpoint, sink=sink, settings=dying, hosts=1)
    assert 5 in epochs_of(sink)
    sources.run(flow, checkpoint, sink=sink, hosts=1)
    assert len(epochs_of(sink)) < 8
    counts = Counter(
        (row["k"], row["n"]) for row in spark.read.json(str(tmp_path / "out")).collect()
    )
    total, expected = Counter[int](), Counter[tuple[int, int]]()
    for table in tables:
        total.update(table["k"].to_pylist())
        expected.update((k, total[k]) for k in set(table["k"].to_pylist()))
    assert counts == expected
