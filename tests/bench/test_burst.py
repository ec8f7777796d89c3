"""`penstock bench burst`: latencies, loads, costs and ratios computed from runs. No bench is run here."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pytest

from penstock.control.journal.entry import Entry
from penstock.control.money import Money
from penstock.driver.progress import EpochProgress, HostProgress
from penstock.wire.report import OffloadCounts
from penstock_bench.burst import bench as burst
from penstock_bench.burst import outcome as burst_outcome
from penstock_bench.burst import scenarios as burst_scenarios
from penstock_bench.burst import sides as burst_sides
from penstock_bench.burst.outcome import (
    ArrivedRows,
    by_couriers,
    functions_by_second,
    loads,
    money_of,
)
from penstock_bench.burst.scenarios import CORES, DEFAULT, FULL, QUICK, UNPACED, LiveBurst
from penstock_bench.burst.sides import LIVE
from penstock_bench.burst.standby import first_relief, over
from penstock_bench.catalog import find
from penstock_bench.report import PartResult
from penstock_bench.switch.outcome import of_step
from penstock_bench.workloads.nexmark.live import BURSTS

START_MS = 1_000_000
STEP = "window-1"


def epoch(
    number: int,
    start_s: float,
    rows: int,
    useful_ms: tuple[float, ...] = (),
    spent: float = 0.0,
    functions: OffloadCounts | None = None,
    sink_ms: float = 400.0,
) -> EpochProgress:
    """An epoch that began `start_s` seconds after the load."""
    hosts = [HostProgress(f"{STEP}/{n}", 0, 0, rows // 2, ms) for n, ms in enumerate(useful_ms)]
    return EpochProgress(
        epoch=number,
        runs=1,
        rows=rows,
        partitions=2,
        started_ms=round(START_MS + 1000 * start_s),
        sink_ms=sink_ms,
        seal_ms=0.0,
        latency=None,
        watermark_ms=None,
        dead_letters=0,
        hosts=(*hosts, HostProgress("top-2/0", 0, 0, 1, 9_999.0)),
        functions=functions or OffloadCounts(),
        money=Money(spent, 0.0),
    )


def offload(at_s: float, functions: int, step: str = STEP) -> Entry:
    return Entry(START_MS + 1000 * at_s, 0, step, "offload", "", {"functions": functions})


# -- scenarios


def test_live_runs_cover_what_they_should() -> None:
    full = [(one.query, one.side) for one in FULL]
    assert len(set(full)) == len(full)
    assert {side for name, side in full if name == "q7"} == set(LIVE)
    for query in ("q4", "q5", "q6", "q8"):
        sides = {side for name, side in full if name == query}
        assert sides == {"new_hosts_30s", "penstock", "overprovisioned"}
    assert {one.query for one in FULL} | set(UNPACED) == set(BURSTS)
    assert {one.side for one in QUICK} == {"penstock", "overprovisioned"}


def test_there_are_task_slots_for_all_hosts_of_a_run() -> None:
    for one in (*FULL, *QUICK):
        # At most three keyed steps, each with at most as many hosts as the busy one.
        assert 3 * one.most_hosts + one.hosts + 1 <= CORES
        assert one.functions >= one.most_hosts


def test_unpaced_runs_have_the_rate_that_they_name() -> None:
    for one in chain(*UNPACED.values()):
        assert one.unpaced_rate is not None
        assert one.shape.rate_at([0.0, one.at_s + 1.0]).tolist() == pytest.approx(
            [one.unpaced_rate, one.factor * one.unpaced_rate]
        )


def test_a_part_of_unpaced_runs_has_three_seeds_and_takes_less_than_six_minutes() -> None:
    assert set(UNPACED) == {"q7", "q5", "words", "skewed", "own", "joined"}
    for query, some in UNPACED.items():
        assert [one.seed for one in some if one.side == "penstock"] == [1, 2, 3]
        assert {one.side for one in some} == {"penstock", "no_scaling", "overprovisioned"}
        assert len({one.name for one in some}) == len(some)
        assert {one.query for one in some} == {query}
        starts_s = 20  # of each run, its query's end and the comparison included
        assert sum(one.seconds + starts_s for one in (*some, burst_scenarios.WARM_UP)) < 330


def test_the_spread_is_over_seeds_and_the_median_is_compared() -> None:
    runs = [run("penstock", peak) for peak in (10, 50, 20)] + [run("overprovisioned", 10)]
    assert burst.spread(runs)["q7"]["penstock"] == {
        "median": 20.0,
        "low": 10.0,
        "high": 50.0,
        "n": 3,
    }
    assert burst.against(runs, "overprovisioned") == pytest.approx(2.0)


def test_stable_hosts_are_as_busy_as_the_scenario_says() -> None:
    for name, query in BURSTS.items():
        one = LiveBurst(name, "penstock")
        records = one.shape.rate_at(0.0) * query.records
        assert records / (one.hosts * one.host_rate) == pytest.approx(one.load, rel=1e-3)
        assert one.shape.rate_at(one.at_s + 1) == pytest.approx(5 * one.shape.rate_at(0.0))


# -- latencies and loads


def test_latency_goes_by_the_second_of_delivery() -> None:
    one = replace(DEFAULT, host_rate=10.0, load=0.5, at_s=2, for_s=2, after_s=1)
    epochs = [epoch(0, 0.6, 5), epoch(1, 1.1, 10), epoch(2, 3.5, 120)]
    rows = ArrivedRows.of(one.shape, START_MS, epochs, one.seconds)
    # Ten rows per second, fifty in the burst; the first epoch has the first five.
    assert rows.arrival_s[[0, 9, 19, 20]].round(2).tolist() == [0.1, 1.0, 2.0, 2.02]
    assert rows.done_s[:5].tolist() == [1.0] * 5
    assert rows.p99_ms[0] is None
    assert rows.p99_ms[1] == pytest.approx(900.0, abs=10)
    assert rows.done_by(one.at_s + one.for_s) == pytest.approx(3.9)
    assert np.isnan(rows.done_s).sum() == 0


def test_the_peak_is_that_of_the_burst() -> None:
    p99: burst_outcome.Series = [5_000.0, 800.0, 700.0, None, 2_000.0, 900.0, 9_000.0]
    assert burst_outcome.peak_ms(p99, from_s=2, to_s=5.2) == 2_000.0


def test_load_is_that_of_the_busiest_host_of_the_step() -> None:
    epochs = [epoch(n, 0.5 * n, 10, (100.0, 300.0)) for n in range(5)]
    shifted = [replace(e, started_ms=e.started_ms - START_MS) for e in of_step(epochs, STEP)]
    assert loads(shifted, 2) == [0.6, 0.6]


def test_functions_by_second() -> None:
    journal = [offload(1.5, 8), offload(1.7, 9, step="other"), offload(3.2, 0)]
    assert functions_by_second(journal, STEP, START_MS, 5) == [0.0, 8.0, 8.0, 0.0, 0.0]


def test_couriers_count_as_hosts_where_there_are_none() -> None:
    carried = OffloadCounts(rows=600, returned=100)
    (first, second) = by_couriers(
        [epoch(0, 0.0, 1_000), epoch(1, 1.0, 1_000, functions=carried)], 2, rate=1_000.0
    )
    assert [host.useful_ms for host in first.hosts] == [500.0, 500.0]
    assert [host.useful_ms for host in second.hosts] == [250.0, 250.0]


def test_what_is_beyond_stable_seconds_is_the_bursts() -> None:
    at_s, for_s = 20, 10
    # 1 dollar per second; 3 per second from the burst on, to the end of the run.
    spent = [float(t if t < at_s else at_s + 3 * (t - at_s)) for t in range(41)]
    epochs = [epoch(t, t, 10, spent=s, sink_ms=0.0) for t, s in enumerate(spent)]
    shifted = [replace(e, started_ms=e.started_ms - START_MS) for e in epochs]
    money = money_of(shifted, at_s, for_s)
    assert money["stable_second"] == pytest.approx(1.0)
    assert money["burst_second"] == pytest.approx(1.0 + 2 * 20 / for_s)


def outcome() -> burst_outcome.BurstOutcome:
    one = replace(DEFAULT, host_rate=10.0, load=0.5, at_s=8, for_s=4, after_s=2)
    epochs, row = [], 0
    for number in range(28):
        until = int(one.shape.cumulative(500 * (number + 1)))
        help = (
            OffloadCounts(rows=20, records=5, invocations=2, failures={"timeout": 1}, returned=10)
            if number == 18
            else None
        )
        epochs.append(
            epoch(number, 0.5 * (number + 1), until - row, (150.0, 250.0), functions=help)
        )
        row = until
    rows = ArrivedRows.of(one.shape, START_MS, epochs, one.seconds)
    return burst_outcome.outcome_of(one, STEP, rows, epochs, [offload(8.6, 5)], START_MS)


def test_an_outcome_tells_everything() -> None:
    result = outcome()
    # The last row arrives exactly at the end.
    assert result.rows == 8 * 10 + 4 * 50 + 2 * 10 - 1
    assert result.load_stable == pytest.approx(0.5)
    assert (result.function_rows, result.invocations, result.failures) == (10, 2, {"timeout": 1})
    assert 400 < result.p99_stable_ms <= result.p99_peak_ms <= 900
    assert result.delivered_s == pytest.approx(12.4, abs=0.1)
    assert result.by_second["hosts"][5] == 2.0
    assert result.by_second["functions"][7:9] == [0.0, 5.0]
    assert result.told == [{"at_s": 8.6, "text": ""}]


# -- standby hosts


def decided(at_s: float, *kinds: str, step: str = STEP) -> Entry:
    facts = {"treatments": [{"kind": kind} for kind in kinds]}
    return Entry(START_MS + 1000 * at_s, 0, step, "decided", "", facts)


def test_who_stands_by_is_called_when_the_switch_would_move_slots() -> None:
    journal = [
        decided(3.0, "scale_out"),
        decided(8.5, "scale_in"),
        decided(9.0, "balance", step="top-2"),
        offload(9.2, 8),
        decided(9.5, "balance", "balance"),
    ]
    assert first_relief(journal, STEP, START_MS + 8_000) == journal[4]
    assert first_relief(journal[:4], STEP, START_MS + 8_000) is None


@pytest.mark.parametrize(("rows", "is_over"), [(1_500, True), (1_700, False)])
def test_a_burst_is_over_when_the_first_hosts_could_take_it(rows: int, is_over: bool) -> None:
    one = replace(DEFAULT, host_rate=1_000.0)
    epochs = [epoch(n, n, rows, (1.0, 1.0)) for n in range(3)]
    assert over(of_step(epochs, STEP), START_MS, one) is is_over
    assert not over(of_step(epochs, STEP), START_MS + 1, one), "an epoch is from before the burst"
    assert not over(of_step(epochs[1:], STEP), START_MS, one), "one epoch is not enough"


# -- figures


def run(
    side: str, peak: float, query: str = "q7", factor: float = 5, **more: Any
) -> dict[str, Any]:
    second = {"stable_second": 2.0, "burst_second": 10.0}
    if side == "overprovisioned":
        second = dict.fromkeys(second, 2.0 * factor)
    case = {"query": query, "shape": "burst", "factor": factor, "seconds": 60}
    return case | {"side": side, "p99_peak_ms": peak, "money": second} | more


def test_peaks_are_compared_where_both_sides_were_run() -> None:
    runs = [run("penstock", 10), run("new_hosts_30s", 100), run("overprovisioned", 10)]
    runs += [run("penstock", 40, "q5"), run("new_hosts_30s", 100, "q5")]
    assert burst.against(runs, "new_hosts_30s") == pytest.approx(0.2)
    assert burst.against(runs, "overprovisioned") == pytest.approx(1.0)
    assert burst.against(runs, "functions_migrating") is None


def test_money_is_summed_up_over_bursts() -> None:
    runs = [run(side, 1, factor=n) for n in (3, 10) for side in ("penstock", "overprovisioned")]
    runs += [run(side, 1, shape="sine") for side in ("penstock", "overprovisioned")]
    assert burst.cost_against(runs) == pytest.approx(2 * 2.08 / (6 + 20))
    assert burst.cost_against(runs[:1]) is None


def test_costs_are_of_queries_that_all_sides_have() -> None:
    dear = {"stable_second": 50.0, "burst_second": 50.0}
    runs = [run("penstock", 1), run("overprovisioned", 1), run("penstock", 1, "q8", money=dear)]
    assert burst.costs(runs)["penstock"] == {"stable_second": 2.0, "burst_second": 10.0}
    assert burst.costs([]) == {}


def test_ratios_of_a_report() -> None:
    sides = {"penstock": 1.0, "new_hosts_30s": 10.0, "functions_migrating": 4.0}
    runs = [run(side, peak) for side, peak in (sides | {"overprovisioned": 0.8}).items()]
    live = PartResult({}, {"runs": runs, "wrong": {}})
    parts = {
        "simulated": PartResult({}, {"grid": runs}),
        "live": live,
        "live-unpaced-q7": live,
        "idle": PartResult({}, {"ratios": [1.0, 1.01, 1.5]}),
        "cold_starts": PartResult({}, {"start_ms": [10.0, 30.0, 20.0]}),
    }
    ratios = burst.report({name: part.to_plain(False) for name, part in parts.items()}).ratios
    others = {f"unpaced_runs_with_wrong_rows_{query}" for query in UNPACED if query != "q7"}
    assert set(burst.GOALS) - others <= set(ratios)
    assert ratios["p99_peak_vs_functions_with_migration"] == pytest.approx(0.25)
    assert ratios["sim_p99_peak_vs_new_hosts"] == pytest.approx(0.1)
    assert ratios["unpaced_p99_peak_vs_overprovisioned_q7"] == pytest.approx(1.25)
    assert "unpaced_p99_peak_vs_no_scaling_q7" not in ratios
    assert (ratios["idle_overhead"], ratios["function_cold_start_ms"]) == (1.01, 20.0)
    assert burst.report({}).ratios == {}


def test_a_run_with_wrong_rows_misses_a_goal() -> None:
    bad = burst_outcome.LiveRuns((outcome(),), {"q5, penstock": "x"}, {"q5, penstock": "x"})
    made = burst.live_result(bad).results
    goal, name = burst.GOALS["live_runs_with_wrong_rows"], "live_runs_with_wrong_rows"
    assert not goal.met(burst.live_ratios(made)[name])
    assert made["failed"] == {"q5, penstock": "x"}
    assert [run["query"] for run in made["runs"]] == ["q7"]
    fine = burst.live_result(burst_outcome.LiveRuns((outcome(),))).results
    assert goal.met(burst.live_ratios(fine)[name])
    assert json.loads(json.dumps(fine))["runs"][0]["side"] == "penstock"


def test_a_day_costs_what_its_seconds_do() -> None:
    assert burst_sides.day({"stable_second": 1.0, "burst_second": 101.0}) == pytest.approx(
        burst_sides.DAY_S * 2
    )


def test_the_bench_is_in_the_catalogue() -> None:
    bench = find("burst")
    assert (bench.run, bench.merged) == (burst.run, burst.merged)
    assert bench.pictures is not None
    assert burst_scenarios.WARM_UP.seconds < 20
