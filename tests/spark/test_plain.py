"""Flows without keyed state run as plain Spark: no hosts, couriers and manifests, and each row once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere in PySpark

import penstock as ps
from penstock.faults import InjectedFault
from penstock.spark import private, sinks
from penstock.spark.plain import is_plain, plain_output
from penstock.state.store.store import Store
from penstock.testing import Fault
from tests.spark.sources import numbers, run, stream, write_files

ROWS = 200
DYING = ps.Settings(faults=(Fault("driver.written", where={"epoch": 1}),))


@pytest.fixture
def tables(tmp_path: Path) -> list[pa.Table]:
    tables = numbers(files=3, rows=ROWS, keys=10)
    write_files(tmp_path / "in", tables)
    return tables


def ticks(spark: SparkSession) -> DataFrame:
    options = {"rowsPerBatch": 100, "numPartitions": 2}
    return spark.readStream.format("rate-micro-batch").options(**options).load()


def written(folder: Path) -> list[float]:
    """The column `x` of a folder of Parquet files, sorted."""
    return sorted(ds.dataset(folder, partitioning="hive").to_table()["x"].to_pylist())


def expected(tables: list[pa.Table]) -> list[float]:
    return sorted(x for table in tables for x in table["x"].to_pylist())


def manifests(checkpoint: str) -> list[int]:
    """Epochs that have a manifest."""
    return Store(f"{checkpoint}/penstock").epochs()


def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.append_column("twice", pc.multiply(batch["x"], 2))


def failing(batch: pa.RecordBatch) -> pa.RecordBatch:
    if batch.num_rows:
        raise ValueError("no such row")
    return batch


def test_what_is_plain(spark: SparkSession) -> None:
    rows = ps.flow(ticks(spark))
    mapped = rows.map_batches(lambda batch: batch)
    counted = rows.key_by("value").aggregate(n=ps.count())
    settings = ps.Settings()
    assert is_plain(rows.plan, True, None, settings)
    assert is_plain(mapped.plan, True, None, settings)
    assert not is_plain(rows.plan, False, None, settings)
    assert not is_plain(counted.plan, True, None, settings)
    helped = mapped.sla("1s").elastic(functions=ps.LocalFunctions(at_most=1)).elasticity
    assert not is_plain(mapped.plan, True, helped, settings)
    assert not is_plain(mapped.plan, True, None, ps.Settings(observed_metrics=True))


def test_columns_are_selected_in_spark(spark: SparkSession) -> None:
    rows = ticks(spark).withColumn("a `b`", F.lit(1))
    flow = ps.flow(rows).select("value", n="a `b`").select("n").filter(pc.field("n") > 0)
    plan = plain_output(rows, flow.plan)
    text: Any = plan._jdf.queryExecution().analyzed().toString()
    assert text.count("MapInArrow") == 1
    assert plan.columns == ["n"]


def test_a_running_query_has_figures_but_no_hosts(spark: SparkSession, checkpoint: str) -> None:
    flow = ps.flow(ticks(spark)).select("value").sla(latency="10m", window="100ms")
    query = flow.start(ps.to("noop"), checkpoint=checkpoint, name="plain")
    while len(query.progress) < 3 or query.status.success["average"].run is None:
        assert not query.await_termination(0.05)
    last = query.spark_query().lastProgress
    assert last is not None
    assert last["sink"]["description"] == "NoopTable"
    with pytest.raises(ps.SettingError, match="no keyed step"):
        query.scale("aggregate-1", 2)
    with pytest.raises(ps.SettingError, match="no keyed step"):
        query.move("aggregate-1", [0], "aggregate-1/0")
    first, second, *_ = query.progress
    assert (first.epoch, first.rows, first.partitions, first.runs) == (0, 100, 2, 1)
    assert first.latency is not None
    assert first.latency.p99_ms == first.sink_ms > 0
    assert second.started_ms >= first.started_ms
    assert query.status.success["average"].run == 1.0
    assert (query.status.hosts, query.placements(), query.backlog) == ({}, {}, 0)
    assert query.recording.facts.name == "plain"
    query.stop()
    assert (query.status.state, query.exception()) == ("stopped", None)
    assert manifests(checkpoint) == []


def test_latency_counts_from_the_arrival_column(spark: SparkSession, checkpoint: str) -> None:
    """Of ten rows, one has arrived an hour before the others, and one has no time of arrival."""
    late = F.expr("current_timestamp() - make_interval(0, 0, 0, 0, cast(value % 10 = 0 AS int))")
    rows = ticks(spark).withColumn("at", F.when(F.col("value") % 10 != 1, late))
    flow = ps.flow(rows, arrival="at").sla(latency="30m")
    query = flow.start(ps.to("noop"), checkpoint=checkpoint)
    while len(query.progress) < 2:
        assert not query.await_termination(0.05)
    query.stop()
    latency = query.progress[1].latency
    assert latency is not None
    assert latency.p50_ms < 600_000 < 3_600_000 <= latency.p99_ms
    assert 300_000 < latency.mean_ms < 420_000
    assert sum(latency.histogram) == query.progress[1].rows


def test_a_file_sink_gets_each_row_once_after_a_crash(
    spark: SparkSession, tmp_path: Path, checkpoint: str, tables: list[pa.Table]
) -> None:
    """The driver fails when the sink has epoch 1, which Spark has not committed."""
    flow = ps.flow(stream(spark, tmp_path / "in")).map_batches(doubled)
    sink = ps.to("parquet", path=str(tmp_path / "out"))
    with pytest.raises(InjectedFault):
        run(flow, checkpoint, sink=sink, settings=DYING)
    assert written(tmp_path / "out") == expected(tables[:2])
    query, _ = run(flow, checkpoint, sink=sink)
    assert [(p.epoch, p.rows) for p in query.progress] == [(1, ROWS), (2, ROWS)]
    assert written(tmp_path / "out") == expected(tables)
    assert manifests(checkpoint) == []


_KILLED = """
import sys
from pathlib import Path
import penstock as ps
from penstock.testing import Fault
from tests.spark.sources import stream
from tests.spark.test_plain import doubled

