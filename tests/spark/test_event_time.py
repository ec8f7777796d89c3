"""Event time on real Spark: watermarks, late rows, joins, flows with several sources."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import penstock as ps
from tests.spark.sources import run, stream, write_files

BASE = datetime(2026, 1, 1, tzinfo=UTC)
ROW = pa.schema([("k", pa.string()), ("at", pa.timestamp("us", "UTC")), ("v", pa.int64())])


def at(seconds: float) -> datetime:
    return BASE + timedelta(seconds=seconds)


def batch(*rows: tuple[str, float, int], **more: list[Any]) -> pa.Table:
    table = pa.Table.from_pylist([{"k": k, "at": at(t), "v": v} for k, t, v in rows], ROW)
    for name, values in more.items():
        table = table.append_column(name, pa.array(values))
    return table


def found(sink: Any, *columns: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row[c] for c in columns) for row in sink.rows())


def test_windows_close_by_the_watermark_and_late_rows_go_aside(
    spark: SparkSession, tmp_path: Path, checkpoint: str
) -> None:
    write_files(
        tmp_path / "in",
        [
            batch(("a", 1, 1), ("a", 9, 2)),
            batch(("a", 31, 3)),
            batch(("a", 2, 100), ("b", 33, 4)),
            batch(("b", 60, 5)),
        ],
    )
    flow = (
        ps.flow(stream(spark, tmp_path / "in"), event_time="at", delay="5s")
        .key_by("k")
        .window(ps.tumbling("10s"))
        .aggregate(total=ps.sum("v"))
    )
    late = ps.collect()
    query, sink = run(flow, checkpoint, close=True, late_rows=late)
    assert found(sink, "k", "window_start", "window_end", "total") == [
        ("a", at(0), at(10), 3),
        ("a", at(30), at(40), 3),
        ("b", at(30), at(40), 4),
        ("b", at(60), at(70), 5),
    ]
    assert [row["v"] for row in late.rows()] == [100]
    assert [p.late_rows for p in query.progress][2] == {"window-1": 1}
    by_epoch = {epoch: table.num_rows for epoch, table in sink.epochs().items()}
    assert by_epoch[2] == 1, "the window [0, 10) closes in the epoch after its watermark"


def test_the_partition_furthest_behind_holds_the_watermark(
    spark: SparkSession, tmp_path: Path, checkpoint: str
) -> None:
    """Without partitions the rows of the slow one would be late; with them they are not."""
    files = [
        batch(("a", 1, 1), ("a", 1, 1), p=[0, 1]),
        batch(("a", 100, 1), p=[0]),
        batch(("a", 2, 1), p=[1]),
        batch(("a", 101, 1), ("a", 101, 1), p=[0, 1]),
    ]
    write_files(tmp_path / "in", files)
    for partition, late, first in ((None, 1, 2), ("p", 0, 3)):
        flow = (
            ps.flow(stream(spark, tmp_path / "in"), event_time="at", partition=partition)
            .key_by("k")
            .window(ps.tumbling("10s"))
            .aggregate(n=ps.count())
        )
        query, sink = run(flow, f"{checkpoint}-{partition}", close=True)
        assert sum(p.late_rows.get("window-1", 0) for p in query.progress) == late
        assert found(sink, "window_start", "n") == [(at(0), first), (at(100), 3)]


def test_a_closed_checkpoint_is_not_continued(
    spark: SparkSession, tmp_path: Path, checkpoint: str
) -> None:
    write_files(tmp_path / "in", [batch(("a", 1, 1))])
    flow = (
        ps.flow(stream(spark, tmp_path / "in"), event_time="at")
        .window(ps.hopping("10s", "5s"))
        .aggregate(n=ps.count())
    )
    _, sink = run(flow, checkpoint, close=True)
    assert found(sink, "window_start", "n") == [(at(-5), 1), (at(0), 1)]
    with pytest.raises(ps.CheckpointError, match="input has ended"):
        flow.start(ps.collect(), checkpoint=checkpoint, trigger="available_now", close=True)
    with pytest.raises(ps.SettingError, match="close=True"):
        flow.start(ps.collect(), checkpoint=f"{checkpoint}-2", close=True)


def test_a_flow_that_died_while_closing_goes_on_with_that(
    spark: SparkSession, tmp_path: Path, checkpoint: str
) -> None:
    write_files(tmp_path / "in", [batch(("a", 1, 1), ("b", 2, 1), ("b", 3, 1))])
    counts = (
        ps.flow(stream(spark, tmp_path / "in"), event_time="at")
        .key_by("k")
        .window(ps.tumbling("10s"))
        .aggregate(n=ps.count())
    )
    flow = counts.key_by("window_start").top(1, by="n desc", until="window_end")
    sink, fails = ps.collect(), [True]

    def save(df: Any, epoch: int) -> None:
        # epoch 0 reads, 1 closes the windows, 2 closes the top
        if epoch == 2 and fails:
            fails.clear()
            raise RuntimeError("the sink is away")
        sink.write(df, epoch, "")

    options: dict[str, Any] = {"checkpoint": checkpoint, "trigger": "available_now", "close": True}
    with pytest.raises(Exception, match="the sink is away"):
        flow.start(ps.foreach_batch(save), **options).await_termination(60)
    assert sink.rows() == []
    write_files(tmp_path / "in", [batch(("c", 4, 1))], start=1)
    flow.start(ps.foreach_batch(save), **options).await_termination(60)
    assert found(sink, "k", "window_start", "n") == [("b", at(0), 2)]
    with pytest.raises(ps.CheckpointError, match="input has ended"):
        flow.start(ps.foreach_batch(save), **options)


def test_two_sources_join_within_an_interval(
    spark: SparkSession, tmp_path: Path, checkpoint: str
) -> None:
    write_files(tmp_path / "l", [batch(("a", 1, 1), ("b", 2, 2)), batch(("a", 20, 3))])
    write_files(tmp_path / "r", [batch(("a", 3, 10), ("a", 30, 20)), batch(("b", 50, 30))])
    left = ps.flow(stream(spark, tmp_path / "l"), event_time="at", delay="1 minute")
    right = ps.flow(stream(spark, tmp_path / "r"), event_time="at", delay="1 minute")
    flow = left.join(right, on="k", between=("0s", "10s"), how="left").select(
        "k", "v", other="v_right"
    )
    _, sink = run(flow, checkpoint, close=True)
    assert sorted(sink.rows(), key=str) == sorted(
        [
            {"k": "a", "v": 1, "other": 10},
            {"k": "b", "v": 2, "other": None},
            {"k": "a", "v": 3, "other": 20},
        ],
        key=str,
    )


def test_a_flow_joins_what_it_has_computed_from_itself(
    spark: SparkSession, tmp_path: Path, checkpoint: str
) -> None:
    """One source read by two branches: the rows with the largest value of their window."""
    write_files(
        tmp_path / "in",
        [
            batch(("a", 1, 7), ("b", 2, 9)),
            batch(("c", 8, 9), ("a", 12, 1)),
            batch(("b", 25, 4)),
        ],
    )
    rows = ps.flow(stream(spark, tmp_path / "in"), event_time="at")
    best = rows.window(ps.tumbling("10s")).aggregate(best=ps.max("v"))
    flow = best.join(rows, on={"best": "v"}, between=("-10s", "0s"), left_time="window_end")
    assert len(flow.plan.sources) == 1
    _, sink = run(flow, checkpoint, close=True)
    assert found(sink, "k", "best", "at") == [
        ("a", 1, at(12)),
        ("b", 4, at(25)),
        ("b", 9, at(2)),
        ("c", 9, at(8)),
    ]


def test_an_empty_stream_ends_with_nothing(
    spark: SparkSession, tmp_path: Path, checkpoint: str
) -> None:
    write_files(tmp_path / "in", [batch()])
    flow = (
        ps.flow(stream(spark, tmp_path / "in"), event_time="at")
        .key_by("k")
        .window(ps.session_window("10s"))
        .aggregate(n=ps.count())
    )
    _, sink = run(flow, checkpoint, close=True)
    assert sink.rows() == []


def test_a_flow_without_steps_is_plain_spark(
    spark: SparkSession, tmp_path: Path, checkpoint: str
) -> None:
    write_files(tmp_path / "in", [batch(("a", 1, 1)), batch(("b", 2, 2))])
    source = stream(spark, tmp_path / "in").where("v > 1").select("k")
    _, sink = run(ps.flow(source), checkpoint)
    assert sink.rows() == [{"k": "b"}]


def test_rows_without_a_time_are_refused(
    spark: SparkSession, tmp_path: Path, checkpoint: str
) -> None:
    nothing = pa.Table.from_pylist([{"k": "a", "at": None, "v": 1}], ROW)
    write_files(tmp_path / "in", [nothing])
    flow = (
        ps.flow(stream(spark, tmp_path / "in"), event_time="at")
        .key_by("k")
        .window(ps.tumbling("10s"))
        .aggregate(n=ps.count())
    )
    query = flow.start(ps.collect(), checkpoint=checkpoint, trigger="available_now")
    with pytest.raises(ps.PenstockError, match=r"a null in the event time \(at\)"):
        query.await_termination(60)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda f: f.window(ps.tumbling("10s"), on="k").aggregate(n=ps.count()), "timestamp"),
        (lambda f: f.join(f, on="nope"), "no column 'nope'"),
        (lambda f: f.join(f, on="k", ttl="1s", between=(0, 1)), "needs no ttl"),
        (lambda f: f.key_by("k").keep("best", by="v"), "cannot keep"),
        (lambda f: f.select("nope"), "no column 'nope'"),
        (lambda f: f.key_by("k").aggregate(emit="close", n=ps.count()), "never closes"),
    ],
)
def test_mistakes_are_told_before_anything_runs(
    spark: SparkSession, wrong: Any, message: str
) -> None:
    flow = ps.flow(spark.createDataFrame(batch(("a", 1, 1))), event_time="at")
    with pytest.raises(ps.FlowError, match=message):
        wrong(flow)


def test_one_checkpoint_under_changing_triggers(
    spark: SparkSession, tmp_path: Path, checkpoint: str
) -> None:
    """A running query has a clock among its sources, one over what is there now begins without."""
    files = [batch(("a", 10 * n, 1), ("b", 10 * n + 1, 1)) for n in range(12)]
    sink, given, rows = ps.collect(), 0, dict[int, int]()
    triggers = ("available_now", None, "available_now", "200ms", None, "available_now")
    for trigger in triggers:
        write_files(tmp_path / "in", files[given : given + 2], start=given)
        given += 2
        flow = (
            ps.flow(stream(spark, tmp_path / "in"), event_time="at")
            .key_by("k")
            .window(ps.tumbling("10s"))
            .aggregate(n=ps.count())
        )
        last = given == len(files)
        query = flow.start(sink, checkpoint=checkpoint, trigger=trigger, close=last, hosts=1)
        while trigger != "available_now" and sum(rows.values()) < 2 * given:
            assert not query.await_termination(0.05)
            rows |= {p.epoch: p.rows for p in query.progress}
        query.await_termination(60) if trigger == "available_now" else query.stop()
        assert query.exception() is None
        rows |= {p.epoch: p.rows for p in query.progress}
    assert [n for n in rows.values() if n] == [2] * 12, "an epoch for each file, under each trigger"
    closed = sorted((k, at(10 * n), 1) for n in range(12) for k in "ab")
    assert found(sink, "k", "window_start", "n") == closed
