"""`penstock bench burst`: bursts of several times the load, absorbed by functions.

Six NEXMark queries get bursts, simulated and live. A live run is a burst of five times the load for
half a minute on real Spark, with hosts and functions of a set service rate. The rows of every live
run are compared with a database's answer. The simulator runs the same control code for all queries,
with bursts of 3, 5, 7 and 10 times for 30, 60 and 120 s and two gentler shapes, at the paper's state sizes.

Latency is the peak p99: the worst second's 99th percentile, between the start of the burst and the
delivery of its last row, with rows counted in the second that delivered them. `p99_peak_...` ratios
are from live runs, as geometric means over queries. `sim_p99_peak_...` ratios are simulated, over
queries and shapes. The side `new_hosts_30s` has to start a machine for each new host: it is ready
30 s after the request.

Cost is that of a day with 1 % burst time: Penstock's cost divided by the cost of running enough hosts
for the burst all day. The simulated ratio sums bursts of 3, 5, 7 and 10 times; the live one has one burst.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from penstock_bench.burst import params as burst_params
from penstock_bench.burst import scenarios as burst_scenarios
from penstock_bench.burst import sides as burst_money
from penstock_bench.burst import sides as burst_sides
from penstock_bench.burst import simulated as burst_sim
from penstock_bench.burst.outcome import LiveRuns
from penstock_bench.report import Goal, Report, Result, Sample, Show, by

GOALS = {
    "p99_peak_vs_new_hosts": Goal(at_most=0.12),
    "p99_peak_vs_functions_with_migration": Goal(at_most=0.30),
    "p99_peak_vs_overprovisioned": Goal(at_most=1.3),
    "cost_vs_overprovisioned": Goal(at_most=0.17),
    "idle_overhead": Goal(at_most=1.02),
    "live_runs_with_wrong_rows": Goal(at_most=0),
}
PEAKS = {
    "p99_peak_vs_new_hosts": "new_hosts_30s",
    "p99_peak_vs_functions_with_migration": "functions_migrating",
    "p99_peak_vs_overprovisioned": "overprovisioned",
}
"""Name of each latency ratio -> the side that Penstock is compared with."""
_CASE = ("query", "shape", "factor", "seconds")
_KEPT = (
    *(*_CASE, "side", "p99_peak_ms", "delivered", "delivered_s", "rows", "function_rows"),
    *("invocations", "cold_starts", "most_functions", "most_hosts", "money"),
)
_SERIES = ("p99_ms", "load", "hosts", "functions")


@dataclass(frozen=True)
class BurstScale:
    """Size of the idle-overhead and cold-start measurements."""

    idle_rounds: int = 8
    idle_epochs: tuple[int, int] = (10, 40)
    """Epochs of warm-up and epochs that are measured, per round and side."""
    cold_starts: int = 30


FULL = BurstScale()
QUICK = BurstScale(1, (5, 8), 5)


def run(show: Show, quick: bool = False) -> Report:
    """Run the whole benchmark: about 45 minutes, or a few minutes when quick."""
    from penstock_bench.burst import idle as burst_idle
    from penstock_bench.burst.live import live_runs

    scale = QUICK if quick else FULL
    grid, swept = simulated(show, quick)
    cold = burst_idle.cold_starts(scale.cold_starts, show)
    live = live_runs(burst_scenarios.QUICK if quick else burst_scenarios.FULL, show)
    idle = burst_idle.overhead(scale.idle_rounds, *scale.idle_epochs, show)
    return report(grid, swept, live, idle, cold, quick)


def simulated(show: Show, quick: bool = False) -> tuple[list[Result], dict[str, list[Result]]]:
    """Run the simulated grid and the sweeps; return the grid, and sweeps by the parameter they vary."""
    sweeps = {
        "factor": [] if quick else burst_sim.burstiness(),
        "slots": [] if quick else burst_sim.parallelism(),
    }
    grid = burst_sim.simulated(show, quick)
    return grid, {over: burst_sim.run_all(some, show) for over, some in sweeps.items() if some}


def report(
    simulated: Sequence[Result],
    sweeps: Mapping[str, Sequence[Result]],
    live: LiveRuns,
    idle: Mapping[str, Any],
    cold: Mapping[str, Sequence[float]],
    quick: bool = False,
) -> Report:
    """Build the report from the parts; any of them may be empty."""
    drawn, runs = drawn_s(simulated), [asdict(outcome) for outcome in live.outcomes]
    grid = [summary(run, drawn) for run in simulated]
    shown = [run for run in grid if "by_second" in run]
    meanings = {side: burst_sides.MEANINGS[side] for side in burst_sides.SIDES}
    return Report(
        "burst",
        settings={"quick": quick, "live": asdict(burst_scenarios.DEFAULT)}
        | {"burst_share_of_a_day": burst_money.BURST_SHARE, "sides": meanings},
        results={
            "simulated": grid,
            "sweeps": {over: [boxed(run) for run in runs] for over, runs in sweeps.items()},
            "live": runs,
            "failed": live.failed,
            "costs": {"simulated": costs(shown), "live": costs(runs)},
            "idle": dict(idle),
            "cold_starts": dict(cold),
        },
        ratios=ratios(grid, runs, idle, cold)
        | {"live_runs_with_wrong_rows": float(len(live.wrong))},
    )


def drawn_s(runs: Sequence[Result]) -> float:
    """Seconds of the bursts that are plotted second by second: the usual length, if it was run."""
    lengths = [float(run["seconds"]) for run in runs if run["shape"] == "burst"]
    usual = float(burst_params.USUAL_S)
    return usual if usual in lengths else min(lengths, default=usual)


def summary(run: Result, drawn: float) -> Result:
    """The figures of a simulated run that the report keeps, with its seconds if it is plotted."""
    kept = {name: run[name] for name in _KEPT} | {"at_s": burst_params.STABLE_S}
    if is_drawn(run, drawn):
        length = burst_params.STABLE_S + 2 * round(run["seconds"]) + 5
        kept["by_second"] = {of: run["by_second"][of][:length] for of in _SERIES}
    return kept


def is_drawn(run: Result, drawn: float) -> bool:
    """Whether this run is plotted: a burst of five times the load that lasts `drawn` seconds."""
    usual = run["shape"] == "burst" and run["factor"] == burst_params.USUAL_FACTOR
    return bool(usual and run["seconds"] == drawn)


def boxed(run: Result) -> Result:
    """The box plot of a sweep's run: quantiles of the p99 over the seconds of the burst."""
    begin = burst_params.STABLE_S
    p99_ms = run["by_second"]["p99_ms"][begin : begin + round(run["seconds"])]
    known = [value for value in p99_ms if value is not None]
    figures = np.percentile(known, (0, 25, 50, 75, 100)).round(1).tolist()
    names = (*_CASE, "slots", "side", "p99_peak_ms")
    return {name: run[name] for name in names} | {"p99_box_ms": figures}


