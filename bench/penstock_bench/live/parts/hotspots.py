"""The part `hotspots`: AutoFlow's moving hotspots, live.

Rows are summed by key on a fixed number of hosts. A share of the rows goes to one host's slots, and after a
while to the next one's. The metric is the busiest host's rows divided by the mean, in the last third of
each period.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from pyspark.sql import SparkSession

import penstock as ps
from penstock.driver.progress import EpochProgress
from penstock.live.sources.source import LiveSource
from penstock.model import SLA
from penstock.sim.pieces import Numbers
from penstock.sim.shapes import shape
from penstock.sim.skews import skew
from penstock_bench import sides
from penstock_bench.live.load import Load, Records
from penstock_bench.live.receipts import Columns
from penstock_bench.live.trial import SLOTS, Trial, tried
from penstock_bench.report import Goal, PartResult, Show
from penstock_bench.switch.outcome import since
from penstock_bench.switch.scenarios import BALANCER, LiveScenario, hotspot
from penstock_bench.workloads.shaped import KeyedRows

GOALS = {"hotspot_max_over_mean": Goal(at_most=1.15)}
CORES = 10
_KEYS = 200_000
BOUND = SLA(100, 1_000)


def scenarios(quick: bool) -> tuple[LiveScenario, ...]:
    """Hotspots with 50 and 80 % of the rows, on three and five hosts."""
    if quick:
        return (hotspot(0.5, 3, BALANCER, period_s=12),)
    return (hotspot(0.5, 3, BALANCER, period_s=24), hotspot(0.8, 5, BALANCER, period_s=24))


@dataclass(frozen=True)
class Evened:
    """The result of a run."""

    name: str
    max_over_mean: list[float]
    """The busiest host's rows divided by the mean, in the last third of each of the hotspot's periods."""
    success: float
    """Share of windows, by slot, that kept an SLA of 100 ms over 1 s."""
    p99_ms: float
    by_second: dict[str, list[float | None]]
    rows_by_host: dict[str, list[float]]
    """Host -> its rows in each second."""
    settings: dict[str, Any]


def run(show: Show, quick: bool = False) -> PartResult:
    """Run this part, which takes two and a half minutes, or 40 s when quick."""
    with sides.bench_session(CORES) as spark:
        runs = [evened(spark, scenario, show) for scenario in scenarios(quick)]
    settings = {"slots": SLOTS, "keys": _KEYS, "policy": BALANCER}
    return PartResult(settings, {"runs": [asdict(run) for run in runs]})


def ratios(results: dict[str, Any]) -> dict[str, float]:
    """The worst period of any run."""
    return {"hotspot_max_over_mean": max(max(run["max_over_mean"]) for run in results["runs"])}


def evened(spark: SparkSession, scenario: LiveScenario, show: Show) -> Evened:
    """Run one scenario in a session made by `bench_session`."""
    keyed = KeyedRows(_KEYS, skew(scenario.skew), SLOTS)

    def records(number: Numbers, t_us: Numbers) -> Records:
        return Records(np.arange(len(number)), keyed.chosen_keys(number, t_us))

    def flow(source: LiveSource) -> ps.Flow:
        sums = ps.flow(source).key_by("k", slots=SLOTS).aggregate(n=ps.count(), s=ps.sum("v"))
        bounded = sums.sla(BOUND.latency_ms / 1000, BOUND.window_ms / 1000)
        if scenario.policy is None:
            return bounded
        return bounded.elastic(
            scenario.policy, at_least=scenario.at_least, at_most=scenario.at_most
        )

    load = Load(shape(scenario.load), keyed, records, keyed.slots_of, Columns("k", "n"))
    assert isinstance(scenario.host_rate, float)
    trial = Trial(load, flow, scenario.seconds, scenario.hosts, {"": scenario.host_rate})
    done = tried(spark, trial)
    epochs = since(done.epochs, done.began.start_ms, scenario.seconds)
    row_ms = done.truth.row_ms[~np.isnan(done.truth.row_ms)]
    rows = by_host(epochs, scenario.seconds)
    outcome = Evened(
        scenario.name,
        busiest_over_mean(rows, scenario.seconds, scenario.period_s),
        success=float(done.truth.success(BOUND, scenario.warm_up_s).mean()),
        p99_ms=float(np.percentile(row_ms, 99)),
        by_second=done.truth.by_second(scenario.seconds),
        rows_by_host=rows,
        settings=asdict(scenario),
    )
    show(
        f"{scenario.name}: busiest host over mean {outcome.max_over_mean}, success {outcome.success:.2%}, "
        f"p99 {outcome.p99_ms:.0f} ms"
    )
    return outcome


def by_host(epochs: Sequence[EpochProgress], seconds: int) -> dict[str, list[float]]:
    """Rows of each host in each second. An epoch's rows are spread evenly over its duration."""
    starts = np.array([epoch.started_ms / 1000 for epoch in epochs])
    by_second = {}
    for name in sorted({host.host for epoch in epochs for host in epoch.hosts}):
        rows = [sum(host.rows for host in epoch.hosts if host.host == name) for epoch in epochs]
        total = np.concatenate([[0.0], np.cumsum(rows)[:-1]])
        passed = np.interp(np.arange(seconds + 1), starts, total)
        by_second[name] = np.diff(passed).round(1).tolist()
    return by_second


def busiest_over_mean(
    rows: Mapping[str, Sequence[float]], seconds: int, period_s: int
) -> list[float]:
    """The busiest host's rows divided by the mean, in the last third of each of a hotspot's periods.

    The last second is left out: an epoch that begins in it may end in the next period.

    >>> busiest_over_mean({"a": [9, 9, 9, 3, 3, 9], "b": [0, 0, 0, 1, 1, 0]}, 6, 6)
    [1.5]
    """
    ratios = []
    for end in range(period_s, seconds + 1, period_s):
        totals = [sum(of_host[end - period_s // 3 - 1 : end - 1]) for of_host in rows.values()]
        if sum(totals):
            ratios.append(round(max(totals) * len(totals) / sum(totals), 3))
    return ratios
