"""The queries for bursts: what functions can do of them, and that their results agree with DuckDB."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

import penstock as ps
from penstock.errors import SettingError
from penstock.flows.graph import Graph, Source
from penstock.offload.plan.segments import segments
from penstock.operators.operator import ROWS, EpochTime
from penstock.plan.steps import FlowPlan, SourcePlan
from penstock.testing import Uncombined
from penstock_bench.live.query import began, until
from penstock_bench.workloads.nexmark.arriving_events import MixedEvents
from penstock_bench.workloads.nexmark.columns import TIME
from penstock_bench.workloads.nexmark.events import events
from penstock_bench.workloads.nexmark.live import (
    BURSTS,
    BurstLoad,
    Compared,
    burst_content,
    burst_flow,
    burst_form,
    compared,
    truth,
)
from tests.offload.in_process import ANYHOW, WELL, helped
from tests.trials.cluster import PLAIN, SETTINGS, cluster
from tests.trials.plain_rows import Row

pytestmark = pytest.mark.timeout(120)

OTHERS = ("words", "skewed", "own", "joined")
WINDOW = "500ms"
RATE = "steps(200 for 1s, 1000 for 1500ms, 100 for 1s)"
"""Rows arrive at whole milliseconds, the precision of the test cluster's rows."""
START_MS = 1_700_000_000_123


def plan_of(name: str, window: str = WINDOW, slots: int = 8) -> FlowPlan:
    """The compiled plan of a query, on a source that needs no Spark."""
    schema = pa.schema([pa.field("arrival", TIME), *burst_content(name).schema])
    origin: Any = SimpleNamespace(sparkSession=None)
    source: Any = Source(origin, SourcePlan(schema, "arrival", arrival="arrival"))
    return burst_form(name).steps(ps.Flow(Graph((source,)), time="arrival"), window, slots).plan


def load_of(name: str, **options: Any) -> BurstLoad:
    return BurstLoad(name, RATE, START_MS, window=WINDOW, **options)


def epochs_of(load: BurstLoad, count: int, seed: int = 0) -> list[list[list[Row]]]:
    """Rows in the order of arrival, cut into epochs and partitions of any size."""
    rows = load.rows(count).to_pylist()
    pick = np.random.default_rng(seed)
    ends = np.sort(pick.integers(0, count, 8)).tolist()
    cut = []
    for begin, end in zip([0, *ends], [*ends, count], strict=True):
        half = begin + int((end - begin) * pick.random())
        cut.append([rows[begin:half], rows[half:end]])
    return cut


def output_of(on: Any, parts: Sequence[list[list[Row]]]) -> list[Row]:
    for part in parts:
        on.now_ms += 500
        on.run(part)
    for _ in range(4):  # a watermark takes one epoch per step
        on.run([[], []])
    return [row for epoch in sorted(on.sink) for row in on.sink[epoch]]


# The part that functions do


@pytest.mark.parametrize("name", BURSTS)
def test_the_step_with_the_many_rows_can_go_to_functions(name: str) -> None:
    found = {segment.id: segment for segment in segments(plan_of(name))}
    busy = found[burst_form(name).busy]
    assert busy.offloadable
    assert not busy.whole_keys, "rows of a key can go to several functions"
    if name != "joined":  # its two sides are read apart
        assert busy.reads == (0,), "the source is what it reads, through stateless steps"
    assert (busy.keyed is None) == (name == "q1")


@pytest.mark.parametrize(
    ("name", "join"), [("q4", "join-2"), ("q6", "join-2"), ("q8", "join-2"), ("joined", "join-1")]
)
def test_joins_can_go_to_functions(name: str, join: str) -> None:
    found = {segment.id: segment for segment in segments(plan_of(name))}
    assert found[join].offloadable


