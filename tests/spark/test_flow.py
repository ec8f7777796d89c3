"""Flows on real Spark, against plain computations over the same rows."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

import penstock as ps
from tests.spark.sources import numbers, run, stream, write_files


def sums(tables: list[pa.Table]) -> dict[int, tuple[int | None, int]]:
    frame = pa.concat_tables(tables).to_pandas()
    groups = frame.groupby("k")["v"]
    return {
        k: (None if n == 0 else int(total), int(rows))
        for k, total, n, rows in zip(
            groups.sum().index, groups.sum(), groups.count(), groups.size(), strict=True
        )
    }


def test_aggregate_equals_a_batch_computation(
    spark: SparkSession, tmp_path: Path, checkpoint: str
) -> None:
    tables = numbers(files=6, rows=500, keys=120)
    write_files(tmp_path / "in", tables)
    flow = (
        ps.flow(stream(spark, tmp_path / "in", files_per_epoch=2))
        .key_by("k", slots=16)
        .aggregate(total=ps.sum("v"), n=ps.count())
    )
    query, sink = run(flow, checkpoint)
    assert {k: (r["total"], r["n"]) for k, r in sink.latest("k").items()} == sums(tables)
    assert query.status.state == "finished"
    assert [p.rows for p in query.progress] == [1000, 1000, 1000]
    for table in sink.epochs().values():
        assert len(pc.unique(table["k"])) == len(table), "a key came twice in one epoch"


def test_static_dataframe_gives_the_same_answer(
    spark: SparkSession, tmp_path: Path, checkpoint: str
) -> None:
    tables = numbers(files=4, rows=300, keys=50)
    write_files(tmp_path / "in", tables)
    source = spark.read.parquet(str(tmp_path / "in"))
    sink = ps.collect()
    ps.flow(source).key_by("k").aggregate(total=ps.sum("v"), n=ps.count()).start(
        sink, hosts=3
    ).await_termination(60)
    assert {r["k"]: (r["total"], r["n"]) for r in sink.rows()} == sums(tables)


def test_several_steps_with_different_keys(
    spark: SparkSession, tmp_path: Path, checkpoint: str
) -> None:
    """Running totals per key, then how many keys stand in each band of totals."""
    tables = numbers(files=4, rows=400, keys=40)
    write_files(tmp_path / "in", tables)

    def band(batch: pa.RecordBatch) -> pa.RecordBatch:
        total = pc.fill_null(batch["total"], 0)
        names = pc.if_else(pc.less(total, 0), "below", "above")
        return pa.RecordBatch.from_arrays([names, batch["k"]], ["band", "k"])

    flow = (
        ps.flow(stream(spark, tmp_path / "in"))
        .key_by("k", slots=8)
        .aggregate(total=ps.sum("v"))
        .map_batches(band)
        .key_by("band", slots=4)
        .aggregate(n=ps.count(), keys=ps.approx_distinct("k"))
        .global_(bands=ps.count(), updates=ps.max("n"))
    )
    _, sink = run(flow, checkpoint, hosts=2)
    expected = {"below": 0, "above": 0}
    touched = pd.Series(dtype=float)
    for table in tables:
        frame = table.to_pandas()
        changed = frame["k"].unique()
        touched = touched.add(frame.groupby("k")["v"].sum(), fill_value=0)
        for key in changed:
            expected["below" if touched[key] < 0 else "above"] += 1
    final = sink.rows()[-1]
    assert final["updates"] == max(expected.values())


def test_keys_of_several_types(spark: SparkSession, tmp_path: Path, checkpoint: str) -> None:
    tables = [
        pa.table(
            {"name": ["ä", "b", "ä"], "day": [1, 1, 1], "x": [0.5, -0.0, 0.5], "v": [1, 2, 3]}
        ),
        pa.table({"name": ["b", "", "ä"], "day": [1, 2, 2], "x": [0.0, 1.0, 0.5], "v": [4, 5, 6]}),
    ]
    write_files(tmp_path / "in", tables)
    flow = (
        ps.flow(stream(spark, tmp_path / "in")).key_by("name", "day", "x").aggregate(v=ps.sum("v"))
    )
    _, sink = run(flow, checkpoint)
    assert {k: r["v"] for k, r in sink.latest("name", "day", "x").items()} == {
        ("ä", 1, 0.5): 4,
        ("b", 1, 0.0): 6,
        ("", 2, 1.0): 5,
        ("ä", 2, 0.5): 6,
    }


def test_types_come_back_as_they_were(spark: SparkSession, tmp_path: Path, checkpoint: str) -> None:
    """Times, decimals, dates, text and booleans, as keys and as values, on the way back into Spark."""
    rows = spark.sql(
        """select * from values
        (timestamp'2024-05-01 10:00:00', date'2024-05-01', 1.50bd, 'a', true, struct(1 as x, 'p' as y)),
        (timestamp'2024-05-01 10:00:00', date'2024-05-02', 2.25bd, 'b', false, struct(2 as x, 'q' as y)),
        (timestamp'1969-12-31 23:59:59', date'1960-01-01', null, null, null, null)
        as t(ts, day, amount, word, flag, pair)"""
    )
    rows.coalesce(1).write.parquet(str(tmp_path / "in"))
    flow = (
        ps.flow(stream(spark, tmp_path / "in"))
        .key_by("ts")
        .aggregate(
            day=ps.max("day"),
            amount=ps.sum("amount"),
            word=ps.min("word"),
            flag=ps.last("flag"),
            pair=ps.first("pair"),
            newest=ps.max("ts"),
            mean=ps.avg("amount"),
        )
    )
    out = str(tmp_path / "out")
    run(flow, checkpoint, sink=ps.to("parquet", path=out))
    found = spark.read.parquet(out).drop("epoch").orderBy("ts").collect()
    expected = spark.sql(
        """select * from values
        (timestamp'1969-12-31 23:59:59', date'1960-01-01', null, null, null, null,
         timestamp'1969-12-31 23:59:59', null),
        (timestamp'2024-05-01 10:00:00', date'2024-05-02', 3.75bd, 'a', false, struct(1 as x, 'p' as y),
         timestamp'2024-05-01 10:00:00', 1.875d)
        as t(ts, day, amount, word, flag, pair, newest, mean) order by ts"""
    ).collect()
    assert [tuple(r) for r in found] == [tuple(r) for r in expected]
