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

The parts `live-unpaced-...` have bursts on hosts and functions without a set rate, and couriers that
combine, of about what two cores carry, with three seeds: NEXMark's q7 and q5, word count, the skewed sum,
a user's own processor that merges, and a join that gets all rows. Parts can be run alone with `--part`:
`simulated`, `cold_starts`, `live`, `live-unpaced-q7` (`-q5`, `-words`, `-skewed`, `-own`, `-joined`),
`idle`.

Cost is that of a day with 1 % burst time: Penstock's cost divided by the cost of running enough hosts
for the burst all day. The simulated ratio sums bursts of 3, 5, 7 and 10 times; the live one has one burst.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np

from penstock_bench.burst import params as burst_params
from penstock_bench.burst import scenarios as burst_scenarios
from penstock_bench.burst import sides as burst_money
from penstock_bench.burst import sides as burst_sides
from penstock_bench.burst import simulated as burst_sim
from penstock_bench.burst.outcome import LiveRuns
from penstock_bench.parts import Part, Parts
from penstock_bench.report import Goal, PartResult, Result, Sample, Show, by

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


# -- simulated


def simulated(show: Show, quick: bool) -> PartResult:
    """Run the simulated grid and the sweeps."""
    sweeps = {
        "factor": [] if quick else burst_sim.burstiness(),
        "slots": [] if quick else burst_sim.parallelism(),
    }
    grid = burst_sim.simulated(show, quick)
    swept = {over: burst_sim.run_all(some, show) for over, some in sweeps.items() if some}
    return simulated_result(grid, swept)


def simulated_result(runs: Sequence[Result], sweeps: Mapping[str, Sequence[Result]]) -> PartResult:
    """The part's result: the grid, and sweeps by the parameter that they vary."""
    drawn = drawn_s(runs)
    grid = [summary(run, drawn) for run in runs]
    shown = [run for run in grid if "by_second" in run]
    return PartResult(
        {"burst_share_of_a_day": burst_money.BURST_SHARE, "sides": burst_sides.MEANINGS},
        {
            "grid": grid,
            "sweeps": {over: [boxed(run) for run in some] for over, some in sweeps.items()},
            "costs": costs(shown),
        },
    )


