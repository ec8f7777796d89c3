"""Autoscaling on Spark: hosts follow the load, hosts die meanwhile, and nothing is lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere in PySpark

import penstock as ps
from penstock.control.journal.entry import Entry
from penstock.settings import Settings
from penstock.sim.replay import recorded, replayed
from penstock.sim.skews import Uniform
from penstock.state.store.store import Store
from penstock.testing import Fault, Pace
from penstock_bench.workloads.shaped import KeyedRows, shaped
from tests.spark.test_faults import await_condition

STEP, KEYS, HOST_RATE = "aggregate-1", 3_000, 300.0
SLOW = Fault("host.work", Pace(HOST_RATE), hits=())
SETTINGS = Settings(faults=(SLOW,), progress_kept=10_000)


def rows(spark: SparkSession, rate: str) -> DataFrame:
    return shaped(spark, rate, keys=KEYS, slots=16)


def sums(source: DataFrame, **settings: Any) -> ps.Flow:
    flow = ps.flow(source, arrival="arrival").key_by("k", slots=16)
    return flow.aggregate(s=ps.sum("v"), n=ps.count()).sla("1s").elastic(at_most=4, **settings)


def told(query: ps.FlowQuery, event: str) -> list[Entry]:
    return [entry for entry in query.journal if entry.event == event]


def kinds(entries: list[Entry]) -> set[str]:
    return {one["kind"] for entry in entries for one in entry.facts["treatments"]}


def expected(count: int) -> dict[int, tuple[int, int]]:
    """Sum and number of the values of each key, for this many rows."""
    number = np.arange(count)
    content = KeyedRows(KEYS, Uniform(), slots=16)
    k = content.chosen_keys(number, np.zeros(count, np.int64))
    values, counts = np.bincount(k, number % 1000, KEYS), np.bincount(k, minlength=KEYS)
    return {key: (int(values[key]), int(counts[key])) for key in np.flatnonzero(counts).tolist()}


def test_a_load_gets_the_hosts_it_needs_and_a_dead_one_loses_nothing(
    spark: SparkSession, checkpoint: str
) -> None:
    """A dry run only reports decisions. Then they are carried out, and a host dies in the middle."""
    sink = ps.collect()
    flow = sums(rows(spark, "steady(500)"), dry_run=True)
    query = flow.start(sink, checkpoint=checkpoint, hosts=1, settings=SETTINGS)
    try:
        await_condition(lambda: "scale_out" in kinds(told(query, "decided")), 120)
        [first, *_] = [e for e in told(query, "decided") if "scale_out" in kinds([e])]
        assert "dry run, would do: scale out" in first.text
        assert (told(query, "began"), len(query.status.hosts)) == ([], 1)
        query.steer(dry_run=False)
        await_condition(lambda: bool(told(query, "began")), 60)
        os.kill(next(iter(query.status.hosts.values())), signal.SIGKILL)
        await_condition(lambda: bool(told(query, "host lost")), 60)
        await_condition(lambda: bool(told(query, "done")), 60)
        await_condition(lambda: len(query.status.hosts) > 1, 60)
        epoch = query.progress[-1].epoch
        await_condition(lambda: query.progress[-1].epoch > epoch + 2, 60)
        await_condition(lambda: f"{STEP}: average" in query.status.success, 60)
        success, slots = query.status.success, query.slot_success()[f"{STEP}: average"]
    finally:
        query.stop()
    assert 0 <= (success["average"].run or 0) < 1  # it was too much for one host
    assert len(slots) == 16
    assert success[f"{STEP}: average"].run is not None
    assert query.progress[-1].success["average"].run is not None
    run = recorded(Store(f"{checkpoint}/penstock"))
    assert {"began", "host lost"} <= {entry.event for entry in run.journal}
    assert replayed(run) == run.journal, "decided otherwise than it was"
    assert query.exception() is None
    found = {k: (r["s"], r["n"]) for k, r in sink.latest("k").items()}
    assert found == expected(sum(p.rows for p in query.progress))
    again = flow.start(ps.collect(), checkpoint=checkpoint, hosts=1, settings=SETTINGS)
    try:
        await_condition(lambda: bool(again.progress), 60)
        assert len(again.progress[0].hosts) == len(query.progress[-1].hosts) > 1
    finally:
        again.stop()


def test_steps_and_slots_are_judged_without_autoscaling_too(
    spark: SparkSession, checkpoint: str
) -> None:
    keyed = ps.flow(rows(spark, "steady(500)"), arrival="arrival").key_by("k", slots=16)
    flow = keyed.aggregate(s=ps.sum("v")).sla("10 minutes").sla(p99="1ms", step=STEP)
    query = flow.start(ps.collect(), checkpoint=checkpoint, hosts=2)
    try:
        await_condition(
            lambda: bool(query.progress) and f"{STEP}: p99" in query.progress[-1].success, 120
        )
        success, slots = query.progress[-1].success, query.slot_success()
        assert set(query.status.success) == {"average", f"{STEP}: average", f"{STEP}: p99"}
    finally:
        query.stop()
    assert success[f"{STEP}: average"].run == 1.0
    assert (success[f"{STEP}: p99"].minute or 0.0) < 1.0, "no row is applied within 1 ms"
    assert min(slot.hour or 0.0 for slot in slots[f"{STEP}: p99"]) == 0.0
    assert len(slots[f"{STEP}: p99"]) == 16
    assert (query.is_elastic, query.journal, query.exception()) == (False, [], None)


class Echo(ps.KeyedProcessor):
    """Gives every row back."""

    output_schema = "k long, v long"

    def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> Iterator[Any]:
        yield from ((key[0], row.v) for row in rows)


class Counted(ps.KeyedProcessor):
    """Sums and counts the values of a key. It merges."""

    output_schema = "k long, s long, n long"

    def init(self, handle: Any) -> None:
        self.total = handle.get_value_state("total", "s long, n long")

    def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> None:
        for row in rows:
            self._add(row.v, 1)

    def merge(self, other: Counted) -> None:
        self._add(*other.total.get())

    def handle_merged(self, key: Any, timers: Any) -> Iterator[Any]:
        yield (key[0], *self.total.get())

    def _add(self, s: int, n: int) -> None:
        before = self.total.get() or (0, 0)
        self.total.update((before[0] + s, before[1] + n))


@pytest.mark.parametrize(("state", "merges"), [("sketch", True), ("own", True), ("echo", False)])
def test_a_key_that_is_too_much_for_a_host_is_named(
    spark: SparkSession, checkpoint: str, state: str, merges: bool
) -> None:
    hot = F.when(F.col("v") % 10 < 9, 7).otherwise(F.col("k")).alias("k")
    source = rows(spark, "steady(500)").select("arrival", hot, "v")
    keyed = ps.flow(source, arrival="arrival").key_by("k", slots=16)
    steps = {
        "sketch": lambda: keyed.aggregate(n=ps.approx_distinct("v")),
        "own": lambda: keyed.process(Counted()),
        "echo": lambda: keyed.process(Echo()),
    }
    flow, sink = steps[state]().sla("1s").elastic(at_most=2), ps.collect()
    query = flow.start(sink, checkpoint=checkpoint, hosts=1, settings=SETTINGS)
    try:
        await_condition(lambda: bool(told(query, "hot key")), 120)
        entry = told(query, "hot key")[-1]
        assert entry.facts["key"] == "k=7"
        facts = query.control.facts()["steps"]
        [shown] = next(iter(facts.values()))["hot_keys"]
        assert (shown["key"], shown["two_stage"]) == ("k=7", merges)
        if not merges:
            assert "no treatment helps" in entry.text
            return
        assert "split in two stages" in entry.text
        await_condition(
            lambda: sum(h.rows for h in query.progress[-1].hosts) < 0.5 * query.progress[-1].rows,
            60,
        )
    finally:
        query.stop()
    if state == "own":
        counts = [row["n"] for row in sink.latest("k").values()]
        assert sum(counts) == sum(p.rows for p in query.progress)
        number = np.arange(sum(counts)) % 1000
        assert sum(row["s"] for row in sink.latest("k").values()) == number.sum()


def test_what_cannot_be_controlled(spark: SparkSession, checkpoint: str) -> None:
    source = rows(spark, "steady(10)")
    keyed = ps.flow(source, arrival="arrival").key_by("k").aggregate(n=ps.count())
    with pytest.raises(ps.FlowError, match="needs an SLA"):
        keyed.elastic().start(ps.to("noop"), checkpoint=checkpoint)
    with pytest.raises(ps.SettingError, match="task slots"):
        keyed.sla("1s").elastic(at_most=64).start(ps.to("noop"), checkpoint=checkpoint)
    with pytest.raises(ps.SettingError, match="policy"):
        keyed.elastic("nosuch")
