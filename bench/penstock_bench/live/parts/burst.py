"""The part `burst`: bursts of 3 to 10 times the load for 30 s, live, with functions or with overprovisioned
hosts.

NEXMark's bids are counted by auction. One host with a fixed service rate is 65 % busy before the burst. One
side has functions that take the load beyond the hosts' target. The other has as many hosts as the burst
needs, from the start. p99 is measured from arrival to sink, for the bids that arrive during the burst.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from pyspark.sql import SparkSession

import penstock as ps
from penstock.live.sources.source import LiveSource
from penstock.testing import Delay, Fault, Pace
from penstock_bench import sides
from penstock_bench.live.measures import p99_by_bin
from penstock_bench.live.parts.switch import bids, bids_by_auction
from penstock_bench.live.trial import Trial, tried
from penstock_bench.report import Goal, PartResult, Show

GOALS = {"burst_p99_vs_overprovisioned": Goal(at_most=1.3)}
FUNCTIONS, HOSTS = "functions", "overprovisioned"
SIDES = (FUNCTIONS, HOSTS)
_STEP = "aggregate-1"
_START_MS = 30_000
"""Milliseconds until a new machine is up, as in `bench burst`."""


@dataclass(frozen=True)
class BurstScale:
    """Size of the benchmark."""

    factors: tuple[int, ...] = (3, 5, 10)
    at_s: int = 10
    for_s: int = 30
    after_s: int = 5
    host_rate: float = 1_000.0
    """Records per second that a host, or a function, can process."""
    load: float = 0.65
    """Share of the time that the host is busy before the burst."""
    functions: int = 14
    """Most functions at the same time."""
    latency_s: float = 0.1
    """Bound of the SLA in seconds."""

    @property
    def seconds(self) -> int:
        return self.at_s + self.for_s + self.after_s

    def rate(self, factor: int) -> str:
        """The shape of the load.

        >>> BurstScale().rate(5)
        'burst(650, 5, 10s, 30s)'
        """
        return f"burst({self.load * self.host_rate:g}, {factor}, {self.at_s}s, {self.for_s}s)"


FULL = BurstScale()
QUICK = BurstScale((3,), at_s=6, for_s=8, after_s=3)


@dataclass(frozen=True)
class LiveBurst:
    """The result of a run."""

    side: str
    factor: int
    stable_ms: float
    """p99 of the bids that arrive before the burst, in milliseconds."""
    burst_ms: float
    """p99 of the bids that arrive during the burst, in milliseconds."""
    peak_ms: float
    """p99 of the worst second of the burst, in milliseconds."""
    function_rows: int
    p99_by_second: list[float | None]


def run(show: Show, quick: bool = False) -> PartResult:
    """Run this part, which takes seven minutes, or one when quick."""
    scale, runs = QUICK if quick else FULL, list[LiveBurst]()
    with sides.bench_session(cores=max(scale.factors) + 4) as spark:
        for factor in scale.factors:
            for side in SIDES:
                result = burst(spark, scale, factor, side)
                runs.append(result)
                show(
                    f"burst of {factor}, {side}: p99 {result.stable_ms:.0f} ms before, "
                    f"{result.burst_ms:.0f} ms during it, {result.peak_ms:.0f} ms in its worst second"
                )
    return PartResult(asdict(scale), {"runs": [asdict(run) for run in runs]})


def ratios(results: dict[str, Any]) -> dict[str, float]:
    """p99 during the burst with functions, divided by that with hosts: the geometric mean over all sizes."""
    p99_ms = {(run["factor"], run["side"]): run["burst_ms"] for run in results["runs"]}
    each = [
        p99_ms[factor, FUNCTIONS] / p99_ms[factor, HOSTS]
        for factor in dict.fromkeys(factor for factor, _ in p99_ms)
    ]
    return {"burst_p99_vs_overprovisioned": float(np.exp(np.mean(np.log(each))))}


def burst(spark: SparkSession, scale: BurstScale, factor: int, side: str) -> LiveBurst:
    """Run one burst in a session made by `bench_session`."""

    def flow(source: LiveSource) -> ps.Flow:
        bounded = bids_by_auction(source).sla(scale.latency_s)
        if side == HOSTS:
            return bounded
        functions = ps.LocalFunctions(at_most=scale.functions)
        return bounded.elastic(at_most=factor, functions=functions)

    trial = Trial(
        bids(scale.rate(factor)),
        flow,
        scale.seconds,
        factor if side == HOSTS else 1,
        {_STEP: scale.host_rate},
        faults=(
            Fault("burst.work", Pace(scale.host_rate), hits=()),
            Fault("driver.host", Delay(_START_MS), {"step": _STEP}, range(2, 1_000)),
        )
        if side == FUNCTIONS
        else (),
    )
    done = tried(spark, trial)
    at_ms, row_ms = done.truth.arrival_s * 1000, done.truth.row_ms
    end_s = scale.at_s + scale.for_s
    stable, in_it = (
        row_ms[(at_ms >= 1000 * begin) & (at_ms < 1000 * end) & ~np.isnan(row_ms)]
        for begin, end in ((1, scale.at_s), (scale.at_s, end_s))
    )
    by_second = p99_by_bin(at_ms, row_ms, 0.0, scale.seconds, 1000)
    return LiveBurst(
        side,
        factor,
        float(np.percentile(stable, 99)),
        float(np.percentile(in_it, 99)),
        peak_ms=max(p99 for p99 in by_second[scale.at_s : end_s] if p99 is not None),
        function_rows=sum(epoch.functions.rows for epoch in done.epochs),
        p99_by_second=by_second,
    )
