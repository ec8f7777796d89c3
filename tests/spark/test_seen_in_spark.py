"""A query as Spark shows it: names of jobs and stages in its UI, and figures for its listeners."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere in PySpark
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from starlette.testclient import TestClient

import penstock as ps
from penstock.observe.metrics.prometheus import PrometheusMetrics
from penstock.observe.recorder import Recorder
from penstock.spark.lasting_jobs import LastingTask
from penstock.spark.listener import _blank
from penstock.spark.triggers import trigger_of
from penstock.testing import Fault
from tests.observe.metrics.otlp_receiver import attributes, receiving
from tests.spark.sources import numbers, stream, write_files
from tests.spark.test_faults import await_condition


class Listener(StreamingQueryListener):
    """Keeps Penstock's figures of each epoch, and the number of rows that each read."""

    def __init__(self) -> None:
        self.figures: dict[int, dict[str, Any]] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's names
        """Nothing to keep."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        observed = event.progress.observedMetrics.get("penstock")
        if observed is not None:
            self.figures[event.progress.batchId] = observed.asDict()

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Nothing to keep."""


@pytest.fixture
def listener(spark: SparkSession) -> Iterator[Listener]:
    listener = Listener()
    spark.streams.addListener(listener)
    yield listener
    spark.streams.removeListener(listener)


def until(condition: Callable[[], bool], query: ps.FlowQuery) -> None:
    while not condition():
        assert not query.await_termination(0.05)


OBSERVED = ps.Settings(observed_metrics=True)


def test_a_listener_gets_the_sla_and_the_hosts_of_a_query(
    spark: SparkSession, listener: Listener, checkpoint: str
) -> None:
    ticks = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=100, numPartitions=2)
    rows = ticks.load().withColumn("at", F.current_timestamp())
    counts = ps.flow(rows, arrival="at").key_by("value", slots=8).aggregate(n=ps.count())
    query = counts.sla(latency="10m").start(
        ps.to("noop"), checkpoint=checkpoint, hosts=2, trigger="300ms", settings=OBSERVED
    )
    until(lambda: any(f["success_rate"] is not None for f in listener.figures.values()), query)
    query.stop()
    newest = listener.figures[max(listener.figures)]
    assert newest["hosts"] == 2
    assert newest["functions"] == 0
    assert newest["sla_latency_ms"] == 600_000
    assert newest["success_rate"] == 1.0
    assert 0 < newest["latency_mean_ms"] <= newest["latency_p99_ms"] < 600_000
    assert newest["backlog"] >= 0


def test_figures_change_neither_rows_nor_columns_even_if_an_epoch_is_run_again(
    spark: SparkSession, listener: Listener, tmp_path: Path
) -> None:
    write_files(tmp_path / "in", numbers(3, 400, keys=30))
    source = stream(spark, tmp_path / "in").select(
        "k",
        F.coalesce("v", F.lit(0)).alias("v"),
        F.lit(1).alias("one"),  # not nullable, like the next ones
        F.lit("x").alias("text"),
        F.lit(True).alias("flag"),
        F.array(F.lit(1)).alias("list"),
        F.struct(F.lit(1.5).alias("a")).alias("pair"),
        F.current_timestamp().alias("at"),
    )
    kill = Fault("host.applied", do="kill", where={"host": "aggregate-1/0", "epoch": 1, "run": 0})
    results = {}
    for observed in (False, True):
        batches: list[tuple[int, str, list[Any]]] = []

        def keep(df: DataFrame, epoch: int, to: Any = batches) -> None:
            rows = sorted(tuple(row) for row in df.collect())
            to.append((epoch, df.schema.json(), rows))

        counts = ps.flow(source).key_by("k", "one", "text", "flag", slots=8)
        query = counts.aggregate(n=ps.count(), total=ps.sum("v")).start(
            ps.foreach_batch(keep),
            checkpoint=str(tmp_path / f"checkpoint-{observed}"),
            hosts=2,
            trigger="available_now",
            settings=ps.Settings(observed_metrics=observed, faults=(kill,)),
        )
        query.await_termination(120)
        assert max(epoch.runs for epoch in query.progress) > 1
        results[observed] = {epoch: rest for epoch, *rest in batches}
    assert len(results[True]) == 3
    assert results[True] == results[False]
    mapped: list[Any] = []
    whole = ps.flow(source).map_batches(lambda rows: rows)
    sink = ps.foreach_batch(lambda df, _: mapped.append((df.schema, df.count())))
    query = whole.start(
        sink,
        checkpoint=str(tmp_path / "mapped"),
        trigger="available_now",
        settings=OBSERVED,
    )
    query.await_termination(120)
    assert [count for _, count in mapped] == [400, 400, 400]
    assert mapped[0][0] == source.schema
    assert set(listener.figures) >= {0, 1, 2}  # reports of an earlier test may come late


