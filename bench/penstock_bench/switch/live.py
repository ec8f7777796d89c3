"""Live runs of `penstock bench switch`: real Spark, real hosts, latency measured at the sink.

Each run is a query of its own that sums rows by key. There are so many keys that few rows of an epoch
share one, so hosts get about one record per row. The orders of the exchange go through its auction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from pyspark.sql import DataFrame, SparkSession

import penstock as ps
from penstock.live.sources.rate import ArrivalTimes
from penstock.settings import Settings
from penstock.sim.shapes import shape
from penstock.sim.skews import skew
from penstock.spark.arriving import Arriving, arriving
from penstock.testing import Fault, Pace
from penstock_bench import sides
from penstock_bench.live.latency import SlotsOf, delivered, truth
from penstock_bench.live.query import GRACE_S, began, running, until
from penstock_bench.report import Show
from penstock_bench.switch.outcome import LiveOutcome, outcome_of
from penstock_bench.switch.scenarios import CORES, LiveScenario
from penstock_bench.workloads.exchange import live as exchange
from penstock_bench.workloads.exchange.orders import Traders
from penstock_bench.workloads.exchange.trace import day, slots_of_stocks
from penstock_bench.workloads.shaped import KeyedRows

SLOTS = 64
_KEYS = 200_000
_OPENING_S, _ONE_IN = 7_160.0, 4


@dataclass(frozen=True)
class _Source:
    """The rows that arrive, and the flow that processes them."""

    arrivals: ArrivalTimes
    slots_of: SlotsOf
    flow: ps.Flow


def live_runs(scenarios: Sequence[LiveScenario], show: Show) -> list[LiveOutcome]:
    """Run the scenarios one after the other in one session."""
    show("starting Spark")
    with sides.bench_session(CORES) as spark:
        return [live_run(scenario, show, spark) for scenario in scenarios]


def live_run(scenario: LiveScenario, show: Show, spark: SparkSession | None = None) -> LiveOutcome:
    """Run one scenario in a session made by `bench_session`, or in a new session if `spark` is None."""
    if spark is None:
        (only,) = live_runs([scenario], show)
        return only
    source = _source(spark, scenario)
    start = partial(_started, source.flow, scenario)
    with sides.folder(spark) as folder, running(start, folder) as query:
        load = began(query)
        count = int(source.arrivals.cumulative(scenario.seconds * 1000 - 1e-3))
        until(
            query,
            lambda: sum(epoch.rows for epoch in query.progress) >= load.first + count,
            scenario.seconds + GRACE_S,
        )
        epochs, journal = query.progress, query.journal
    deliveries = delivered(epochs)
    latencies = truth(source.arrivals, source.slots_of, SLOTS, load, deliveries, scenario.seconds)
    outcome = outcome_of(scenario, latencies, epochs, journal, load)
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


def _started(flow: ps.Flow, scenario: LiveScenario, checkpoint: str) -> ps.FlowQuery:
    sla = scenario.sla
    flow = flow.sla(sla.latency_ms / 1000, sla.window_ms / 1000)
    if scenario.policy is not None:
        flow = flow.elastic(scenario.policy, at_least=scenario.at_least, at_most=scenario.at_most)
    slow = Fault("host.work", Pace(scenario.host_rate), hits=())
    settings = Settings(faults=(slow,), progress_kept=100_000)
    return flow.start(ps.to("noop"), checkpoint=checkpoint, hosts=scenario.hosts, settings=settings)


def _line(outcome: LiveOutcome) -> str:
    balance = f", busiest over mean {max(outcome.max_over_mean)}" if outcome.max_over_mean else ""
    return (
        f"live {outcome.name}, {outcome.policy or 'no scaling'}: success {outcome.success:.2%}, "
        f"{outcome.hosts:.2f} hosts, epochs of {outcome.epoch_ms:.0f} ms{balance}"
    )
