"""Simulated bursts: the grid, the sides, and the figures of a run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.sim.shapes import shape
from penstock_bench.burst import params
from penstock_bench.burst import simulated as burst_sim
from penstock_bench.burst.params import hosts_of, join_of, machines
from penstock_bench.burst.sides import LIVE, MEANINGS, ONLY_SIMULATED, SIDES, TITLES, Side
from penstock_bench.burst.simulated import BurstScenario, grid, run_one
from penstock_bench.report import Result


@pytest.fixture(scope="module")
def results() -> dict[Side, Result]:
    """Results by side for a burst of 5 for 30 s on q5."""
    return {side: run_one(BurstScenario("q5", side, seconds=30)) for side in SIDES}


def test_every_query_meets_every_burst_on_every_side() -> None:
    every = grid()
    assert len(set(every)) == len(every)
    for query in ("q1", "q4", "q5", "q6", "q7", "q8"):
        ours = [one for one in every if one.query == query]
        bursts = {(one.factor, one.seconds) for one in ours if one.shape == "burst"}
        assert bursts == {(f, s) for f in (3, 5, 7, 10) for s in (30, 60, 120)}
        assert {one.shape for one in ours} == {"burst", "sine", "gradual"}
        for load in {one.load for one in ours}:
            assert {one.side for one in ours if one.load == load} >= set(LIVE)
        assert {
            one.side for one in ours if one.load == BurstScenario(query, "penstock").load
        } == set(SIDES)
    assert set(LIVE) | set(ONLY_SIMULATED) == set(SIDES) == set(TITLES) == set(MEANINGS)


@pytest.mark.parametrize("name", ["burst", "sine", "gradual"])
def test_loads_begin_stable_and_reach_their_factor(name: str) -> None:
    load = shape(BurstScenario("q7", "penstock", name, factor=7, seconds=30).load)
    assert load.rate_at([0.0, 19.9, 50.1]).tolist() == [15_000.0] * 3
    assert load.rate_at(35.0) == pytest.approx(105_000.0, rel=0.01)


@pytest.mark.parametrize("query", params.QUERIES.values(), ids=lambda query: query.name)
def test_hosts_are_as_busy_as_they_should_be_before_a_burst(query: params.QueryFigures) -> None:
    rows = 1 + params.JOIN_COST * query.joined
    taken = query.rate * rows / query.host_rate / params.HOSTS
    assert taken == pytest.approx(params.STABLE_LOAD)
    run = run_one(BurstScenario(query.name, "overprovisioned", factor=1, seconds=5))
    assert max(run["by_second"]["load"][5:20]) <= params.STABLE_LOAD * 1.1


def test_penstock_answers_sooner_than_hosts_and_than_functions_that_take_over_state(
    results: dict[Side, Result],
) -> None:
    peaks = {side: run["p99_peak_ms"] for side, run in results.items()}
    assert peaks["penstock"] < 0.12 * peaks["new_hosts_30s"]
    assert peaks["penstock"] < 0.30 * peaks["functions_migrating"]
    assert peaks["penstock"] < peaks["new_hosts"]
    assert peaks["overprovisioned"] < peaks["penstock"] <= peaks["no_warm"]
    assert peaks["routers_transients"] <= peaks["routers"] <= peaks["functions_migrating"]
    assert peaks["no_scaling"] == max(peaks.values())


def test_who_uses_what(results: dict[Side, Result]) -> None:
    assert {side for side, run in results.items() if run["function_rows"]} == {
        "penstock",
        "no_warm",
    }
    assert results["penstock"]["most_hosts"] == params.HOSTS
    assert 0 < results["penstock"]["most_functions"] <= params.FUNCTIONS
    assert results["new_hosts"]["most_hosts"] > 3 * params.HOSTS
    assert results["functions_migrating"]["most_hosts"] == params.HOSTS
    assert results["functions_migrating"]["most_functions"] > params.HOSTS
    assert results["no_scaling"]["most_hosts"] == params.HOSTS
    assert set(results["overprovisioned"]["by_second"]["hosts"]) == {5 * params.HOSTS}


def test_money(results: dict[Side, Result]) -> None:
    stable = {side: run["money"]["stable_second"] for side, run in results.items()}
    assert stable["overprovisioned"] == pytest.approx(5 * stable["penstock"])
    assert stable["hosts_beforehand"] == pytest.approx(stable["overprovisioned"])
    burst = {side: run["money"]["burst_second"] for side, run in results.items()}
    assert burst["penstock"] > stable["penstock"]
    assert burst["overprovisioned"] == pytest.approx(stable["overprovisioned"])
    assert (
        results["penstock"]["money"]["functions"] > 0 == results["new_hosts"]["money"]["functions"]
    )


def test_the_same_rows_on_all_sides_and_all_delivered(results: dict[Side, Result]) -> None:
    assert all(run["delivered"] for run in results.values())
    loads = {run["rows"] for run in results.values() if run["delivered_s"] < 100}
    assert len(loads) == 1, "sides that finish in time saw the same trace"
    seconds = results["penstock"]["by_second"]
    assert len({len(values) for values in seconds.values()}) == 1
    peak = max(p for p in seconds["p99_ms"][20 : results["penstock"]["delivered_s"]] if p)
    assert peak == pytest.approx(results["penstock"]["p99_peak_ms"], abs=1)


def test_a_run_goes_on_until_its_burst_is_delivered() -> None:
    run = run_one(BurstScenario("q7", "no_scaling", factor=7, seconds=30))
    # Hosts have work for 0.68 * 7 * 30 s, and rows that arrive meanwhile come in the same epochs.
    assert run["delivered"]
    assert 20 + 0.68 * 7 * 30 < run["delivered_s"] < 20 + 0.68 * 7 * 30 / 0.68
    assert run["p99_peak_ms"] > 60_000


def test_functions_that_do_not_talk_to_each_other_leave_the_join_where_it_is() -> None:
    query = params.QUERIES["q4"]
    alone, routed = (join_of(query, side, 420, 5) for side in ("functions_migrating", "routers"))
    assert alone.policy == "static(5)"
    assert routed.policy is None
    assert alone.plane is not None
    assert alone.plane.service_rate == pytest.approx(query.host_rate / params.JOIN_COST)


def test_state_comes_through_the_narrow_way_of_a_function() -> None:
    host, function = (
        machines(params.QUERIES["q8"], side, 420) for side in ("new_hosts", "functions_migrating")
    )
    assert host.take_slot_ms is None
    assert function.take_slot_ms is not None
    assert function.take_slot_ms == pytest.approx(48 * function.move_slot_ms)
    assert host.start_host_ms == params.HOST_START_MS
    assert machines(params.QUERIES["q8"], "penstock", 420).start_host_ms > 30_000
    assert hosts_of("overprovisioned", 7) == 35


def test_results_come_in_the_order_of_the_scenarios() -> None:
    lines: list[str] = []
    usual = BurstScenario("q7", "penstock", seconds=5)
    wanted = [usual, replace(usual, side="overprovisioned"), replace(usual, factor=3)]
    results = burst_sim.run_all(wanted, lines.append)
    assert [(one["side"], one["factor"]) for one in results] == [
        ("penstock", 5),
        ("overprovisioned", 5),
        ("penstock", 3),
    ]
    assert "3/3" in "".join(lines)
    assert lines[-1].startswith("simulated 3 runs")
