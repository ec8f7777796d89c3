"""Live runs of `penstock bench switch`: real Spark, real hosts, latency measured at the sink.

Each run is a query of its own. Its rows are summed by key, with so many keys that hardly two rows of
an epoch have the same one: hosts take in a record for every row. The orders of the exchange go
through its auction.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from pyspark.sql import DataFrame, SparkSession

import penstock as ps
from penstock.bench import sides
from penstock.bench.live_outcome import LiveOutcome, outcome_of
from penstock.bench.live_scenarios import CORES, LiveScenario
from penstock.bench.live_truth import Began, SlotsOf, delivered, truth
from penstock.bench.report import Show
from penstock.config import Settings
from penstock.errors import PenstockError
from penstock.workloads.arriving import Arrivals, Arriving, arriving
from penstock.workloads.exchange import live as exchange
from penstock.workloads.exchange.orders import Traders
from penstock.workloads.exchange.trace import day, slots_of_stocks
from penstock.workloads.shaped import KeyedRows
from penstock.workloads.shapes import shape
from penstock.workloads.skews import skew

SLOTS = 64
_KEYS = 200_000
_OPENING_S, _ONE_IN = 7_160.0, 4
_STARTS, _START_S, _GRACE_S, _POLL_S = 3, 120.0, 90.0, 0.25


@dataclass(frozen=True)
class _Source:
    """What arrives, and the flow that takes it."""

    arrivals: Arrivals
    slots_of: SlotsOf
    flow: ps.Flow


def live_runs(scenarios: Sequence[LiveScenario], show: Show) -> list[LiveOutcome]:
    """Run these one after the other in one session."""
    show("starting Spark")
    with sides.bench_session(CORES) as spark:
        return [live_run(scenario, show, spark) for scenario in scenarios]


def live_run(scenario: LiveScenario, show: Show, spark: SparkSession | None = None) -> LiveOutcome:
    """Run one, in a session of `bench_session`; in one of its own, if none is given."""
    if spark is None:
        (only,) = live_runs([scenario], show)
        return only
    source = _source(spark, scenario)
    with sides.folder(spark) as folder, _running(source.flow, scenario, folder) as query:
        began = _began(query)
        count = int(source.arrivals.cumulative(scenario.seconds * 1000 - 1e-3))
        _until(
            query,
            lambda: sum(epoch.rows for epoch in query.progress) >= began.first + count,
            scenario.seconds + _GRACE_S,
        )
        epochs, journal = query.progress, query.journal
    told = delivered(epochs)
    found = truth(source.arrivals, source.slots_of, SLOTS, began, told, scenario.seconds)
    outcome = outcome_of(scenario, found, epochs, journal, began)
    show(_line(outcome))
    return outcome


# -- the query


def _source(spark: SparkSession, scenario: LiveScenario) -> _Source:
    if scenario.load == "exchange":
        orders, content = exchange.excerpt(day(), _OPENING_S, scenario.seconds, _ONE_IN, Traders())
        rows = arriving(spark, "exchange", Arriving(orders, content))
        slots = slots_of_stocks(SLOTS).astype(np.int64)
        return _Source(
            orders,
            lambda number, t_us: slots[content.stock[number % len(content.stock)]],
            exchange.flow(rows, SLOTS),
        )
    arrivals, keyed = shape(scenario.load), KeyedRows(_KEYS, skew(scenario.skew), SLOTS)
    rows = arriving(spark, "shaped", Arriving(arrivals, keyed))
    return _Source(
        arrivals,
        lambda number, t_us: keyed.slots_of(keyed.chosen_keys(number, t_us)),
        _sums(rows),
    )


def _sums(rows: DataFrame) -> ps.Flow:
    return ps.flow(rows, arrival="arrival").key_by("k", slots=SLOTS).aggregate(s=ps.sum("v"))


@contextmanager
def _running(flow: ps.Flow, scenario: LiveScenario, folder: str) -> Iterator[ps.FlowQuery]:
    """The query, once it has had an epoch; Spark may need to be asked twice to start a source."""
    sla = scenario.sla
    flow = flow.sla(sla.latency_ms / 1000, sla.window_ms / 1000)
    if scenario.policy is not None:
        limits = {"at_least": scenario.at_least, "at_most": scenario.at_most}
        flow = flow.elastic(scenario.policy, **limits)
    settings = Settings(host_rates=(scenario.host_rate,), progress_kept=100_000)
    for attempt in range(_STARTS):
        query = flow.start(
            ps.to("noop"),
            checkpoint=f"{folder}/{attempt}",
            hosts=scenario.hosts,
            settings=settings,
        )
        try:
            _until(query, lambda q=query: bool(q.progress), _START_S)  # type: ignore[misc]
            break
        except PenstockError:
            query.stop()
            if attempt + 1 == _STARTS:
                raise
    try:
        yield query
    finally:
        query.stop()


def _began(query: ps.FlowQuery) -> Began:
    """When the load began, as the source tells Spark."""
    found: list[Began] = []

    def look() -> bool:
        newest = query.spark_query().lastProgress
        offset = newest["sources"][0]["endOffset"] if newest else None
        facts = json.loads(offset) if isinstance(offset, str) else offset
        if facts and facts["start_ms"] is not None:
            found.append(Began(facts["start_ms"], facts["first"]))
        return bool(found)

    _until(query, look, _START_S)
    return found[0]


def _until(query: ps.FlowQuery, condition: Callable[[], bool], timeout_s: float) -> None:
    deadline, pause = time.monotonic() + timeout_s, threading.Event()
    while not condition():
        if not query.is_active:
            raise PenstockError(f"the query ended: {query.status.message}")
        if time.monotonic() > deadline:
            raise PenstockError(f"the query is not done after {timeout_s:.0f} s")
        pause.wait(_POLL_S)


def _line(outcome: LiveOutcome) -> str:
    balance = f", busiest over mean {max(outcome.max_over_mean)}" if outcome.max_over_mean else ""
    return (
        f"live {outcome.name}, {outcome.policy or 'hosts stay'}: success {outcome.success:.2%}, "
        f"{outcome.hosts:.2f} hosts, epochs of {outcome.epoch_ms:.0f} ms{balance}"
    )