@pytest.mark.parametrize("name", [name for name in BURSTS if name != "joined"])
def test_what_a_row_costs_hosts(name: str) -> None:
    """`records` is the number of records per row at the busy step if couriers do not combine."""
    segment = next(one for one in segments(plan_of(name)) if one.id == burst_form(name).busy)
    [rows] = load_of(name).rows(9_800).combine_chunks().to_batches()
    for step in segment.maps:
        rows = step.function(rows)
    sent = rows.num_rows
    if segment.keyed is not None:
        sender = segment.keyed.plan.sender(EpochTime(0, 0))
        Uncombined()({"sender": sender})
        sent = sum(out.batch.num_rows for out in sender.add(0, rows))
        assert sender.finish() == (ROWS, ())
    assert sent == 9_800 * burst_form(name).records


# Rows


@pytest.mark.parametrize("name", ["q1", "q4", "q8"])
def test_rows_are_those_of_the_generator(name: str) -> None:
    held = burst_content(name, seed=5)
    assert isinstance(held, MixedEvents)
    config = replace(held.config, events=30_000)
    whole = events(config, 0, config.events)
    for stream in held.streams:
        columns = held.of[stream]
        rows = pa.table(held.rows(np.arange(1_900), np.zeros(1_900, np.int64)), schema=held.schema)
        alone = next(
            n for n in columns if all(n not in held.of[o] for o in held.streams if o != stream)
        )
        found = rows.filter(pc.is_valid(rows.column(alone))).select(list(columns))
        assert found.num_rows > 30
        expected = whole[stream].select(list(columns.values())).rename_columns(list(columns))
        assert found.equals(expected.slice(0, found.num_rows))


def test_rows_of_several_streams_are_in_the_order_of_events() -> None:
    rows = load_of("q4").rows(100)
    opens = rows.column("category").is_valid().to_pylist()
    assert [n for n, one in enumerate(opens) if one] == [0, 1, 2, 49, 50, 51, 98, 99]


def test_a_load_begins_where_its_lead_in_ends() -> None:
    """Rows keep their numbers, but the first row of the load arrives at its start."""
    later = load_of("q7", first=30).rows(50)
    assert later.column("auction").to_pylist() == load_of("q7").rows(80)["auction"].to_pylist()[30:]
    assert later.column("arrival").equals(load_of("q7").rows(50).column("arrival"))


def test_other_queries_are_refused() -> None:
    with pytest.raises(SettingError, match="no query 'q3' for bursts"):
        burst_flow("q3", None, RATE)  # type: ignore[arg-type]


# The oracle


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        *((name, PLAIN) for name in BURSTS),
        ("q5", SETTINGS),
        *(
            pytest.param(name, SETTINGS, marks=pytest.mark.slow)
            for name in ("q4", "q6", "q7", "q8")
        ),
    ],
)
def test_a_query_gives_the_truth(tmp_path: Path, name: str, settings: ps.Settings) -> None:
    load, count = load_of(name), 3_000
    with cluster(plan_of(name), str(tmp_path), settings=settings) as on:
        rows = output_of(on, epochs_of(load, count))
    assert on.late == {}
    found = compared(load, rows)
    assert found.right, found
    assert found.rows == len(truth(load, count)), "all windows that can be over are"
    assert found.rows >= 4


@pytest.mark.parametrize(
    "name", ["q1", "q4", "q5", pytest.param("q6", marks=pytest.mark.slow), "q7", "q8", *OTHERS]
)
def test_with_the_help_of_functions(tmp_path: Path, name: str) -> None:
    """The result is also right if functions fail, are slow or misbehave."""
    load, count = load_of(name, first=7, seed=3), 3_000
    flow = plan_of(name)
    with (
        helped(flow, ANYHOW, seed=4, deadline_ms=300) as by,
        cluster(flow, str(tmp_path), settings=PLAIN, hosts=3, helped=by) as on,
    ):
        rows = output_of(on, epochs_of(load, count, seed=2))
        assert by.workers.did["answer"] > 3
    found = compared(load, rows)
    assert found.right, found
    assert found.rows == len(truth(load, count))


