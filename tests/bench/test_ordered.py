"""`penstock bench ordered`: the results computed from its trials. One short trial is run."""

from __future__ import annotations

import itertools
import json
import threading
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from penstock.errors import SettingError
from penstock_bench.ordered import bench as ordered
from penstock_bench.ordered import sweeps as ordered_sweeps
from penstock_bench.ordered.chains import (
    CREDIT_S,
    KEYS,
    LEAST_S,
    Asleep,
    Matrices,
    Op,
    TrialChain,
    TrialChunk,
    matrices,
)
from penstock_bench.ordered.trials import Markers, Trial, run_all, run_one, shown

# -- figures of a trial


def test_only_latencies_in_the_middle_of_a_trial_count() -> None:
    left = {n: float(n) for n in range(101)}
    begun = {n: at - (0.003 if 20 <= n <= 80 else 0.5) for n, at in left.items()}
    figures = shown(begun, left)
    assert figures.latency_ms == pytest.approx(3.0)
    assert figures.p99_ms == pytest.approx(3.0)


def test_throughput_is_that_of_the_whole_trial() -> None:
    """Nothing leaves for nine seconds, then all items at once: the rate is not a hundred per second."""
    left = {n: 9.0 + n / 100 for n in range(101)}
    figures = shown({n: n / 20 for n in range(101)}, left)
    assert figures.items_per_s == pytest.approx(10.1)


def test_items_that_leave_out_of_order_count_when_they_leave() -> None:
    left = {n: float(n ^ 1) for n in range(100)}
    figures = shown({n: at - 1 for n, at in left.items()}, left)
    assert figures.items_per_s == pytest.approx(1.0)
    assert figures.latency_ms == pytest.approx(1000.0)


def test_the_last_output_of_an_item_counts() -> None:
    times = iter([0.0, 1.0, 5.0])
    markers = Markers(lambda: next(times))
    markers.begin(3)
    markers.leave(3)
    markers.leave(3)
    assert markers.latencies_s() == {3: 5.0}


# -- costs


class Bed:
    """A clock and sleeps that take longer than requested."""

    def __init__(self, late_s: float) -> None:
        self.now, self.late_s = 0.0, late_s

    def sleep(self, seconds: float) -> None:
        assert seconds >= LEAST_S
        self.now += seconds + self.late_s


@pytest.mark.parametrize("us", [10, 90, 700, 5_000])
def test_sleeps_that_are_late_are_made_good(us: int) -> None:
    bed = Bed(late_s=100e-6)
    cost = Asleep(us, clock=lambda: bed.now, sleep=bed.sleep)
    for _ in range(2_000):
        cost.spend(1, None)
    assert bed.now == pytest.approx(2_000 * us * 1e-6, rel=0.02, abs=LEAST_S)


def test_what_a_worker_waited_for_others_is_not_made_good() -> None:
    bed = Bed(late_s=0.1)
    cost = Asleep(1_000, clock=lambda: bed.now, sleep=bed.sleep)
    for _ in range(10):
        cost.spend(1, None)
    assert bed.now >= 10 * (0.101 - CREDIT_S)


def test_every_thread_has_debts_of_its_own() -> None:
    slept: list[float] = []
    cost = Asleep(LEAST_S * 0.6e6, clock=lambda: sum(slept), sleep=slept.append)
    cost.spend(1, None)
    other = threading.Thread(target=cost.spend, args=(1, None))
    other.start()
    other.join()
    assert slept == []
    cost.spend(1, None)
    assert slept == [pytest.approx(1.2 * LEAST_S)]


def test_matrices_keep_their_size() -> None:
    values = matrices(5, seed=3)
    turned = Matrices(times=50).spend(5, values)
    assert np.linalg.norm(turned) == pytest.approx(np.linalg.norm(values))
    assert not np.allclose(turned, values)


# -- chains


def records_out(chain: TrialChain, items: int) -> tuple[list[TrialChunk], list[int]]:
    """The chunks that leave a chain when every operator processes every item in turn."""
    begun: list[int] = []
    flowing = list(itertools.islice(chain.chunks(), items))
    for operator in chain.operators(4, begun.append):
        out: list[TrialChunk] = []
        for item in flowing:
            ((part, piece),) = operator.split(item)
            assert 0 <= part < operator.parts
            out += operator.join(item, [operator.work(part, piece)])
        flowing = out
    return flowing, begun


