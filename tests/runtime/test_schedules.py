"""Schedules: the formulas, on numbers worked out by hand."""

from __future__ import annotations

import pytest

from penstock.errors import SettingError
from penstock.runtime.schedules import (
    CurrentThroughput,
    EstimatedTime,
    LastInPipeline,
    QueueSizeThrottling,
    Schedule,
    Standing,
    schedule_named,
)

ALL = [QueueSizeThrottling(), LastInPipeline(), EstimatedTime(), CurrentThroughput(0.001)]


@pytest.mark.parametrize("chosen_by", ALL)
def test_only_what_is_ready_is_chosen(chosen_by: Schedule) -> None:
    busy = Standing(ready=False, waiting=1e6, cost=1.0)
    assert chosen_by.choose([busy, busy]) is None
    for place in range(3):
        standings = [busy] * 3
        standings[place] = Standing(ready=True, waiting=1, cost=1e-6, worked=5.0)
        assert chosen_by.choose(standings) == place


def test_throttling_takes_the_first_one_below_its_threshold() -> None:
    # Selectivities 1, 4, 0.25: for one record in, 1, 4 and 1 come out, so of a capacity of 60
    # the thresholds are 10, 40 and 10.
    def choose(*waiting: float) -> int | None:
        standings = [
            Standing(True, waiting=records, cost=1.0, selectivity=selectivity)
            for records, selectivity in zip(waiting, (1, 4, 0.25), strict=True)
        ]
        return QueueSizeThrottling(60).choose(standings)

    assert choose(100, 9, 100) == 0
    assert choose(100, 10, 39) == 1
    assert choose(100, 10, 40) == 2


def test_throttling_never_lets_a_worker_idle() -> None:
    standings = [Standing(True, waiting=5), Standing(False, waiting=1e6)]
    assert QueueSizeThrottling(10).choose(standings) == 0


def test_estimated_time_counts_those_at_work() -> None:
    # 10 s / 2, 8 s / 1, 20 s / 3
    standings = [
        Standing(True, waiting=10, cost=1.0, workers=1),
        Standing(True, waiting=4, cost=2.0),
        Standing(True, waiting=20, cost=1.0, workers=2),
    ]
    assert EstimatedTime().choose(standings) == 1
    assert EstimatedTime().choose([*standings, Standing(True, waiting=1)]) == 3  # unknown cost


def test_current_throughput_takes_the_bottleneck() -> None:
    # Half the records of the first reach the second, and four times those the third:
    # (2 + 1) / (1 * 1) = 3, (1 + 0) / (1 * 0.5) = 2, (3 + 2) / (1 * 2) = 2.5
    standings = [
        Standing(True, cost=1.0, selectivity=0.5, worked=2.0, workers=1),
        Standing(True, cost=1.0, selectivity=4.0, worked=1.0),
        Standing(True, cost=1.0, worked=3.0, workers=2),
    ]
    chosen_by = CurrentThroughput(1.0)
    assert chosen_by.choose(standings) == 1
    standings[1] = standings[1]._replace(workers=1)
    assert chosen_by.choose(standings) == 2
    standings[2] = standings[2]._replace(workers=5)
    assert chosen_by.choose(standings) == 0


def test_an_operator_that_gives_nothing_does_not_starve_what_is_behind() -> None:
    standings = [
        Standing(True, cost=1e-6, selectivity=0.0, worked=1.0),
        Standing(True, cost=1e-6, worked=0.0),
    ]
    assert CurrentThroughput(0.001).choose(standings) == 1
    assert QueueSizeThrottling().choose(standings) in (0, 1)


def test_schedules_by_name() -> None:
    assert schedule_named("ct", 0.002) == CurrentThroughput(0.002)
    assert schedule_named("lp", 0.002) == LastInPipeline()
    with pytest.raises(SettingError, match="qst, lp, et, ct"):
        schedule_named("fifo", 0.001)
