"""`penstock bench switch`: the results computed from its runs. Neither a bench nor Spark is run here."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from typing import Any

import pytest

from penstock.errors import SettingError
from penstock.model import SLA, StepId
from penstock.sim.plane import Following, Plane
from penstock.sim.shapes import shape
from penstock.sim.skews import skew
from penstock_bench.report import PartResult
from penstock_bench.switch import bench as switch
from penstock_bench.switch import scenarios as live_scenarios
from penstock_bench.switch import sweeps as switch_sweeps
from penstock_bench.switch.decide_time import BRANCHES, measure
from penstock_bench.switch.outcome import LiveOutcome
from penstock_bench.switch.projection import errors, simulated
from penstock_bench.switch.scenarios import BALANCER
from penstock_bench.switch.simulated import Scenario, SimulatedLoad, run_one


def exchange(policy: str, success: float, hosts: float, latency_ms: int = 1000) -> dict[str, Any]:
    return {
        "policy": policy,
        "latency_ms": latency_ms,
        "window_ms": 1000,
        "success": success,
        "hosts": hosts,
    }


def live(
    name: str,
    success: float,
    policy: str = "switch",
    uneven: Any = (),
    possible: float | None = None,
) -> LiveOutcome:
    return LiveOutcome(
        *(name, policy, success, success, possible, 2.0, 10, 5, 250.0, 900.0, 0, {}, list(uneven)),
        *({}, [], [], {"seed": 1}),
    )


EXCHANGE = [
    exchange("switch(0.2)", 0.991, 8.0),
    exchange("switch(0.2)", 0.5, 1.0, latency_ms=5000),
    exchange("switch(0.2, unit)", 0.96, 8.4),
    exchange("static(8)", 0.95, 8.0),
    exchange("static(10)", 0.97, 10.0),
    exchange("static(16)", 0.99, 16.0),
    exchange("drs(0.4)", 0.1, 8.0),
    exchange("drs_lb(0.2)", 0.9, 5.0),
    exchange("drs_lb(0.3)", 0.95, 8.3),
]
LIVE = [
    live("burst", 0.99),
    live("burst", 0.98),
    live("sine", 0.97),
    live("nexmark", 0.99),
    live("wordcount", 0.98),
    live("exchange", 0.88, possible=0.9),
    live("exchange", 0.9, possible=0.94),
    live("q5, unpaced", 0.95),
    live("hotspot 50% on 3", 0.9, BALANCER, (1.02, 1.1)),
    live("hotspot 80% on 3", 0.9, BALANCER, (1.12, 1.04)),
    live("hotspot 80% on 3", 0.9, "switch", (1.3,)),
]


def results() -> dict[str, dict[str, Any]]:
    """Results of three parts."""
    parts = {
        "decide": PartResult({}, {"median_ms": 7.5, "branches": []}),
        "simulated": switch.simulated_result({"exchange": EXCHANGE}, [], switch_sweeps.QUICK),
        "live": switch.live_result(LIVE),
    }
    return {name: part.to_plain(quick=False) for name, part in parts.items()}


def test_ratios() -> None:
    ratios = switch.report(results()).ratios
    assert ratios == {
        "decide_ms_10k_slots_1k_hosts": 7.5,
        "sim_success_switch_0.2": 0.991,
        # static(10) is the cheapest that reaches the goal
        "sim_hosts_vs_best_static": 0.8,
        # drs_lb(0.3) has the nearest number of hosts
        "sim_success_minus_drs_lb": pytest.approx(0.041),
        # the worst of several runs counts
        "live_success_burst": 0.98,
        "live_success_sine": 0.97,
        "live_success_nexmark": 0.99,
        "live_success_wordcount": 0.98,
        "live_success_nexmark_unpaced": 0.95,
        # the worst in relation to what is possible: 90 of 94
        "live_success_exchange": pytest.approx(0.9 / 0.94),
        "live_windows_exchange": 0.9,
        "live_possible_exchange": 0.94,
        "live_max_over_mean_load_after_hotspot": 1.12,
    }
    assert set(switch.GOALS) <= set(ratios)
    assert all(goal.met(ratios[name]) for name, goal in switch.GOALS.items())


def test_what_was_not_run_has_no_ratio() -> None:
    assert switch.report({}).ratios == {}
    weak = [one for one in EXCHANGE if not one["policy"].startswith("static(1")]
    assert "sim_hosts_vs_best_static" not in switch.simulated_ratios({"groups": {"exchange": weak}})


def test_a_report_keeps_the_parts_that_are_not_run_again() -> None:
    whole = json.loads(switch.report(results()).to_json())
    again = switch.live_result([live("burst", 0.5)]).to_plain(quick=False)
    merged = switch.merged(whole, switch.report({"live": again}))
    assert merged.results["simulated"] == whole["results"]["simulated"]
    assert merged.ratios["live_success_burst"] == 0.5
    assert "live_success_sine" not in merged.ratios
    with pytest.raises(SettingError, match="bench switch has no part nosuch"):
        switch.run(print, quick=True, part=["nosuch"])


def test_live_results_tell_hotspots_by_policy_and_the_spread_over_seeds() -> None:
    told = switch.live_result(LIVE).results
    assert told["hotspot_worst_by_policy"] == {BALANCER: 1.12, "switch": 1.3}
    assert told["spread"]["exchange"] == {"median": 0.89, "low": 0.88, "high": 0.9, "n": 2}


def test_scenarios_are_what_is_asked_for() -> None:
    every = switch_sweeps.scenarios(switch_sweeps.FULL)
    assert len(set(every)) == len(every)
    assert pickle.loads(pickle.dumps(every)) == every
    quick = switch_sweeps.scenarios(switch_sweeps.QUICK)
    assert {one.group for one in quick} == {one.group for one in every}
    policies = {one.policy for one in every if one.group == "exchange"}
    assert {"switch(0.1)", "switch(0.5)", "drs(0.1)", "drs_lb(0.5)", "ds2", "autoflow"} <= policies
    assert {"switch(0.2)", "switch(0.2, unit)", "streamswitch(0.2)"} <= policies
    assert {f"static({n})" for n in range(4, 17)} <= policies
    slas = {one.sla for one in every if one.group == "exchange"}
    assert slas == {SLA(1000, 1000), SLA(1000, 5000), SLA(5000, 1000)}
    assert all(one.load.seconds == 14_400 for one in every if one.group == "exchange")
    parameters = [dict(one.facts) for one in every if one.group == "parameters"]
    assert {one["alert_ms"] for one in parameters} == {20, 50, 100, 200, 500}
    assert {one["delta_ms"] for one in parameters} == {20, 50, 100, 200, 500}


def test_live_scenarios_name_loads_that_there_are() -> None:
    every = [
        one
        for scenarios in (live_scenarios.FULL, live_scenarios.QUICK)
        for some in scenarios.values()
        for one in some
    ]
    for one in every:
        skew(one.skew)
        steps = 2 if one.workload in ("words", "q5") else 1
        assert one.at_most * steps <= live_scenarios.CORES - 2
        if one.workload != "exchange":
            assert shape(one.load).cumulative(one.seconds * 1000) > 0
    assert live_scenarios.QUICK.keys() == live_scenarios.FULL.keys()
    hotspots = [one for one in live_scenarios.FULL["live"] if one.name.startswith("hotspot")]
    assert {(one.at_least, one.at_most) for one in hotspots} == {(3, 3), (5, 5)}
    for part in (
        *("live-exchange", "live-nexmark", "live-wordcount", "live-skewed"),
        *("live-unpaced-nexmark", "live-unpaced-wordcount", "live-unpaced-skewed"),
    ):
        assert [one.seed for one in live_scenarios.FULL[part]] == [1, 2, 3]
    (session,) = live_scenarios.FULL["live-session"]
    assert session.seconds * session.speed == 4 * 3600


def test_a_run_keeps_what_it_is_asked_to() -> None:
    load = SimulatedLoad(30.0, (("steady(1600)", "hotspot(0.7, 2)"),), slots=8)
    scenario = Scenario(
        *("hotspots", "switch(0.2)", load, Plane(1_000.0, alpha=2.0, beta=1.0)),
        hosts=2,
        at_most=3,
        facts=(("share", 0.7),),
        keep_slots=True,
        timeline_s=5,
        keep_kinds=True,
    )
    result = run_one(scenario)
    assert (result["share"], result["policy"], result["window_ms"]) == (0.7, "switch(0.2)", 1000)
    assert len(result["by_slot"]) == 8
    assert len(result["timeline"]["hosts"]) == 6
    assert result["success"] == pytest.approx(sum(result["by_slot"]) / 8, abs=1e-4)
    again = run_one(replace(scenario, keep_kinds=False))
    for run in (result, again):
        del run["cpu_s"], run["decide_us"], run["decide_worst_us"]
    result.pop("other_share")
    assert again == result


def test_loads_of_hosts_add_up_to_what_arrives() -> None:
    load = SimulatedLoad(20.0, (("steady(900)", "hotspot(0.9, 3)"),), slots=12)
    scenario = Scenario(
        *("hotspots", "switch(0.2)", load, Plane(1_000.0)),
        hosts=3,
        at_least=3,
        at_most=3,
        keep_loads=True,
    )
    result = run_one(scenario)
    assert sum(map(sum, result["loads"])) == result["arrived"] == load.trace().total
    stays = run_one(replace(scenario, policy="static(3)"))
    assert stays["loads"][0][-1] == max(host[-1] for host in stays["loads"]) > 700


def test_a_run_of_two_steps() -> None:
    load = SimulatedLoad(20.0, (("steady(400)", "uniform"),), slots=4)
    count = Following(StepId("count"), 4, 2.0, hosts=2)
    scenario = Scenario(
        *("flow", "switch(0.2)", load, Plane(1_000.0), SLA(2000, 1000)),
        following=(count,),
        shares=(0.25, 0.75),
    )
    result = run_one(scenario)
    assert result["shares"] == {"split": 0.25, "count": 0.75}
    assert set(result["steps"]) == {"split", "count"}


def test_decisions_are_timed_where_each_branch_does_what_it_says() -> None:
    slowest_ms, branches = measure(looks=30, slots=200, hosts=20)
    assert slowest_ms == max(one["p50_ms"] for one in branches) > 0
    assert [one["branch"] for one in branches] == [branch.name for branch in BRANCHES]
    good, balance, scale_out, many = (one["treatments"] for one in branches)
    assert set(good) == {"scale_in"}
    assert set(balance) == {"balance"}
    assert set(scale_out) == {"scale_out"}
    assert sum(many.values()) > 1


def test_epochs_are_projected_by_epochs() -> None:
    results = simulated(20.0, utilisations=(0.3, 0.6))
    assert [one.engine for one in results] == ["continuous", "continuous", "epochs", "epochs"]
    by_engine = errors(results)
    assert by_engine["epochs"]["epochs"] < 0.2 < by_engine["epochs"]["mm1"]
    assert by_engine["continuous"]["mm1"] < 1.5
