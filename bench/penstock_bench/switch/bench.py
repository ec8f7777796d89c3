"""`penstock bench switch`: an SLA kept by scaling and balancing, simulated and live.

Success is the share of windows, slot by slot, in which the measured latency kept the SLA. The
simulator runs a day at the exchange under every policy, and sweeps over parameters, kinds of hosts,
waves, delays and splits, at full size. Live runs are a burst, a wave, moving hotspots and an opening
of the exchange, on hosts with a set service rate, measured at the sink. The benchmark also measures
how long a decision takes, and which projection of latency is closer to the measured one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from penstock_bench.report import Goal, Report, Result, Show
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

GOALS = {
    "sim_success_switch_0.2": Goal(at_least=0.99),
    "sim_hosts_vs_best_static": Goal(at_most=1.0),
    "live_success_burst": Goal(at_least=0.97),
    "live_success_sine": Goal(at_least=0.97),
    "live_max_over_mean_load_after_hotspot": Goal(at_most=1.15),
    "decide_ms_10k_slots_1k_hosts": Goal(at_most=10),
}

Groups = dict[str, list[Result]]
"""Simulated runs by group."""


def run(show: Show, quick: bool = False) -> Report:
    """Run the whole benchmark: about half an hour, or a few minutes when quick."""
    from penstock_bench.switch.live import live_runs

    decide_ms, decided = decided_in(show, quick)
    projected = switch_projection.simulated(20.0 if quick else 240.0)
    groups = simulated(show, quick)
    live = live_runs(live_scenarios.QUICK if quick else live_scenarios.FULL, show)
    return report(groups, (decide_ms, decided), projected, live, quick)


def decided_in(show: Show, quick: bool = False) -> tuple[float, list[dict[str, Any]]]:
    """Measure how long decisions take: the slowest branch's median in milliseconds, and all branches."""
    decide_ms, decided = decide_time.measure(50 if quick else 250)
    show(
        f"deciding for 10,000 slots on 1,000 hosts: {decide_ms:.1f} ms in the slowest branch (median)"
    )
    return decide_ms, decided


def simulated(show: Show, quick: bool = False, only: Sequence[str] = ()) -> Groups:
    """Run the simulated scenarios, or only those of the groups in `only`."""
    every = switch_sweeps.scenarios(switch_sweeps.QUICK if quick else switch_sweeps.FULL)
    return run_all([scenario for scenario in every if not only or scenario.group in only], show)


def report(
    groups: Groups,
    decided: tuple[float, list[dict[str, Any]]],
    projected: Sequence[Projected],
    live: Sequence[LiveOutcome],
    quick: bool = False,
) -> Report:
    """Build the report from the parts; any of them may be empty."""
    scale = switch_sweeps.QUICK if quick else switch_sweeps.FULL
    every = [*projected, *(one for outcome in live for one in outcome.projections)]
    return Report(
        "switch",
        settings={
            "quick": quick,
            "simulated": asdict(scale) | {"exchange_service_rate": EXCHANGE_RATE},
            "live": {"warm_up_s": live_scenarios.BURST.warm_up_s, "balancer": BALANCER},
        },
        results={
            "simulated": groups,
            "live": [asdict(outcome) for outcome in live],
            "hotspot_worst_by_policy": _hotspots(live),
            "projections": switch_projection.summary(every),
            "decided": decided[1],
        },
        ratios=ratios(groups.get("exchange", ()), decided[0], live),
    )


def ratios(
    exchange: Sequence[Result], decide_ms: float, live: Sequence[LiveOutcome]
) -> dict[str, float]:
    """The figures that are compared with the goals, without those whose runs are missing."""
    figures: dict[str, float] = {}
    under = (ONE_SECOND.latency_ms, ONE_SECOND.window_ms)
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
    for name in ("burst", "sine"):
        successes = [outcome.success for outcome in live if outcome.name == name]
        if successes:
            figures[f"live_success_{name}"] = min(successes)
    worst = _hotspots(live)
    if BALANCER in worst:
        figures["live_max_over_mean_load_after_hotspot"] = worst[BALANCER]
    figures["decide_ms_10k_slots_1k_hosts"] = decide_ms
    return figures


def _of(policy: str, runs: Sequence[Result]) -> list[Result]:
    return [one for one in runs if one["policy"].partition("(")[0] == policy]


def _hotspots(live: Sequence[LiveOutcome]) -> dict[str, float]:
    """Worst ratio of the busiest host's rows to the mean, by policy, once a hotspot should be balanced."""
    worst: dict[str, float] = {}
    for outcome in live:
        if outcome.policy is not None and outcome.max_over_mean:
            most = max(outcome.max_over_mean)
            worst[outcome.policy] = max(worst.get(outcome.policy, 0.0), most)
    return worst