@pytest.mark.parametrize(
    "type",
    [
        pa.int8(), pa.float64(), pa.bool_(), pa.string(), pa.large_binary(), pa.timestamp("us", "UTC"),
        pa.decimal128(20, 3), pa.list_(pa.int32()), pa.map_(pa.string(), pa.int64()),
        pa.struct([pa.field("a", pa.int32(), nullable=False), pa.field("b", pa.string())]),
    ],
    ids=str,
)  # fmt: skip
def test_the_row_with_figures_has_a_value_where_null_is_not_allowed(type: pa.DataType) -> None:
    value, null = (_blank(pa.field("x", type, nullable=nullable)) for nullable in (False, True))
    for one in (value, null):
        one.validate(full=True)
        assert (one.type, len(one)) == (type, 1)
    assert (value.null_count, null.null_count) == (0, 1)


def test_files_have_the_same_columns_with_figures(
    spark: SparkSession, listener: Listener, tmp_path: Path
) -> None:
    write_files(tmp_path / "in", numbers(2, 200, keys=10))
    flow = ps.flow(stream(spark, tmp_path / "in")).filter(pc.field("k") > 1_000)
    query = flow.start(
        ps.to("parquet", path=str(tmp_path / "out")),
        checkpoint=str(tmp_path / "checkpoint"),
        trigger="available_now",
        settings=OBSERVED,
    )
    query.await_termination(120)
    out = spark.read.parquet(str(tmp_path / "out"))
    assert out.columns == ["k", "v", "x", "epoch"]
    assert out.count() == 0
    # Told although no row left the flow. Spark tells its listeners in a thread of its own.
    await_condition(lambda: len(listener.figures) == 2, 30)
    assert listener.figures[max(listener.figures)]["hosts"] == 0


def test_a_listener_gets_nothing_by_default(
    spark: SparkSession, listener: Listener, tmp_path: Path
) -> None:
    write_files(tmp_path / "in", numbers(1, 200, keys=10))
    query = ps.flow(stream(spark, tmp_path / "in")).map_batches(lambda rows: rows)
    started = query.start(
        ps.to("noop"), checkpoint=str(tmp_path / "checkpoint"), trigger="available_now"
    )
    started.await_termination(120)
    assert listener.figures == {}


