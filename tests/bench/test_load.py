"""The load bench: the search for the highest rate, trials, and arriving rows. One rate is tried on a real
query."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import SparkSession

from penstock.model import SLA
from penstock_bench.live.latency import Delivered
from penstock_bench.load.arrivals import (
    RateChange,
    RateFile,
    Rates,
    bids,
    keyed,
    numbered,
)
from penstock_bench.load.bench import GOALS, QUICK, better_store, loaded, report
from penstock_bench.load.search import Bounds, highest
from penstock_bench.load.sides import QUERIES
from penstock_bench.load.trial import RateTrial, Spell, judged
from tests.bench.made_up import load_searches

BOUNDS = Bounds(least=1_000, most=1_000_000, factor=1.5, within=0.1)
SECOND = SLA(latency_ms=1000, window_ms=1000)


# -- the search


class Counted:
    """Tells whether a rate holds, and records the rates it was asked about."""

    def __init__(self, limit: float, wrong: float = 0.0, seed: int = 1) -> None:
        self._limit, self._wrong, self._chance = limit, wrong, random.Random(seed)
        self.asked: dict[float, bool] = {}

    def __call__(self, rate: float) -> bool:
        assert rate not in self.asked
        right = self._chance.random() >= self._wrong
        self.asked[rate] = (rate <= self._limit) == right
        return self.asked[rate]


@pytest.mark.parametrize("limit", [1_000, 1_234, 50_000, 50_001, 333_333, 999_999])
@pytest.mark.parametrize("start", [10, 1_000, 50_000, 2_000_000])
def test_the_search_comes_near_the_limit(limit: float, start: float) -> None:
    holds = Counted(limit)
    result = highest(holds, start, BOUNDS)
    assert limit / 1.1 <= result <= limit
    assert all(BOUNDS.least <= rate <= BOUNDS.most for rate in holds.asked)


def test_nothing_holds() -> None:
    holds = Counted(0)
    assert highest(holds, 50_000, BOUNDS) == 0
    assert min(holds.asked) == BOUNDS.least


def test_everything_holds() -> None:
    assert highest(Counted(math.inf), 50_000, BOUNDS) == BOUNDS.most


@pytest.mark.parametrize("seed", range(20))
def test_noisy_answers_end_with_a_rate_that_held(seed: int) -> None:
    holds = Counted(100_000, wrong=0.2, seed=seed)
    result = highest(holds, 20_000, BOUNDS)
    assert len(holds.asked) < 30
    if result:
        assert holds.asked[result]
        assert any(not held and rate <= result * 1.1 for rate, held in holds.asked.items())


def test_the_search_ends_when_it_has_had_enough() -> None:
    holds = Counted(300_000)
    assert highest(holds, 20_000, BOUNDS, enough=lambda: len(holds.asked) == 2) == 30_000
    assert list(holds.asked) == [20_000, 30_000]


def test_a_climb_is_coarse() -> None:
    """It is only as precise as its factor, since it merely finds a starting point."""
    climb = Bounds(1_000, 1_000_000, factor=2.0, within=1.0)
    holds = Counted(70_000)
    assert highest(holds, 10_000, climb) == 40_000
    assert list(holds.asked) == [10_000, 20_000, 40_000, 80_000]


# -- a trial


def epochs(length_ms: float, took_ms: float, number: int = 60) -> list[Delivered]:
    """Epochs of the same length, whose rows are in the sink `took_ms` after their end."""
    return [Delivered(int(length_ms * n), length_ms * n + took_ms) for n in range(1, number + 1)]


def tried(delivered: list[Delivered]) -> RateTrial:
    return judged(1.0, delivered, 1_000, Spell(2.0, 9.0), SECOND)


def test_epochs_that_are_short_enough_hold() -> None:
    trial = tried(epochs(600, 650))
    assert trial.holds
    assert trial.mean_ms == pytest.approx(950, abs=2)
    assert (trial.success, trial.done) == (1.0, 1.0)


def test_epochs_that_are_too_long_do_not() -> None:
    trial = tried(epochs(800, 800))
    assert not trial.holds
    assert trial.mean_ms == pytest.approx(1200, abs=10)
    assert trial.success < 0.1


def test_a_backlog_that_grows_fails_before_the_bound_is_reached() -> None:
    growing = [Delivered(300 * n, 300 * n + 20.0 * n) for n in range(1, 45)]
    trial = tried(growing)
    assert trial.success == 1.0
    assert trial.growth_ms == pytest.approx(400, abs=30)
    assert not trial.holds


def test_one_pause_of_many_windows_is_near() -> None:
    paused = [
        Delivered(one.row, max(one.at_ms, 6_600.0) if one.at_ms > 5_000 else one.at_ms)
        for one in epochs(300, 300)
    ]
    trial = tried(paused)
    assert 0.8 <= trial.success < 0.99
    assert trial.near


def test_rows_that_were_never_done_fail() -> None:
    trial = tried(epochs(500, 500, number=10))
    assert trial.done < 0.5
    assert trial.growth_ms is None
    assert not trial.holds
    assert not trial.near
    nothing = tried(epochs(500, 500, number=2))
    assert (nothing.done, nothing.mean_ms, nothing.holds) == (0.0, None, False)


# -- the rows


def test_rows_of_ticks_follow_one_another(tmp_path: Path) -> None:
    file = RateFile(tmp_path / "rates")
    file.write(Rates((RateChange(0, 1.0), RateChange(500, 0.0), RateChange(900, 123.456))))
    tick = np.arange(2_000)
    first, rows = (column.to_numpy() for column in file.rows(tick, tick))
    assert first[0] == 0
    np.testing.assert_array_equal(first[1:], first[:-1] + rows[:-1])
    assert rows[:500].sum() == 500
    assert rows[500:900].sum() == 0
    assert rows[900:1_900].sum() == 123_456


def test_a_change_of_the_rate_leaves_the_ticks_before_it_alone(tmp_path: Path) -> None:
    file = RateFile(tmp_path / "rates")
    before = Rates((RateChange(0, 7.5),))
    tick = np.arange(1_000)
    file.write(before)
    rows = [column.to_pylist() for column in file.rows(tick, tick)]
    file.write(Rates((*before.changes, RateChange(1_000, 99.0))))
    assert [column.to_pylist() for column in file.rows(tick, tick)] == rows


def test_the_jvm_generates_the_rows_of_ticks(spark: SparkSession) -> None:
    ticks = spark.sql(
        "SELECT timestamp_millis(1000 + id) AS arrival, id * 500 AS first, if(id = 3, 0L, 500L) AS rows "
        "FROM range(200)"
    )
    rows = numbered(ticks).toArrow()
    assert sorted(rows["n"].to_pylist()) == [n for n in range(100_000) if n // 500 != 3]
    sums = keyed(numbered(ticks), 100).groupBy("k").count().toArrow()
    assert sums["k"].to_pylist() != []
    assert len(sums) == 100
    assert min(sums["count"].to_pylist()) > 800
    bid = bids(numbered(ticks)).toArrow()
    auction = bid["auction"].to_numpy()
    newest = 1000 + rows["n"].to_numpy() // 46 * 3 + 2
    assert (auction <= newest).all()
    assert (auction >= newest - 101).all()
    assert (auction % 100 == 0).mean() == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize(
    "query", [pytest.param(name, marks=[pytest.mark.slow] * (name != "sum")) for name in QUERIES]
)
def test_a_rate_is_tried_on_a_running_query(
    spark: SparkSession, query: str, tmp_path: Path
) -> None:
    """Any machine holds this low rate with a bound of half a minute, even if it is busy."""
    patient = SLA(latency_ms=30_000, window_ms=30_000)
    with loaded(spark, QUERIES[query]["penstock"], patient) as running:
        trial = running.try_rate(2_000, Spell(settle_s=0.2, seconds=1.0))
    assert trial.holds
    assert trial.done == 1.0
    assert trial.mean_ms is not None
    assert 0 < trial.mean_ms < 30_000


# -- the report


def test_penstock_is_compared_with_the_better_store() -> None:
    made = report(load_searches(), QUICK)
    assert made.ratios.keys() == GOALS.keys()
    assert made.ratios == pytest.approx(dict.fromkeys(GOALS, 3.0))
    assert better_store(load_searches()) == "native_hdfs"
    rates = made.results["sum"]["penstock"]["max_rate"]
    assert (rates["low"], rates["high"], rates["n"]) == pytest.approx((1_500_000, 1_530_000, 2))
    assert [trial["holds"] for trial in made.results["q5"]["native_rocksdb"]["trials"]] == [
        True,
        True,
        False,
        False,
        False,
    ]


def test_a_side_that_holds_nothing_gives_no_ratio() -> None:
    searches = [
        replace(one, max_rate=0.0 if one.side != "penstock" else 5.0) for one in load_searches()
    ]
    ratios = report(searches, QUICK).ratios
    assert all(math.isnan(ratio) for ratio in ratios.values())
    assert not any(GOALS[name].met(ratio) for name, ratio in ratios.items())