def simulated_ratios(results: Result) -> dict[str, float]:
    """Simulated latencies and costs, relative to those of other sides."""
    runs = results["grid"]
    return _known(
        {f"sim_{name}": against(runs, side) for name, side in PEAKS.items()}
        | {"cost_vs_overprovisioned": cost_against(runs)}
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


# -- live


def live(show: Show, quick: bool) -> PartResult:
    """Run the live scenarios with hosts of a set rate: about half an hour."""
    from penstock_bench.burst.live import live_runs

    return live_result(live_runs(burst_scenarios.QUICK if quick else burst_scenarios.FULL, show))


def unpaced(query: str, show: Show, quick: bool) -> PartResult:
    """Run a query with hosts and functions as fast as they are, and combining couriers."""
    from penstock_bench.burst.live import live_runs

    scenarios = burst_scenarios.UNPACED[query]
    return live_result(live_runs(scenarios[:1] if quick else scenarios, show))


def live_result(live: LiveRuns) -> PartResult:
    """A live part's result from its runs."""
    runs = [asdict(outcome) for outcome in live.outcomes]
    settings = asdict(burst_scenarios.DEFAULT)
    failures = {"failed": live.failed, "wrong": live.wrong}
    results = {"runs": runs, **failures, "costs": costs(runs), "spread": spread(runs)}
    return PartResult(settings, results)


def spread(runs: Sequence[Result]) -> dict[str, dict[str, Result]]:
    """Median and range of the peak p99 over seeds, in milliseconds, by query and side."""
    found: dict[str, dict[str, Result]] = {}
    for (query, side), some in by(runs, "query", "side").items():
        peaks = [float(run["p99_peak_ms"]) for run in some]
        found.setdefault(query, {})[side] = asdict(Sample.of(peaks))
    return found


def live_ratios(results: Result) -> dict[str, float]:
    """Live latencies and costs, relative to those of other sides, and the number of wrong runs."""
    runs = results["runs"]
    return _known(
        {name: against(runs, side) for name, side in PEAKS.items()}
        | {
            "live_cost_vs_overprovisioned": cost_against(runs),
            "live_runs_with_wrong_rows": float(len(results["wrong"])),
        }
    )


def unpaced_ratios(query: str, results: Result) -> dict[str, float]:
    """Latencies of a query without set rates, relative to those of other sides, and the number of wrong
    runs."""
    sides = {"overprovisioned": "overprovisioned", "no_scaling": "no_scaling"}
    runs = results["runs"]
    return _known(
        {f"unpaced_p99_peak_vs_{name}_{query}": against(runs, side) for name, side in sides.items()}
        | {f"unpaced_runs_with_wrong_rows_{query}": float(len(results["wrong"]))}
    )


# -- functions


def cold_starts(show: Show, quick: bool) -> PartResult:
    """Measure cold starts of local functions."""
    from penstock_bench.burst import idle as burst_idle

    return PartResult(
        {}, dict(burst_idle.cold_starts((QUICK if quick else FULL).cold_starts, show))
    )


def cold_ratios(results: Result) -> dict[str, float]:
    """Median of the cold starts."""
    return {"function_cold_start_ms": Sample.of(list(results["start_ms"])).median}


def idle(show: Show, quick: bool) -> PartResult:
    """Measure what functions cost that are never used."""
    from penstock_bench.burst import idle as burst_idle

    scale = QUICK if quick else FULL
    return PartResult({}, dict(burst_idle.overhead(scale.idle_rounds, *scale.idle_epochs, show)))


def idle_ratios(results: Result) -> dict[str, float]:
    """Median of the overhead."""
    return {"idle_overhead": Sample.of(list(results["ratios"])).median}


# -- figures


def _known(figures: Mapping[str, float | None]) -> dict[str, float]:
    """The figures without those whose runs are missing."""
    return {name: value for name, value in figures.items() if value is not None}


def against(runs: Sequence[Result], side: str) -> float | None:
    """Penstock's peak p99 divided by a side's: geometric mean over the cases that both ran; None if none. Of
    several seeds the median counts.

    >>> runs = [{"query": "q7", "shape": "burst", "factor": 5, "seconds": 30} | run for run in (
    ...     {"side": "penstock", "p99_peak_ms": 10.0}, {"side": "new_hosts", "p99_peak_ms": 40.0})]
    >>> against(runs, "new_hosts"), against(runs, "overprovisioned")
    (0.25, None)
    """
    logs = []
    for some in by(runs, *_CASE).values():
        peaks = {
            of: float(np.median([run["p99_peak_ms"] for run in own]))
            for (of,), own in by(some, "side").items()
        }
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


PARTS = {
    "simulated": Part(simulated, simulated_ratios, {"cost_vs_overprovisioned": Goal(at_most=0.17)}),
    "cold_starts": Part(cold_starts, cold_ratios, {}),
    "live": Part(
        live,
        live_ratios,
        {
            "p99_peak_vs_new_hosts": Goal(at_most=0.12),
            "p99_peak_vs_functions_with_migration": Goal(at_most=0.30),
            "p99_peak_vs_overprovisioned": Goal(at_most=1.3),
            "live_runs_with_wrong_rows": Goal(at_most=0),
        },
    ),
    **{
        f"live-unpaced-{query}": Part(
            partial(unpaced, query),
            partial(unpaced_ratios, query),
            {f"unpaced_runs_with_wrong_rows_{query}": Goal(at_most=0)},
        )
        for query in burst_scenarios.UNPACED
    },
    "idle": Part(idle, idle_ratios, {"idle_overhead": Goal(at_most=1.02)}),
}
_BENCH = Parts("burst", PARTS)
GOALS = _BENCH.goals
run, report, merged = _BENCH.run, _BENCH.report, _BENCH.merged