def test_a_querys_epochs_are_traced_and_its_rows_are_counted(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(tmp_path / "in", numbers(4, 300, keys=10))
    counts = ps.flow(stream(spark, tmp_path / "in")).key_by("k", slots=8).aggregate(n=ps.count())
    with receiving() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        query = counts.start(
            ps.to("noop"),
            checkpoint=str(tmp_path / "checkpoint"),
            name="orders",
            trigger="available_now",
            telemetry=True,
        )
        metrics = PrometheusMetrics(query.recording.facts, query.recording.entries)
        cast(Recorder, query.recording).watch(metrics.take)
        query.await_termination(120)
    whole = {
        attributes(span)["penstock.epoch"]: span for span in receiver.spans if span.name == "epoch"
    }
    assert set(whole) == {epoch.epoch for epoch in query.progress} == {0, 1, 2, 3}
    for epoch in query.progress:
        span = whole[epoch.epoch]
        assert attributes(span)["penstock.rows"] == 300
        took_ms = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e6
        assert took_ms >= epoch.sink_ms + epoch.seal_ms - 0.01
        names = {s.name for s in receiver.spans if s.parent_span_id == span.span_id}
        assert names >= {"source", "couriers", "hosts", "sink", "seal"}
    (rows,) = receiver.newest("penstock.rows").sum.data_points
    assert rows.as_double == 1_200
    text = TestClient(metrics.app()).get("/").text
    assert 'penstock_rows_total{flow="orders"} 1200.0' in text
    assert 'penstock_moved_slots_total{flow="orders",step="aggregate-1"} 0.0' in text
    entries = re.findall(
        r'penstock_host_state_entries\{[^}]*host="aggregate-1/\d"[^}]*\} (\S+)', text
    )
    assert sum(map(float, entries)) == 10


def test_a_lasting_task_has_a_telling_name() -> None:
    host = LastingTask(("sum/0",), "sum", print, "orders")
    assert host.what == "Penstock host sum/0 of orders"
    both = LastingTask(("sum/0", "top/0"), "sum", print, "orders")
    assert both.what == "Penstock host sum/0, top/0 of orders"
    assert LastingTask(("courier/0",), "", print).what == "Penstock courier/0"


RUN = """
import json, sys, urllib.request
from pyspark.sql import SparkSession
import penstock as ps

builder = SparkSession.builder.appName("names").master("local[6]")
builder = builder.config("spark.ui.enabled", "true").config("spark.ui.port", "0")
builder = builder.config("spark.driver.host", "127.0.0.1")
spark = ps.configure(builder).getOrCreate()

def shown(what):
    context = spark.sparkContext
    url = f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}/{what}"
    with urllib.request.urlopen(url) as answer:
        return [(each.get("description"), each["name"]) for each in json.load(answer)]

source = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=100, numPartitions=2)
flow = ps.flow(source.load()).key_by("value", slots=8).aggregate(n=ps.count(), name="clicks")
found = {}
query = flow.start(ps.to("noop"), checkpoint=sys.argv[1] + "/a", hosts=2, name="orders")
while len(query.progress) < 3:
    assert not query.await_termination(0.05)
found["micro"] = {what: shown(what) for what in ("jobs", "stages")}
query.stop()
rows = ps.flow(ps.rate(100, partitions=2)).key_by("value", slots=8).aggregate(n=ps.count())
query = rows.start(
    ps.foreach_arrow(lambda rows, ids: None), checkpoint=sys.argv[1] + "/b", mode="live", hosts=1, name="live"
)
while len(query.progress) < 2:
    assert not query.await_termination(0.05)
found["live"] = {what: shown(what) for what in ("jobs", "stages")}
query.stop()
spark.stop()
print(json.dumps(found))
"""


def test_jobs_and_stages_have_telling_names_in_sparks_ui(tmp_path: Path) -> None:
    """Read through the REST API of Spark's UI, in a process whose session has one."""
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(tmp_path)], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    micro, live = found["micro"], found["live"]
    for what in ("jobs", "stages"):
        named = {name: description for description, name in micro[what] if description}
        for name, description in named.items():
            assert description == name  # the job's description, and the name of its stage
        assert {f"Penstock host clicks/{n} of orders" for n in (0, 1)} <= set(named)
        assert "epoch 0 of orders: 2 couriers -> noop" in named
        assert "epoch 2 of orders: 2 couriers -> noop" in named
        couriers = [name for _, name in live[what] if "courier" in name and "live" in name]
        assert "Penstock courier/0 of live" in couriers


def test_the_phases_of_an_epoch_add_up_to_its_trigger(
    spark: SparkSession, tmp_path: Path, checkpoint: str
) -> None:
    write_files(tmp_path / "in", numbers(files=5, rows=200, keys=20))
    flow = ps.flow(stream(spark, tmp_path / "in")).key_by("k").aggregate(total=ps.sum("v"))
    query = flow.start(ps.to("noop"), checkpoint=checkpoint, trigger="available_now")
    query.await_termination(120)
    starts = {e.epoch: e.started_ms for e in map(trigger_of, query.spark_query().recentProgress)}
    assert [bool(epoch.phases) for epoch in query.progress] == [True] * 4 + [False]
    for epoch in query.progress[:4]:
        lasted_ms = starts[epoch.epoch + 1] - starts[epoch.epoch]
        assert sum(epoch.phases.values()) == pytest.approx(lasted_ms, abs=0.1)
        # A host that answers before its courier has reported is not on the path.
        assert {"offset log", "planning", "prepare", "courier read", "manifest"} <= set(
            epoch.phases
        )
    trace = query.trace()
    assert trace.by_epoch().keys() == {0, 1, 2, 3}
    # Spark tells when its tasks began, so that the start of a job is known too.
    assert "JVM to Python" in trace.phases
    assert sum(trace.phases.values()) == pytest.approx(trace.trigger_ms, abs=0.1)
    assert {"driver", "courier 0", "host aggregate-1/0", "spark"} <= {s.where for s in trace.spans}
    assert {s.epoch for s in trace.spans if s.name == "apply"} == {0, 1, 2, 3}