def test_a_chain_has_its_selectivity() -> None:
    shapes = (
        Op("stateless", 0, 0.3),
        Op("keyed", 0, 2.5),
        Op("global", 0),
    )
    out, begun = records_out(TrialChain(shapes, records=3), 1_000)
    assert begun == [chunk.number for chunk in out] == list(range(1_000))
    assert sum(chunk.records for chunk in out) == pytest.approx(3_000 * 0.75, rel=0.03)


def test_outputs_have_keys_of_their_own() -> None:
    out, _ = records_out(TrialChain((Op("stateless", 0, 50, outputs=50),), records=2), 20)
    assert len(out) == 1_000
    assert len({chunk.key for chunk in out}) > 990
    assert all(0 <= chunk.key < KEYS and chunk.records == 2 for chunk in out)


def shares(sigma: float, parts: int) -> list[float]:
    """Share of the keys in each part."""
    chain = ordered_sweeps.keyed(1_000, sigma)
    (operator,) = chain.operators(parts, lambda number: None)
    chunks = itertools.islice(chain.chunks(), 20_000)
    counts = Counter(part for chunk in chunks for part, _ in operator.split(chunk))
    return [counts[part] / 20_000 for part in range(parts)]


def test_the_smaller_sigma_the_more_skew() -> None:
    assert max(shares(2.0, 16)) < 1.2 / 16
    few, many = shares(0.1, 16), shares(0.1, 100)
    # Half of the keys are on each side of the middle, most of them near it.
    assert few[7] == pytest.approx(few[8], abs=0.02)
    assert 0.35 < max(few) < 0.45
    assert 0.07 < max(many) < 0.09


# -- the bench


def test_trials_are_what_is_asked_for() -> None:
    every = ordered_sweeps.trials(ordered_sweeps.FULL)
    quick = ordered_sweeps.trials(ordered_sweeps.QUICK)
    assert {one.group for one in quick} == {one.group for one in every}
    queries = [one for one in every if one.group == "queries"]
    assert {dict(one.facts)["query"] for one in queries} == {1, 2, 3, 4, 15}
    assert {one.schedule for one in queries} == {"qst", "lp", "et", "ct"}
    assert {one.workers for one in queries} == {2, 4, 8, 16}
    skews = [one for one in every if one.group == "skew"]
    assert {dict(one.facts)["sigma"] for one in skews} >= {2.0, 0.1}
    assert {(one.parts, one.queue) for one in skews if one.workers == 16} == {
        (16, "partitioned"),
        (100, "hybrid"),
    }
    costs = {dict(one.facts)["cost_us"] for one in every if one.group == "cost"}
    assert costs == {10, 100, 1_000, 10_000}
    full = ordered_sweeps.FULL
    length_s = sum(
        one.seconds * (full.query_rounds if one.group == "queries" else full.rounds)
        for one in every
    )
    assert length_s < 8 * 60, "with hosts and flows the bench should take twelve minutes"
    assert sum(one.seconds for one in quick) < 40


def trial_result(rates: list[float], latency_ms: float = 1.0, **facts: Any) -> dict[str, Any]:
    sides = {"workers": 16, "schedule": "ct", "queue": "hybrid", "reorder": "nonblocking"}
    figures = {"records_per_s": rates, "latency_ms": [latency_ms] * len(rates)}
    return {**sides, **facts, **figures}


GROUPS = {
    "skew": [
        trial_result([9.0], sigma=0.1, workers=1),
        trial_result([90.0], sigma=0.1),
        trial_result([30.0], sigma=0.1, queue="partitioned"),
        trial_result([90.0], sigma=2.0, queue="partitioned"),
    ],
    "cost": [
        trial_result([1.0], 1.5, cost_us=1_000, workers=8),
        trial_result([1.0], 15.0, cost_us=1_000, workers=8, queue="partitioned"),
        trial_result([1.0], 99.0, cost_us=10, workers=8),
    ],
    "light": [
        trial_result([50.0, 60.0, 90.0]),
        trial_result([40.0, 40.0, 45.0], reorder="lock"),
        trial_result([90.0] * 3, reorder="lock", workers=1),
    ],
    "light, free delivery": [trial_result([9.0]), trial_result([10.0], reorder="lock")],
    "real": [trial_result([10.0], workers=1), trial_result([19.0], workers=2)],
    "spark": [
        {"step": "sum", "ordered": True, "records_per_s": [97.0]},
        {"step": "sum", "ordered": False, "records_per_s": [100.0]},
        {"step": "process", "ordered": True, "records_per_s": [48.0]},
        {"step": "process", "ordered": False, "records_per_s": [50.0]},
    ],
    "cores": [
        {"query": query, "workers": workers, "records_per_s": [rate]}
        for query, gain, auto in ((1, 1.2, 1.1), (2, 2.7, 2.7))
        for workers, rate in ((1, 100.0), (2, 100.0 * gain), ("auto", 100.0 * auto))
    ],
    "flow": [
        {"step": "sum", "ordered": True, "records_per_s": [90.0]},
        {"step": "sum", "ordered": False, "records_per_s": [100.0]},
    ],
    "queries": [
        trial_result([100.0], query=1),
        trial_result([98.0], query=1, schedule="lp"),
        trial_result([90.0], query=1, schedule="qst"),
        # Not compared with other schedules, since it has another queue.
        trial_result([200.0], query=1, queue="partitioned"),
        trial_result([101.0], query=1, reorder="none"),
        trial_result([97.0], query=2, workers=8),
        trial_result([90.0], query=2),
        trial_result([100.0], query=2, schedule="et"),
        trial_result([90.0], query=2, reorder="none"),
    ],
}