def test_functions_make_few_records_of_many_rows(tmp_path: Path) -> None:
    """Only then do they relieve the hosts: bids on an auction are close to each other."""
    for name in BURSTS.keys() - {"skewed", "joined"}:  # of many keys, or rows that are only packed
        flow, load = plan_of(name), load_of(name)
        if name == "q1":
            continue
        with (
            helped(flow, WELL) as by,
            cluster(flow, str(tmp_path / name), settings=PLAIN, helped=by) as on,
        ):
            by.chance = 1.0
            rows = load.rows(6_000).to_pylist()
            did = on.run([rows[:3_000], rows[3_000:]]).functions
        assert did is not None
        assert did.rows > 1_000
        assert did.records < 0.35 * did.rows * burst_form(name).records, name


def test_what_is_wrong_is_found() -> None:
    load = load_of("q6")
    rows = truth(load, 3_000)
    assert compared(load, rows) == Compared(len(rows), rows[-1]["window_end"] / 1000, 0, 0)
    assert compared(load, rows).until_ms == max(row["window_end"] for row in rows) / 1000
    changed = [{**rows[0], "price": rows[0]["price"] + 1}, *rows[1:]]
    twice, less = [*rows, rows[3]], rows[1:]
    assert (compared(load, changed).missing, compared(load, changed).extra) == (1, 1)
    assert (compared(load, twice).missing, compared(load, twice).extra) == (0, 1)
    assert (compared(load, less).missing, compared(load, less).extra) == (1, 0)
    assert str(rows[0]["seller"]) in str(compared(load, less))
    assert not compared(replace(load, seed=2), rows).right
    assert not compared(replace(load, start_ms=START_MS + 50), rows).right


def test_output_may_lag_behind_the_input() -> None:
    """A run is compared with the expected rows up to the end of its last window."""
    load = load_of("q5")
    rows = truth(load, 3_000)
    last = max(row["window_end"] for row in rows)
    so_far = [row for row in rows if row["window_end"] < last]
    found = compared(load, so_far)
    assert found.right
    assert found.rows == len(so_far) < len(rows)
    assert found.until_ms < last / 1000


def test_nothing_is_due_of_nothing() -> None:
    assert truth(load_of("q7"), 0) == []
    assert compared(load_of("q7"), []).right


# Spark


def ran(flow: ps.Flow, checkpoint: str, time: str, until_ms: int) -> list[Row]:
    """Output rows of a query, until the output has reached a time."""
    sink = ps.collect()
    live = flow.start(
        sink, checkpoint=checkpoint, hosts=2, settings=ps.Settings(faults=PLAIN.faults)
    )
    for _ in range(240):
        newest = max((row[time].timestamp() for row in sink.rows()), default=0)
        if newest * 1000 >= until_ms or live.await_termination(0.25):
            break
    live.stop()
    assert live.exception() is None
    assert not any(epoch.late_rows for epoch in live.progress)
    return sink.rows()


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", BURSTS)
def test_live(spark: SparkSession, checkpoint: str, name: str) -> None:
    """The load started in the past, so that most of it arrives at once."""
    rate, start_ms = "burst(700, 5, 4s, 3s)", int(time.time() * 1000) - 12_345
    load = BurstLoad(name, rate, start_ms, seed=4, window="1s")
    made = burst_flow(name, spark, rate, slots=8, seed=4, start_ms=start_ms, window="1s")
    rows = ran(made, checkpoint, burst_form(name).time, start_ms + 15_000)
    found = compared(load, rows)
    assert found.right, found
    assert found.until_ms >= start_ms + 15_000


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_live_from_when_the_query_has_come_up(spark: SparkSession, checkpoint: str) -> None:
    """Rows of the lead-in have numbers, but are dropped."""
    made = burst_flow("q5", spark, "steady(900)", slots=8, window="500ms")
    sink = ps.collect()
    live = made.start(sink, checkpoint=checkpoint, hosts=1)
    load = began(live)
    until(live, lambda: len(sink.rows()) >= 5, 60)
    live.stop()
    assert load.first > 0
    found = compared(
        BurstLoad("q5", "steady(900)", load.start_ms, load.first, window="500ms"), sink.rows()
    )
    assert found.right, found
    assert not compared(
        BurstLoad("q5", "steady(900)", load.start_ms, 0, window="500ms"), sink.rows()
    ).right