folder = Path(sys.argv[1])
flow = ps.flow(stream(ps.session(cores=2), folder / "in")).map_batches(doubled)
settings = ps.Settings(faults=(Fault("driver.written", "kill", where={"epoch": 1}),))
sink = ps.to("parquet", path=str(folder / "out"))
checkpoint = str(folder / "checkpoint")
flow.start(sink, checkpoint=checkpoint, trigger="available_now", settings=settings)
sys.stdin.read()
"""


@pytest.mark.slow
def test_a_killed_driver_loses_and_repeats_nothing(
    spark: SparkSession, tmp_path: Path, checkpoint: str, tables: list[pa.Table]
) -> None:
    words = [sys.executable, "-c", _KILLED, str(tmp_path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE) as program:
        assert program.wait() == -9
    flow = ps.flow(stream(spark, tmp_path / "in")).map_batches(doubled)
    run(flow, checkpoint, sink=ps.to("parquet", path=str(tmp_path / "out")))
    assert written(tmp_path / "out") == expected(tables)


def test_a_failing_function_names_step_and_row(
    spark: SparkSession, tmp_path: Path, checkpoint: str, tables: list[pa.Table]
) -> None:
    flow = ps.flow(stream(spark, tmp_path / "in")).map_batches(failing)
    for sink in (ps.to("noop"), ps.collect()):
        with pytest.raises(ps.StepError, match=r"map-1.*ValueError: no such row") as raised:
            run(flow, f"{checkpoint}-{type(sink).__name__}", sink=sink)
        assert raised.value.step == "map-1"


@pytest.mark.parametrize("sink", [ps.to("noop"), ps.collect()], ids=["spark", "penstock"])
def test_a_newer_start_takes_the_checkpoint_over(
    spark: SparkSession, checkpoint: str, sink: Any
) -> None:
    flow = ps.flow(ticks(spark))
    older = flow.start(sink, checkpoint=checkpoint, trigger="100ms")
    while not older.progress:
        assert not older.await_termination(0.05)
    newer = flow.start(ps.collect(), checkpoint=checkpoint, trigger="100ms")
    with pytest.raises(ps.PenstockError):
        older.await_termination(60)
    assert older.status.state == "failed"
    newer.stop()


def test_couriers_continue_where_plain_spark_stopped_and_back(
    spark: SparkSession, tmp_path: Path, checkpoint: str, tables: list[pa.Table]
) -> None:
    """Rows are set aside by couriers only, so `on_error` decides which of the two runs the flow."""
    flow = ps.flow(stream(spark, tmp_path / "in")).map_batches(doubled)
    sink = ps.to("parquet", path=str(tmp_path / "out"))
    run(flow, checkpoint, sink=sink)
    every = tables
    for number, on_error in enumerate(("dead_letter", "dead_letter", "fail"), 1):
        write_files(tmp_path / "in", tables, start=10 * number)
        query, _ = run(flow, checkpoint, sink=sink, on_error=on_error)
        assert [p.epoch for p in query.progress] == [3 * number + n for n in range(3)]
        every = every + tables
    assert written(tmp_path / "out") == expected(every)


def test_a_checkpoint_keeps_to_flows_without_state(
    spark: SparkSession, tmp_path: Path, checkpoint: str, tables: list[pa.Table]
) -> None:
    rows = ps.flow(stream(spark, tmp_path / "in"))
    counted = rows.key_by("k").aggregate(n=ps.count())
    run(rows.select("k"), checkpoint)
    with pytest.raises(ps.CheckpointError, match="keyed steps none, but the flow has aggregate-1"):
        run(counted, checkpoint)
    run(counted, f"{checkpoint}-keyed")
    with pytest.raises(ps.CheckpointError, match="keyed steps aggregate-1, but the flow has none"):
        run(rows.select("k"), f"{checkpoint}-keyed")


def test_a_sink_that_reads_all_rows_gets_them_without_a_shuffle(
    spark: SparkSession, tmp_path: Path, tables: list[pa.Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Couriers must run once, plain tasks need not. A function of a user may still read the rows twice, and
    a console reads only some: both would see another answer, or none of the figures."""
    kept: list[int] = []
    in_own_stage = private.in_own_stage

    def noted(df: DataFrame) -> DataFrame:
        kept.append(1)
        return in_own_stage(df)

    monkeypatch.setattr(sinks, "in_own_stage", noted)
    out = tmp_path / "out"
    out.mkdir()

    def keep(batch: pa.RecordBatch, ids: ps.RowIds) -> None:
        if batch.num_rows:
            name = f"{ids.epoch}-{ids.courier}-{ids.first}.parquet"
            pq.write_table(pa.table(batch), out / name)

    flow = ps.flow(stream(spark, tmp_path / "in")).map_batches(doubled)

    def finish(sink: Any, name: str) -> None:
        query = flow.start(sink, checkpoint=str(tmp_path / name), trigger="available_now")
        assert query.await_termination(300)

    finish(ps.foreach_arrow(keep), "arrow")
    assert sorted(pq.read_table(out)["x"].to_pylist()) == expected(tables)
    assert kept == []
    counts: list[tuple[int, int]] = []
    finish(
        ps.foreach_batch(lambda df, epoch: counts.append((df.count(), df.count()))),
        "batch",
    )
    assert counts == [(ROWS, ROWS)] * 3
    assert len(kept) == 3
