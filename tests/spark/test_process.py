"""Processors on real hosts: state, timers, restarts, errors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import penstock as ps
from tests.spark.sources import run, stream, write_files


class Runs(ps.KeyedProcessor):
    """Numbers the rows of each key, and remembers the values; -1 is refused."""

    output_schema = "k long, v long, n long, before array<bigint>"

    def init(self, handle: Any) -> None:
        self.n = handle.get_value_state("n", "n long")
        self.values = handle.get_list_state("values", "v long")

    def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> Iterator[Any]:
        for row in rows:
            if row.v == -1:
                raise ValueError("-1 is not allowed")
            n = (self.n.get() or (0,))[0] + 1
            before = [v for (v,) in self.values.get()]
            self.n.update((n,))
            self.values.append_value((row.v,))
            yield (key[0], row.v, n, before)


def table(*pairs: tuple[int, int]) -> pa.Table:
    return pa.table({"k": [k for k, _ in pairs], "v": [v for _, v in pairs]})


def test_state_survives_a_restart(spark: SparkSession, tmp_path: Path, checkpoint: str) -> None:
    write_files(tmp_path / "in", [table((1, 10), (2, 20)), table((1, 11))])

    def flow() -> ps.Flow:
        return ps.flow(stream(spark, tmp_path / "in")).key_by("k", slots=8).process(Runs())

    _, before = run(flow(), checkpoint, hosts=1)
    write_files(tmp_path / "in", [table((1, 12), (3, 30), (2, 21))], start=2)
    _, after = run(flow(), checkpoint, hosts=3)
    assert [(r["k"], r["v"], r["n"]) for r in before.rows()] == [(1, 10, 1), (2, 20, 1), (1, 11, 2)]
    assert {(r["k"], r["v"], r["n"], tuple(r["before"])) for r in after.rows()} == {
        (1, 12, 3, (10, 11)),
        (3, 30, 1, ()),
        (2, 21, 2, (20,)),
    }


def test_a_raising_processor_names_step_key_and_row(
    spark: SparkSession, tmp_path: Path, checkpoint: str
) -> None:
    write_files(tmp_path / "in", [table((1, 10)), table((1, 11), (1, -1), (1, 12), (2, 20))])
    flow = ps.flow(stream(spark, tmp_path / "in")).key_by("k", slots=8).process(Runs())
    with pytest.raises(ps.StepError, match="-1 is not allowed") as raised:
        run(flow, checkpoint)
    assert raised.value.step == "process-1"
    assert "1" in raised.value.key
    assert json.loads(raised.value.row) == {"k": 1, "v": -1}
    # The failed epoch left nothing behind: the same checkpoint goes on, and only the bad row is set aside.
    query, sink = run(flow, checkpoint, on_error="dead_letter")
    assert sorted((r["k"], r["v"], r["n"]) for r in sink.rows()) == [
        (1, 11, 2),
        (1, 12, 3),
        (2, 20, 1),
    ]
    assert sum(p.dead_letters for p in query.progress) == 1


class Quiet(ps.KeyedProcessor):
    """Says how many rows of a key came before event time had moved 10 s past the last one."""

    output_schema = "k long, n long, due long"

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.n = handle.get_value_state("n", "n long")

    def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> Iterator[Any]:
        for row in rows:
            self.n.update(((self.n.get() or (0,))[0] + 1,))
            for due in self.handle.list_timers("event"):
                self.handle.delete_timer(due, "event")
            self.handle.register_timer(int(row.ts.timestamp() * 1000) + 10_000, "event")
        return iter(())

    def handle_expired_timer(self, key: Any, timers: Any, expired: Any) -> Iterator[Any]:
        yield (key[0], self.n.get()[0], expired.expiry_ms)
        self.n.clear()


def timed(*rows: tuple[int, int]) -> pa.Table:
    times = pa.array([s * 1_000_000 for _, s in rows], pa.timestamp("us", tz="UTC"))
    return pa.table({"k": [k for k, _ in rows], "ts": times})


def test_event_time_timers_fire_when_the_watermark_passes(
    spark: SparkSession, tmp_path: Path, checkpoint: str
) -> None:
    files = [
        timed((1, 0), (1, 5), (2, 8)),
        timed((3, 30)),
        timed((3, 31)),
        timed((1, 60)),
        timed((9, 61)),
    ]
    write_files(tmp_path / "in", files)
    source = stream(spark, tmp_path / "in")
    flow = ps.flow(source, event_time="ts", delay="5s").key_by("k", slots=8).process(Quiet())
    _, sink = run(flow, checkpoint)
    by_epoch = {e: sorted(t.to_pydict()["k"]) for e, t in sink.epochs().items() if len(t)}
    assert by_epoch == {2: [1, 2], 4: [3]}
    assert sorted((r["k"], r["n"], r["due"]) for r in sink.rows()) == [
        (1, 2, 15_000),
        (2, 1, 18_000),
        (3, 2, 41_000),
    ]


def test_a_static_dataframe_closes_everything(spark: SparkSession, tmp_path: Path) -> None:
    write_files(tmp_path / "in", [timed((1, 0), (1, 5), (2, 8))])
    source = spark.read.parquet(str(tmp_path / "in"))
    sink = ps.collect()
    flow = ps.flow(source, event_time="ts").key_by("k", slots=8).process(Quiet())
    flow.start(sink, hosts=1).await_termination(60)
    assert sorted((r["k"], r["n"]) for r in sink.rows()) == [(1, 2), (2, 1)]


class Waker(ps.KeyedProcessor):
    """Answers half a second after a key was last seen, by the clock."""

    output_schema = "k long"

    def init(self, handle: Any) -> None:
        self.handle = handle

    def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> Iterator[Any]:
        list(rows)
        self.handle.register_timer(timers.processing_time_ms + 500)
        return iter(())

    def handle_expired_timer(self, key: Any, timers: Any, expired: Any) -> Iterator[Any]:
        yield key


def test_a_quiet_stream_still_has_epochs_for_timers(
    spark: SparkSession, tmp_path: Path, checkpoint: str
) -> None:
    write_files(tmp_path / "in", [table((7, 1))])
    sink = ps.collect()
    flow = ps.flow(stream(spark, tmp_path / "in")).key_by("k", slots=8).process(Waker())
    query = flow.start(sink, checkpoint=checkpoint, hosts=1)
    for _ in range(300):
        if sink.rows() or query.await_termination(0.1):
            break
    query.stop()
    assert [r["k"] for r in sink.rows()] == [7]
