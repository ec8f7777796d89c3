"""Functions on Spark: a burst goes to them, nothing is lost, and nothing is left of them."""

from __future__ import annotations

import signal
from typing import Any

import numpy as np
import psutil
import pytest
from pyspark.sql import SparkSession

import penstock as ps
from penstock.control.journal.entry import Entry
from penstock.settings import Settings
from penstock.sim.skews import Uniform
from penstock.testing import Fault, Pace
from penstock_bench.workloads.shaped import KeyedRows, shaped
from tests.spark.test_control import Counted
from tests.spark.test_faults import await_condition

KEYS, SLOTS, HOST_RATE = 40, 4, 400.0
SLOW = tuple(Fault(point, Pace(HOST_RATE), hits=()) for point in ("host.work", "burst.work"))
SETTINGS = Settings(faults=SLOW, progress_kept=10_000)


def flow(spark: SparkSession, rate: str, **settings: Any) -> ps.Flow:
    """Couriers send such rows as they are: a sketch is larger than many rows. Functions combine them."""
    source = shaped(spark, rate, keys=KEYS, slots=SLOTS)
    keyed = ps.flow(source, arrival="arrival").key_by("k", slots=SLOTS)
    counted = keyed.aggregate(s=ps.sum("v"), n=ps.count(), d=ps.approx_distinct("v"))
    functions = ps.LocalFunctions(at_most=16)
    return counted.sla("2s").elastic(at_most=2, functions=functions, **settings)


def expected(count: int) -> dict[int, tuple[int, int]]:
    """Sum and number of the values of each key, for this many rows."""
    number = np.arange(count)
    content = KeyedRows(KEYS, Uniform(), slots=SLOTS)
    k = content.chosen_keys(number, np.zeros(count, np.int64))
    values, counts = np.bincount(k, number % 1000, KEYS), np.bincount(k, minlength=KEYS)
    return {key: (int(values[key]), int(counts[key])) for key in np.flatnonzero(counts).tolist()}


def services() -> list[psutil.Process]:
    """The processes of functions that this one has started."""
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            if "penstock.offload.backends.local.service" in child.cmdline():
                found.append(child)
        except psutil.NoSuchProcess:
            continue
    return found


def told(query: ps.FlowQuery) -> list[Entry]:
    return [entry for entry in query.journal if entry.event == "offload"]


def go_on(query: ps.FlowQuery, epochs: int) -> None:
    """Wait until this many more epochs are done."""
    epoch = query.progress[-1].epoch
    await_condition(lambda: query.progress[-1].epoch >= epoch + epochs, 90)


def carried_since(query: ps.FlowQuery, epoch: int) -> int:
    epochs = [p for p in query.progress if p.epoch > epoch]
    return sum(p.functions.rows - p.functions.returned for p in epochs)


@pytest.mark.slow
def test_a_burst_is_carried_by_functions_whatever_becomes_of_them(
    spark: SparkSession, checkpoint: str
) -> None:
    sink = ps.collect()
    made = flow(spark, "burst(300, 5, 12s, 60s)")
    query = made.start(sink, checkpoint=checkpoint, hosts=2, settings=SETTINGS)
    try:
        await_condition(lambda: carried_since(query, -1) > 500, 120)
        assert query.control.facts()["functions"]["state"] == "up"
        for how in (signal.SIGKILL, signal.SIGSTOP):
            newest = query.progress[-1].epoch
            broken = services()
            for service in broken:
                service.send_signal(how)
            await_condition(lambda: bool(returned_since(query, newest)), 60)  # noqa: B023
            # others take their place
            await_condition(lambda: set(services()) - set(broken) != set(), 60)  # noqa: B023
            newest = query.progress[-1].epoch
            await_condition(lambda: carried_since(query, newest) > 0, 60)  # noqa: B023
        await_condition(lambda: bool(told(query)) and told(query)[-1].facts["functions"] == 0, 90)
        go_on(query, 3)
        assert query.progress[-1].functions.rows == 0
        assert len(query.status.hosts) == 2
    finally:
        query.stop()
    assert query.exception() is None
    found = {k: (r["s"], r["n"]) for k, r in sink.latest("k").items()}
    assert found == expected(sum(p.rows for p in query.progress))
    assert min(query.money.functions, query.money.hosts) > 0
    assert any("not answered" in entry.text for entry in told(query))
    assert services() == []


@pytest.mark.slow
def test_a_burst_over_a_users_processor_and_a_join(spark: SparkSession, checkpoint: str) -> None:
    """Each row of the source pairs with itself alone."""
    rows = ps.flow(
        shaped(spark, "burst(300, 5, 12s, 60s)", keys=KEYS, slots=SLOTS), arrival="arrival"
    )
    joined = rows.join(rows, on=["arrival", "k", "v"], ttl="1h", slots=SLOTS, name="pairs")
    flow = joined.key_by("k", slots=SLOTS).process(Counted(), name="counts").sla("2s")
    flow = flow.elastic(at_most=2, functions=ps.LocalFunctions(at_most=16))
    sink = ps.collect()
    query = flow.start(sink, checkpoint=checkpoint, hosts=2, settings=SETTINGS)
    try:
        await_condition(lambda: {e.step for e in told(query)} >= {"pairs", "counts"}, 120)
        await_condition(lambda: carried_since(query, -1) > 500, 120)
        go_on(query, 2)
    finally:
        query.stop()
    assert query.exception() is None
    found = {k: (r["s"], r["n"]) for k, r in sink.latest("k").items()}
    assert found == expected(sum(p.rows for p in query.progress))


def returned_since(query: ps.FlowQuery, epoch: int) -> int:
    return sum(p.functions.returned for p in query.progress if p.epoch > epoch)
