"""Schedules: the formulas, with numbers worked out by hand."""

from __future__ import annotations

import pytest

from penstock.errors import SettingError
from penstock.runtime.schedules import (
    Schedule,
    Standing,
    current_throughput,
    estimated_time,
    queue_size_throttling,
    schedule_named,
)

NAMES = ["qst", "lp", "et", "ct"]


@pytest.mark.parametrize("name", NAMES)
def test_only_what_is_ready_is_chosen(name: str) -> None:
    choose: Schedule = schedule_named(name, 0.001)
    busy = Standing(ready=False, waiting=1e6, cost=1.0)
    assert choose([busy, busy]) is None
    for place in range(3):
        standings = [busy] * 3
        standings[place] = Standing(ready=True, waiting=1, cost=1e-6, worked=5.0)
        assert choose(standings) == place


def test_throttling_takes_the_first_one_below_its_threshold() -> None:
    # Selectivities 1, 4, 0.25: for one record in, 1, 4 and 1 come out, so of a capacity of 60
    # the thresholds are 10, 40 and 10.
    def choose(*waiting: float) -> int | None:
        standings = [
            Standing(True, waiting=records, cost=1.0, selectivity=selectivity)
            for records, selectivity in zip(waiting, (1, 4, 0.25), strict=True)
        ]
        return queue_size_throttling(standings, 60)

    assert choose(100, 9, 100) == 0
    assert choose(100, 10, 39) == 1
    assert choose(100, 10, 40) == 2


def test_throttling_never_lets_a_worker_idle() -> None:
    standings = [Standing(True, waiting=5), Standing(False, waiting=1e6)]
    assert queue_size_throttling(standings, 10) == 0


def test_estimated_time_counts_those_at_work() -> None:
    # 10 s / 2, 8 s / 1, 20 s / 3
    standings = [
        Standing(True, waiting=10, cost=1.0, workers=1),
        Standing(True, waiting=4, cost=2.0),
        Standing(True, waiting=20, cost=1.0, workers=2),
    ]
    assert estimated_time(standings) == 1
    assert estimated_time([*standings, Standing(True, waiting=1)]) == 3  # unknown cost


def test_current_throughput_takes_the_bottleneck() -> None:
    # Half the records of the first reach the second, and four times those the third:
    # (2 + 1) / (1 * 1) = 3, (1 + 0) / (1 * 0.5) = 2, (3 + 2) / (1 * 2) = 2.5
    standings = [
        Standing(True, cost=1.0, selectivity=0.5, worked=2.0, workers=1),
        Standing(True, cost=1.0, selectivity=4.0, worked=1.0),
        Standing(True, cost=1.0, worked=3.0, workers=2),
    ]
    assert current_throughput(standings, 1.0) == 1
    standings[1] = standings[1]._replace(workers=1)
    assert current_throughput(standings, 1.0) == 2
    standings[2] = standings[2]._replace(workers=5)
    assert current_throughput(standings, 1.0) == 0


def test_an_operator_without_output_does_not_starve_later_operators() -> None:
    standings = [
        Standing(True, cost=1e-6, selectivity=0.0, worked=1.0),
        Standing(True, cost=1e-6, worked=0.0),
    ]
    assert current_throughput(standings, 0.001) == 1
    assert queue_size_throttling(standings) in (0, 1)


def test_an_unknown_schedule_is_refused() -> None:
    with pytest.raises(SettingError, match="qst, lp, et, ct"):
        schedule_named("fifo", 0.001)