def ratios(
    simulated: Sequence[Result],
    live: Sequence[Result],
    idle: Mapping[str, Any],
    cold: Mapping[str, Sequence[float]],
) -> dict[str, float]:
    """The figures that are compared with the goals, without those whose runs are missing."""
    figures: dict[str, float | None] = {
        **{name: against(live, side) for name, side in PEAKS.items()},
        **{f"sim_{name}": against(simulated, side) for name, side in PEAKS.items()},
        "cost_vs_overprovisioned": cost_against(simulated),
        "live_cost_vs_overprovisioned": cost_against(live),
        "function_cold_start_ms": Sample.of(list(cold["start_ms"])).median if cold else None,
        "idle_overhead": Sample.of(list(idle["ratios"])).median if idle else None,
    }
    return {name: value for name, value in figures.items() if value is not None}


def against(runs: Sequence[Result], side: str) -> float | None:
    """Penstock's peak p99 divided by a side's: geometric mean over the cases that both ran; None if none.

    >>> runs = [{"query": "q7", "shape": "burst", "factor": 5, "seconds": 30} | run for run in (
    ...     {"side": "penstock", "p99_peak_ms": 10.0}, {"side": "new_hosts", "p99_peak_ms": 40.0})]
    >>> against(runs, "new_hosts"), against(runs, "overprovisioned")
    (0.25, None)
    """
    logs = []
    for some in by(runs, *_CASE).values():
        peaks = {run["side"]: float(run["p99_peak_ms"]) for run in some}
        if "penstock" in peaks and side in peaks:
            logs.append(math.log(peaks["penstock"] / peaks[side]))
    return math.exp(sum(logs) / len(logs)) if logs else None


def cost_against(runs: Sequence[Result], side: str = "overprovisioned") -> float | None:
    """Penstock's cost of days with bursts divided by a side's, summed over all bursts; None without runs."""
    spent = dict.fromkeys(("penstock", side), 0.0)
    for some in by((run for run in runs if run["shape"] == "burst"), *_CASE).values():
        days = {run["side"]: burst_money.day(run["money"]) for run in some}
        if set(spent) <= set(days):
            spent = {name: total + days[name] for name, total in spent.items()}
    return spent["penstock"] / spent[side] if spent[side] else None


def costs(runs: Sequence[Result]) -> dict[str, dict[str, float]]:
    """Mean cost per second of each side, in dollars, over the queries that all sides ran."""
    by_side = {
        side: {run["query"]: run["money"] for run in some}
        for (side,), some in by(runs, "side").items()
    }
    common = set.intersection(*(set(some) for some in by_side.values())) if by_side else set()
    return {
        side: burst_money.mean([some[query] for query in sorted(common)])
        for side, some in by_side.items()
        if common
    }