def test_ratios() -> None:
    report = ordered.report(GROUPS)
    assert report.ratios == {
        "hybrid_over_partitioned_sigma_0.1": 3.0,
        "latency_partitioned_over_hybrid_1000us": 10.0,
        # The median of 1.25, 1.5 and 2.0.
        "nonblocking_over_lock_light": 1.5,
        "nonblocking_over_lock_free_delivery": 0.9,
        "speedup_2_cores_real": 1.9,
        "speedup_2_cores_queries": 1.2,
        # The geometric mean of 1.2 and 2.7.
        "tpcx_bb_2_workers_real": pytest.approx(1.8),
        "auto_over_best_fixed_heavy": pytest.approx(1.1 / 1.2),
        # The worst of the queries, each schedule with its best number of workers.
        "ct_over_best_other": 0.97,
        "ordered_overhead": 0.96,
        "ordered_overhead_in_process": 0.9,
        "ordered_overhead_runtime": pytest.approx(100 / 101),
    }
    assert set(ordered.GOALS) <= set(report.ratios)
    assert all(goal.met(report.ratios[name]) for name, goal in ordered.GOALS.items())
    samples = report.results["samples"]
    assert samples["ct_over_best_other query 1"]["median"] == pytest.approx(100 / 98)
    light = samples["nonblocking_over_lock_light"]
    assert (light["low"], light["high"], light["n"]) == (1.25, 2.0, 3)


def test_parts_are_run_alone_and_merged_with_an_earlier_report() -> None:
    with pytest.raises(SettingError, match="has no part tables"):
        ordered.run(lambda line: None, quick=True, part=["tables"])
    earlier = json.loads(ordered.report({"real": GROUPS["real"]}).to_json())
    both = ordered.merged(earlier, ordered.report({"cores": GROUPS["cores"]}, quick=True))
    assert {"speedup_2_cores_real", "tpcx_bb_2_workers_real"} <= set(both.ratios)


def test_what_was_not_run_has_no_ratio() -> None:
    assert ordered.report({}).ratios == {}
    assert set(ordered.report({"real": GROUPS["real"]}).ratios) == {"speedup_2_cores_real"}


def test_a_trial_is_run() -> None:
    chain = TrialChain(
        (
            Op("stateless", 40),
            Op("keyed", 40, 0.5),
            Op("global", 2),
        ),
        records=10,
    )
    trial = Trial("queries", (("query", 0),), chain, workers=4, seconds=0.2)
    assert trial.items == round(0.2 * 4 / 810e-6)
    figures = run_one(trial)
    # Four workers at 810 us per item, and not faster; a busy machine may slow it down.
    assert 50 < figures.items_per_s < 1.05 * 4 / 810e-6
    assert figures.latency_ms > 0.5


def test_light_work_is_limited_by_the_interpreter() -> None:
    trial = Trial("cost", (), TrialChain((Op("keyed", 10),)), workers=8, seconds=1.0)
    assert trial.items == 40_000


def test_sides_take_turns() -> None:
    chain = TrialChain((Op("stateless", 500),))
    trials = [Trial("light", (), chain, workers, seconds=0.05) for workers in (1, 2)]
    lines: list[str] = []
    results = run_all([*trials, replace(trials[0], group="real")], 2, lines.append)
    assert [one["workers"] for one in results["light"]] == [1, 2]
    assert all(len(one["records_per_s"]) == 2 for one in results["light"])
    assert len(lines) == 3
    assert "records/s" in lines[0]
