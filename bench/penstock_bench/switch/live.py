"""Live runs of `penstock bench switch`: real Spark, real hosts, latency measured at the sink.

Each run is a query of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from pyspark.sql import SparkSession

import penstock as ps
from penstock.settings import Settings
from penstock.testing import Fault, Pace
from penstock_bench import sides
from penstock_bench.live.latency import Delivered, delivered, truth
from penstock_bench.live.query import GRACE_S, began, running, until
from penstock_bench.report import Show
from penstock_bench.switch.outcome import LiveOutcome, outcome_of
from penstock_bench.switch.scenarios import CORES, WARM_UP, LiveScenario
from penstock_bench.switch.workloads import SLOTS, source


def live_runs(scenarios: Sequence[LiveScenario], show: Show) -> list[LiveOutcome]:
    """Run the scenarios one after the other in one session, after one that warms it up."""
    show("starting Spark")
    with sides.bench_session(CORES) as spark:
        live_run(WARM_UP, show, spark)
        return [live_run(scenario, show, spark) for scenario in scenarios]


def live_run(scenario: LiveScenario, show: Show, spark: SparkSession | None = None) -> LiveOutcome:
    """Run one scenario in a session made by `bench_session`, or in a new session if `spark` is None."""
    if spark is None:
        (only,) = live_runs([scenario], show)
        return only
    load = source(spark, scenario)
    start = partial(_started, load.flow, scenario)
    with sides.folder(spark) as folder, running(start, folder) as query:
        start_of = began(query)
        count = int(load.arrivals.cumulative(scenario.seconds * 1000 - 1e-3))
        before = start_of.first if load.counts_lead_in else 0
        until(
            query,
            lambda: sum(epoch.rows for epoch in query.progress) >= before + count,
            scenario.seconds + GRACE_S,
        )
        epochs, journal = query.progress, query.journal
    skipped = start_of.first - before
    deliveries = [Delivered(one.row + skipped, one.at_ms) for one in delivered(epochs)]
    latencies = truth(load.arrivals, load.slots_of, SLOTS, start_of, deliveries, scenario.seconds)
    outcome = outcome_of(scenario, latencies, epochs, journal, start_of)
    show(_line(outcome))
    return outcome


def _started(flow: ps.Flow, scenario: LiveScenario, checkpoint: str) -> ps.FlowQuery:
    sla = scenario.sla
    flow = flow.sla(sla.latency_ms / 1000, sla.window_ms / 1000)
    if scenario.policy is not None:
        flow = flow.elastic(scenario.policy, at_least=scenario.at_least, at_most=scenario.at_most)
    settings = Settings(faults=_slow(scenario), progress_kept=100_000)
    return flow.start(ps.to("noop"), checkpoint=checkpoint, hosts=scenario.hosts, settings=settings)


def _slow(scenario: LiveScenario) -> tuple[Fault, ...]:
    """Faults that give hosts their set service rate."""
    rate = scenario.host_rate
    if rate is None:
        return ()
    if isinstance(rate, float):
        return (Fault("host.work", Pace(rate), hits=()),)
    return tuple(Fault("host.work", Pace(each), {"step": step}, ()) for step, each in rate.items())


def _line(outcome: LiveOutcome) -> str:
    balance = f", busiest over mean {max(outcome.max_over_mean)}" if outcome.max_over_mean else ""
    at_best = "" if outcome.possible is None else f" ({outcome.possible:.2%} is possible)"
    return (
        f"live {outcome.name}, {outcome.policy or 'no scaling'}, seed {outcome.settings['seed']}: "
        f"success {outcome.success:.2%}{at_best}, {outcome.hosts:.2f} hosts, "
        f"epochs of {outcome.epoch_ms:.0f} ms{balance}"
    )
