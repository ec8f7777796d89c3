"""`penstock bench burst`: bursts of several times the load, taken up by functions.

Six queries of NEXMark meet bursts, simulated and live. Live runs are a burst of five times the load
for half a minute on real Spark, with hosts and functions of a set service rate; every run's rows are
held against a database's. The simulator, which runs the same control code, has all queries, bursts
of 3, 5, 7 and 10 times for 30, 60 and 120 s and two gentler shapes, at the paper's sizes of state.

Latency is the peak: the 99th percentile of rows by the second in which they were delivered, of the
worst second from the burst's begin until all of it was delivered. `p99_peak_...` are live runs, the
geometric mean over queries; `sim_p99_peak_...` are simulated, over queries and shapes. New hosts are
those of a machine that has to be started: they come 30 s after they were asked for.

Money is that of a day of which 1 % is a burst, Penstock's over that of enough hosts for the burst
all day: simulated, summed up over bursts of 3, 5, 7 and 10 times; and of the one live burst.
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
"""Figure -> the side that Penstock is compared with."""
_CASE = ("query", "shape", "factor", "seconds")
_KEPT = (
    *(*_CASE, "side", "p99_peak_ms", "delivered", "delivered_s", "rows", "function_rows"),
    *("invocations", "cold_starts", "most_functions", "most_hosts", "money"),
)
_SERIES = ("p99_ms", "load", "hosts", "functions")


@dataclass(frozen=True)
class BurstScale:
    """How much of it to run, besides the scenarios."""

    idle_rounds: int = 8
    idle_epochs: tuple[int, int] = (10, 40)
    """Epochs that warm up, and epochs that are measured, in a round of each side."""
    cold_starts: int = 30


FULL = BurstScale()
QUICK = BurstScale(1, (5, 8), 5)


def run(show: Show, quick: bool = False) -> Report:
    """Run everything; takes about three quarters of an hour, a few minutes when quick."""
    from penstock_bench.burst import idle as burst_idle
    from penstock_bench.burst.live import live_runs

    scale = QUICK if quick else FULL
    grid, swept = simulated(show, quick)
    cold = burst_idle.cold_starts(scale.cold_starts, show)
    live = live_runs(burst_scenarios.QUICK if quick else burst_scenarios.FULL, show)
    idle = burst_idle.overhead(scale.idle_rounds, *scale.idle_epochs, show)
    return report(grid, swept, live, idle, cold, quick)


def simulated(show: Show, quick: bool = False) -> tuple[list[Result], dict[str, list[Result]]]:
    """The simulated runs, and those of the sweeps, by what changes in them."""
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
    """What the parts give together; any of them may be empty."""
    drawn, runs = drawn_s(simulated), [asdict(outcome) for outcome in live.outcomes]
    grid = [told(run, drawn) for run in simulated]
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
    """The length of the burst that is looked at closely: the usual one, if it was run."""
    lengths = [float(run["seconds"]) for run in runs if run["shape"] == "burst"]
    usual = float(burst_params.USUAL_S)
    return usual if usual in lengths else min(lengths, default=usual)


def told(run: Result, drawn: float) -> Result:
    """What the report keeps of a simulated run; of one that is drawn, also its seconds."""
    kept = {name: run[name] for name in _KEPT} | {"at_s": burst_params.STABLE_S}
    if is_drawn(run, drawn):
        length = burst_params.STABLE_S + 2 * round(run["seconds"]) + 5
        kept["by_second"] = {of: run["by_second"][of][:length] for of in _SERIES}
    return kept


def is_drawn(run: Result, drawn: float) -> bool:
    """Whether this is a burst of five times the load, of that length."""
    usual = run["shape"] == "burst" and run["factor"] == burst_params.USUAL_FACTOR
    return bool(usual and run["seconds"] == drawn)


def boxed(run: Result) -> Result:
    """What is drawn of a sweep's run: the spread of the p99 of the burst's seconds."""
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
    """The figures that goals are held against; without those that nothing was run for."""
    found: dict[str, float | None] = {
        **{name: against(live, side) for name, side in PEAKS.items()},
        **{f"sim_{name}": against(simulated, side) for name, side in PEAKS.items()},
        "cost_vs_overprovisioned": cost_against(simulated),
        "live_cost_vs_overprovisioned": cost_against(live),
        "function_cold_start_ms": Sample.of(list(cold["start_ms"])).median if cold else None,
        "idle_overhead": Sample.of(list(idle["ratios"])).median if idle else None,
    }
    return {name: value for name, value in found.items() if value is not None}


def against(runs: Sequence[Result], side: str) -> float | None:
    """Penstock's peak over that of a side: the geometric mean over all that both were run with.

    >>> runs = [{"query": "q7", "shape": "burst", "factor": 5, "seconds": 30} | one for one in (
    ...     {"side": "penstock", "p99_peak_ms": 10.0}, {"side": "new_hosts", "p99_peak_ms": 40.0})]
    >>> against(runs, "new_hosts"), against(runs, "overprovisioned")
    (0.25, None)
    """
    found = []
    for some in by(runs, *_CASE).values():
        peaks = {run["side"]: float(run["p99_peak_ms"]) for run in some}
        if "penstock" in peaks and side in peaks:
            found.append(math.log(peaks["penstock"] / peaks[side]))
    return math.exp(sum(found) / len(found)) if found else None


def cost_against(runs: Sequence[Result], side: str = "overprovisioned") -> float | None:
    """Penstock's money for days with bursts over a side's, summed up over all bursts."""
    spent = dict.fromkeys(("penstock", side), 0.0)
    for some in by((run for run in runs if run["shape"] == "burst"), *_CASE).values():
        days = {run["side"]: burst_money.day(run["money"]) for run in some}
        if set(spent) <= set(days):
            spent = {name: total + days[name] for name, total in spent.items()}
    return spent["penstock"] / spent[side] if spent[side] else None


def costs(runs: Sequence[Result]) -> dict[str, dict[str, float]]:
    """What a second costs, by side: the mean over the queries that all sides were run with."""
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
