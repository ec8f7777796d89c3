"""`penstock bench switch`: an SLA kept by scaling and balancing, simulated and live.

Success is the share of windows, slot by slot, in which the measured latency kept the SLA. The parts are:

    decide          how long a decision takes
    simulated       a day at the exchange under every policy, and sweeps over parameters, kinds of hosts,
                    waves, delays and splits, at full size; and the accuracy of two projections of latency
    live            a burst, a wave, moving hotspots and steady loads, on hosts with a set service rate
    live-exchange   the second opening of the exchange, with three seeds
    live-nexmark    NEXMark's q2 under a sine, with three seeds
    live-wordcount  word count under a sine, with three seeds
    live-skewed     the skewed sum, with three seeds
    live-unpaced-nexmark, -wordcount, -skewed
                    NEXMark's q5, word count and the skewed sum on hosts without a set rate, three seeds
    live-hour       the first hour of the exchange at ten times the speed
    live-session    all four hours of it, which takes 24 minutes

Live parts run on Spark, in micro-batches, and latency is measured at the sink. By default all parts are run,
else those named by `--part`; an existing report keeps its results of the other parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import partial

from penstock_bench.parts import Part, Parts
from penstock_bench.report import Goal, PartResult, Result, Sample, Show
from penstock_bench.switch import decide_time
from penstock_bench.switch import projection as switch_projection
from penstock_bench.switch import scenarios as live_scenarios
from penstock_bench.switch import sweeps as switch_sweeps
from penstock_bench.switch.outcome import LiveOutcome
from penstock_bench.switch.projection import Projected
from penstock_bench.switch.scenarios import BALANCER
from penstock_bench.switch.simulated import ONE_SECOND, run_all
from penstock_bench.switch.sweeps import EXCHANGE_RATE, SWITCH

ENOUGH = 0.96
"""Success that a static number of hosts must reach to be compared with the switch."""

Groups = dict[str, list[Result]]
"""Simulated runs by group."""
_KEPT = Goal(at_least=0.97)


# -- decisions


def decided(show: Show, quick: bool) -> PartResult:
    """Measure how long decisions take, in every branch."""
    decide_ms, branches = decide_time.measure(50 if quick else 250)
    show(
        f"deciding for 10,000 slots on 1,000 hosts: {decide_ms:.1f} ms in the slowest branch (median)"
    )
    return PartResult({}, {"median_ms": decide_ms, "branches": branches})


def decided_ratios(results: Result) -> dict[str, float]:
    """Milliseconds of the slowest branch."""
    return {"decide_ms_10k_slots_1k_hosts": results["median_ms"]}


# -- simulated


def simulated(show: Show, quick: bool) -> PartResult:
    """Run the simulated scenarios: about half an hour, or a minute when quick."""
    scale = switch_sweeps.QUICK if quick else switch_sweeps.FULL
    loads = switch_projection.simulated(20.0 if quick else 240.0)
    groups = run_all(switch_sweeps.scenarios(scale), show)
    return simulated_result(groups, loads, scale)


def simulated_result(
    groups: Groups, loads: Sequence[Projected], scale: switch_sweeps.SwitchScale
) -> PartResult:
    """The part's result from its runs."""
    return PartResult(
        asdict(scale) | {"exchange_service_rate": EXCHANGE_RATE},
        {"groups": groups, "projections": switch_projection.summary(loads)},
    )


def simulated_ratios(results: Result) -> dict[str, float]:
    """The figures of the exchange, without those whose runs are missing."""
    figures: dict[str, float] = {}
    under = (ONE_SECOND.latency_ms, ONE_SECOND.window_ms)
    exchange = results["groups"].get("exchange", ())
    judged = [one for one in exchange if (one["latency_ms"], one["window_ms"]) == under]
    for switch in (one for one in judged if one["policy"] == SWITCH):
        figures["sim_success_switch_0.2"] = switch["success"]
        enough = [one["hosts"] for one in _of("static", judged) if one["success"] >= ENOUGH]
        if enough:
            figures["sim_hosts_vs_best_static"] = switch["hosts"] / min(enough)
        others = _of("drs_lb", judged)
        if others:
            nearest = min(others, key=lambda one: abs(one["hosts"] - switch["hosts"]))
            figures["sim_success_minus_drs_lb"] = switch["success"] - nearest["success"]
    return figures


