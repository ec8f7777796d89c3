"""Sinks: each gets every epoch's output once, however it reads it."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import penstock as ps
from penstock.faults import Fault, InjectedFault
from penstock.spark import private
from penstock.spark import query as query_module
from penstock.spark.sinks import late_sinks
from penstock.state.store import dead_letters
from penstock.state.store.store import Store
from tests.spark.sources import numbers, run, stream, write_files
from tests.spark.test_event_time import ROW, at, batch
from tests.spark.test_flow import sums


@pytest.fixture
def tables(tmp_path: Path) -> list[Any]:
    made = numbers(files=4, rows=300, keys=40)
    write_files(tmp_path / "in", made)
    return made


def flow(spark: SparkSession, folder: Path) -> ps.Flow:
    return (
        ps.flow(stream(spark, folder / "in", files_per_epoch=2))
        .key_by("k", slots=8)
        .aggregate(total=ps.sum("v"), n=ps.count())
    )


def test_a_function_may_read_in_any_way(
    spark: SparkSession, tmp_path: Path, checkpoint: str, tables: list[Any]
) -> None:
    """Twice, in part, merged: what it does not read is still counted."""
    latest: dict[int, tuple[int | None, int]] = {}
    counts = []

    def save(df: DataFrame, epoch: int) -> None:
        assert len(df.limit(1).collect()) == 1
        rows = df.coalesce(1).collect()
        counts.append((df.count(), len(rows)))
        latest.update({r["k"]: (r["total"], r["n"]) for r in rows})

    run(flow(spark, tmp_path), checkpoint, sink=ps.foreach_batch(save))
    assert latest == sums(tables)
    assert [a for a, _ in counts] == [b for _, b in counts]


def test_a_function_that_reads_nothing_loses_nothing(
    spark: SparkSession, tmp_path: Path, checkpoint: str, tables: list[Any]
) -> None:
    def ignore(df: DataFrame, epoch: int) -> None:
        """Does not look at all."""

    run(flow(spark, tmp_path), checkpoint, sink=ps.foreach_batch(ignore))
    write_files(tmp_path / "in", tables, start=4)
    _, sink = run(flow(spark, tmp_path), checkpoint)
    assert {k: (r["total"], r["n"]) for k, r in sink.latest("k").items()} == sums(tables * 2)


@pytest.mark.parametrize("format", ["parquet", "json", "csv"])
def test_files_have_a_folder_for_each_epoch(
    spark: SparkSession, tmp_path: Path, checkpoint: str, tables: list[Any], format: str
) -> None:
    out = str(tmp_path / "out")
    run(flow(spark, tmp_path), checkpoint, sink=ps.to(format, path=out))
    schema = "k long, total long, n long, epoch int"
    rows = spark.read.schema(schema).format(format).load(out).orderBy("epoch").collect()
    assert {r["k"]: (r["total"], r["n"]) for r in rows} == sums(tables)
    assert {r["epoch"] for r in rows} == {0, 1}


def test_console_prints_and_loses_nothing(
    spark: SparkSession, tmp_path: Path, checkpoint: str, tables: list[Any]
) -> None:
    query, _ = run(flow(spark, tmp_path), checkpoint, sink=ps.to("console"))
    assert [p.rows for p in query.progress] == [600, 600]


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_a_raising_function_ends_the_query_with_its_error(
    spark: SparkSession,
    tmp_path: Path,
    checkpoint: str,
    tables: list[Any],
    error: type[BaseException],
) -> None:
    def fail(df: DataFrame, epoch: int) -> None:
        raise error("the sink is closed")

    with pytest.raises(error, match="the sink is closed"):
        run(flow(spark, tmp_path), checkpoint, sink=ps.foreach_batch(fail))
    _, sink = run(flow(spark, tmp_path), checkpoint)
    assert {k: (r["total"], r["n"]) for k, r in sink.latest("k").items()} == sums(tables)


class Remembering:
    """Takes an epoch once and then ignores it, as Delta does; optionally only one row of it."""

    takes_once = True

    def __init__(self, limit: int | None = None) -> None:
        self.kept, self.limit = ps.collect(), limit

    def write(self, df: DataFrame, epoch: int, flow_id: str) -> None:
        if epoch not in self.kept.epochs():
            self.kept.write(df if self.limit is None else df.limit(self.limit), epoch, flow_id)


@pytest.mark.parametrize("limit", [None, 1])
def test_a_sink_that_has_an_epoch_already_takes_nothing_from_the_state(
    spark: SparkSession, tmp_path: Path, checkpoint: str, tables: list[Any], limit: int | None
) -> None:
    """The couriers of a replayed epoch run although the sink does not want it."""
    sink = Remembering(limit)
    dying = ps.Settings(faults=(Fault("driver.written", where={"epoch": 1}),))
    with pytest.raises(InjectedFault):
        run(flow(spark, tmp_path), checkpoint, sink=sink, settings=dying)
    assert list(sink.kept.epochs()) == [0, 1]
    write_files(tmp_path / "in", tables, start=4)
    query, _ = run(flow(spark, tmp_path), checkpoint, sink=sink)
    assert [(p.epoch, p.rows) for p in query.progress] == [(1, 600), (2, 600), (3, 600)]
    if limit is None:
        found = {k: (r["total"], r["n"]) for k, r in sink.kept.latest("k").items()}
        assert found == sums(tables * 2)


def test_a_sink_that_takes_an_epoch_once_gets_every_window(
    spark: SparkSession, tmp_path: Path, checkpoint: str
) -> None:
    """A window that is due only in the second run would be ignored with it."""
    write_files(tmp_path / "in", numbers(files=4, rows=20, keys=3))
    windows = (
        ps.flow(stream(spark, tmp_path / "in"))
        .key_by("k")
        .window(ps.tumbling("1s", clock="processing"))
        .aggregate(n=ps.count())
    )
    sink = Remembering()
    dying = ps.Settings(faults=(Fault("driver.written", where={"epoch": 1}),))
    with pytest.raises(InjectedFault):
        run(windows, checkpoint, sink=sink, settings=dying)
    began = time.time()
    while time.time() < began + 1:
        time.sleep(0.05)  # a window ends
    run(windows, checkpoint, sink=sink, close=True)
    assert sum(row["n"] for row in sink.kept.rows()) == 80


def test_a_function_may_read_again_what_was_lost(
    spark: SparkSession, tmp_path: Path, checkpoint: str, tables: list[Any]
) -> None:
    """The same as the loss of an executor with the output: couriers get the answers that hosts keep."""
    counts = []

    def save(df: DataFrame, epoch: int) -> None:
        before = sorted(df.collect())
        private.forget_stage(df)
        merged = sorted(df.coalesce(1).collect())
        private.forget_stage(df)
        counts.append((before == merged == sorted(df.collect()), len(before)))

    query, _ = run(flow(spark, tmp_path), checkpoint, sink=ps.foreach_batch(save))
    assert counts == [(True, 40), (True, 40)]
    assert [p.runs for p in query.progress] == [1, 1]


@dataclass(frozen=True)
class Several:
    """Gives each epoch to several sinks, one after the other."""

    sinks: tuple[Any, ...]

    def write(self, df: DataFrame, epoch: int, flow_id: str) -> None:
        for sink in self.sinks:
            sink.write(df, epoch, flow_id)


class KillingHosts:
    """Kills the hosts of a query under epoch 1, once."""

    def __init__(self) -> None:
        self.killed: list[int] = []

    def write(self, df: DataFrame, epoch: int, flow_id: str) -> None:
        if epoch == 1 and not self.killed:
            (query,) = query_module._active
            self.killed = list(query.status.hosts.values())
            for pid in self.killed:
                os.kill(pid, signal.SIGKILL)


def through(
    failure: Fault, flow: ps.Flow, checkpoint: str, **options: Any
) -> list[tuple[int, int]]:
    """Run a flow until it is done; gives (epoch, runs) of the start that finished."""
    with suppress(InjectedFault):
        failing = ps.Settings(faults=(failure,))
        return [
            (p.epoch, p.runs)
            for p in run(flow, checkpoint, settings=failing, **options)[0].progress
        ]
    return [(p.epoch, p.runs) for p in run(flow, checkpoint, **options)[0].progress]


@pytest.mark.parametrize("failure", ["the driver dies", "a host dies"])
def test_what_a_sink_gets_of_an_epoch_that_is_run_again(
    spark: SparkSession, tmp_path: Path, checkpoint: str, failure: str
) -> None:
    """After all was written, and before it was durable."""
    write_files(tmp_path / "in", numbers(files=6, rows=60, keys=4))
    files = ps.to("json", path=str(tmp_path / "files"), partition_by="k")
    appended = ps.to("json", path=str(tmp_path / "appended"), mode="append")
    calls: list[tuple[int, int]] = []
    function = ps.foreach_batch(lambda df, epoch: calls.append((epoch, df.count())))
    kept, killing = ps.collect(), KillingHosts()
    sinks: tuple[Any, ...] = (files, appended, ps.to("noop"), function, kept)
    if "host" in failure:
        sinks = (*sinks, killing)
    spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    dying = {
        "the driver dies": Fault("driver.sealed", where={"epoch": 1}),
        # Hosts seal while sinks still write: these do not come to the end of it.
        "a host dies": Fault("host.seal", "hang", where={"epoch": 1, "run": 0}),
    }
    try:
        done = through(dying[failure], flow(spark, tmp_path), checkpoint, sink=Several(sinks))
    finally:
        spark.conf.unset("spark.sql.sources.partitionOverwriteMode")
    assert done == ([(1, 1), (2, 1)] if "driver" in failure else [(0, 1), (1, 2), (2, 1)])
    assert [table.num_rows for table in kept.epochs().values()] == [4, 4, 4]
    in_files = Counter(spark.read.json(str(tmp_path / "files")).collect())
    assert (len(in_files), in_files.total()) == (12, 12), "each row once"
    in_appended = Counter(spark.read.json(str(tmp_path / "appended")).collect())
    assert sorted(in_appended.values()) == [1] * 8 + [2] * 4, "the rows of an epoch twice"
    assert calls == [(0, 4), (1, 4), (1, 4), (2, 4)]


@pytest.mark.parametrize("failure", ["the manifest is not written", "a host dies"])
def test_late_rows_and_dead_letters_of_an_epoch_that_is_run_again(
    spark: SparkSession, tmp_path: Path, checkpoint: str, failure: str
) -> None:
    late = batch(("a", 1, 7), ("a", 95, 1))
    nobody = pa.Table.from_pylist([{"k": None, "at": at(96), "v": 9}], ROW)
    write_files(
        tmp_path / "in",
        [batch(("a", 50, 1)), batch(("a", 90, 1)), pa.concat_tables([late, nobody])],
    )
    windows = (
        ps.flow(stream(spark, tmp_path / "in"), event_time="at")
        .key_by("k")
        .window(ps.tumbling("10s"))
        .aggregate(n=ps.count())
    )
    files, calls = ps.to("json", path=str(tmp_path / "late")), list[int]()
    function = ps.foreach_batch(lambda df, epoch: calls.append(epoch))
    fault = Fault("host.sealed", "kill", {"epoch": 2, "run": 0})
    if "manifest" in failure:
        fault = Fault("store.write", where={"file": "manifests/000000000002.json"})
    late_rows = Several((files, function))
    through(fault, windows, checkpoint, late_rows=late_rows, on_error="dead_letter")
    assert [
        (row["v"], row["epoch"]) for row in spark.read.json(str(tmp_path / "late")).collect()
    ] == [(7, 2)]
    assert calls == ([2, 2] if "manifest" in failure else [2])
    (letter,) = dead_letters.letters(Store(f"{checkpoint}/penstock"))
    assert json.loads(letter)["epoch"] == 2


def test_sinks_that_would_replace_each_others_rows_are_refused() -> None:
    steps = [SimpleNamespace(id=name, plan=SimpleNamespace(inputs=(1,))) for name in ("w-1", "w-2")]
    plan: Any = SimpleNamespace(keyed=steps)
    late, output = ps.collect(), ps.to("json", path="out/")
    with pytest.raises(ps.SettingError, match="two sinks of the flow write to"):
        late_sinks(plan, {"w-1": late, "w-2": late}, output)
    with pytest.raises(ps.SettingError, match="two sinks of the flow write to out"):
        late_sinks(plan, {"w-1": ps.to("orc", path="out")}, output)
    shared = ps.to("json", path="late", mode="append")
    assert len(late_sinks(plan, {"w-1": shared, "w-2": shared}, output)) == 2
    with pytest.raises(ps.SettingError, match="needs a folder"):
        ps.to("parquet")