def _of(policy: str, runs: Sequence[Result]) -> list[Result]:
    return [one for one in runs if one["policy"].partition("(")[0] == policy]


# -- live


def live(part: str, show: Show, quick: bool) -> PartResult:
    """Run the live scenarios of a part."""
    from penstock_bench.switch.live import live_runs

    scenarios = (live_scenarios.QUICK if quick else live_scenarios.FULL)[part]
    return live_result(live_runs(scenarios, show))


def live_result(outcomes: Iterable[LiveOutcome]) -> PartResult:
    """A live part's result from its runs, with the spread of success by scenario and policy."""
    kept = list(outcomes)
    runs = [asdict(outcome) for outcome in kept]
    results = {
        "runs": runs,
        "spread": {name: asdict(Sample.of(some)) for name, some in _success(runs).items()},
        "hotspot_worst_by_policy": _hotspots(runs),
        "projections": switch_projection.summary([p for one in kept for p in one.projections]),
    }
    return PartResult({"balancer": BALANCER}, results)


def live_ratios(results: Result) -> dict[str, float]:
    """The worst success of each scenario, and the worst balance after a hotspot.

    `live_success_exchange` is relative to what is possible with the hosts that are allowed;
    `live_windows_exchange` and `live_possible_exchange` are the shares of windows. The same holds for
    the hour and the session.
    """
    figures: dict[str, float] = {}
    for name, successes in _success(results["runs"]).items():
        if name in _RATIOS:
            figures[f"live_success_{_RATIOS[name]}"] = min(successes)
    bounded = [run for run in results["runs"] if run.get("possible") is not None]
    for name in dict.fromkeys(run["name"] for run in bounded):
        worst = min(
            (run for run in bounded if run["name"] == name),
            key=lambda run: run["success"] / run["possible"],
        )
        figures[f"live_success_{name}"] = worst["success"] / worst["possible"]
        figures[f"live_windows_{name}"] = worst["success"]
        figures[f"live_possible_{name}"] = worst["possible"]
    if BALANCER in (worst_by_policy := _hotspots(results["runs"])):
        figures["live_max_over_mean_load_after_hotspot"] = worst_by_policy[BALANCER]
    return figures


_RATIOS = {
    **{name: name for name in ("burst", "sine", "nexmark", "wordcount", "skewed")},
    "q5, unpaced": "nexmark_unpaced",
    "words, unpaced": "wordcount_unpaced",
    "skewed, unpaced": "skewed_unpaced",
}
"""Scenario -> the end of its ratio's name."""


def _success(runs: Sequence[Result]) -> dict[str, list[float]]:
    """Success by scenario. Hotspots are not judged by it."""
    by_name: dict[str, list[float]] = {}
    for run in runs:
        if run["policy"] is not None and not run["max_over_mean"]:
            by_name.setdefault(run["name"], []).append(run["success"])
    return by_name


def _hotspots(runs: Sequence[Result]) -> dict[str, float]:
    """Worst ratio of the busiest host's rows to the mean, by policy, once a hotspot should be balanced."""
    worst: dict[str, float] = {}
    for run in runs:
        if run["policy"] is not None and run["max_over_mean"]:
            worst[run["policy"]] = max(worst.get(run["policy"], 0.0), *run["max_over_mean"])
    return worst


_LIVE_GOALS: dict[str, dict[str, Goal]] = {
    "live": {
        "live_success_burst": _KEPT,
        "live_success_sine": _KEPT,
        "live_max_over_mean_load_after_hotspot": Goal(at_most=1.15),
    },
    "live-exchange": {"live_success_exchange": Goal(at_least=0.95)},
    "live-nexmark": {"live_success_nexmark": _KEPT},
    "live-wordcount": {"live_success_wordcount": _KEPT},
}
PARTS = {
    "decide": Part(decided, decided_ratios, {"decide_ms_10k_slots_1k_hosts": Goal(at_most=10)}),
    "simulated": Part(
        simulated,
        simulated_ratios,
        {
            "sim_success_switch_0.2": Goal(at_least=0.99),
            "sim_hosts_vs_best_static": Goal(at_most=1.0),
        },
    ),
    **{
        name: Part(partial(live, name), live_ratios, _LIVE_GOALS.get(name, {}))
        for name in live_scenarios.FULL
    },
}
_BENCH = Parts("switch", PARTS)
GOALS = _BENCH.goals
run, report, merged = _BENCH.run, _BENCH.report, _BENCH.merged
