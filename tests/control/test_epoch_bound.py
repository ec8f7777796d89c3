"""The bound on rows per epoch: from the SLA and the pace of epochs, and when it changes."""

from __future__ import annotations

from random import Random

import pytest

from penstock.control.epoch_bound import FIRST, LEAST_ROWS, EpochBound, Pace, pace_of, rows_within


def catch_up(bound: EpochBound, truth: Pace, epochs: int, seed: int = 18) -> list[int]:
    """Process a backlog at a pace that varies by a fifth. Returns all bounds."""
    random, now, bounds = Random(seed), 0.0, [bound.rows]
    for _ in range(epochs):
        took = truth.epoch_ms(bound.rows) * random.uniform(0.8, 1.2)
        bound.note(bound.rows, now, now + took)
        now += took
        if (due := bound.due) is not None:
            bound.change(due)
            bounds.append(due)
    return bounds


@pytest.mark.parametrize("latency_ms", [200, 1_000, 10_000])
@pytest.mark.parametrize("rate", [500.0, 20_000.0, 1_000_000.0])
def test_two_epochs_fit_into_the_latency(latency_ms: int, rate: float) -> None:
    pace = Pace(fixed_ms=60.0, rows_per_s=rate)
    rows = rows_within(latency_ms, pace)
    assert rows >= LEAST_ROWS
    if rows > LEAST_ROWS:
        assert 2 * pace.epoch_ms(rows) <= latency_ms


@pytest.mark.parametrize("rate", [5_000.0, 25_000.0, 200_000.0, 2_000_000.0])
def test_the_bound_follows_the_pace_of_epochs(rate: float) -> None:
    truth = Pace(fixed_ms=120.0, rows_per_s=rate)
    bound = EpochBound(1_000, FIRST)
    bounds = catch_up(bound, truth, 120)
    assert truth.epoch_ms(bound.rows) <= 750 or bound.rows == LEAST_ROWS
    right = rows_within(1_000, truth)
    assert right / 2.5 <= bound.rows <= right * 1.6
    assert len(bounds) <= 7, "each change costs a pause"


def test_a_bound_that_is_about_right_stays() -> None:
    bound = EpochBound(1_000, FIRST)
    assert catch_up(bound, Pace(FIRST.fixed_ms, FIRST.rows_per_s * 1.4), 200) == [bound.rows]


def test_small_epochs_do_not_raise_it() -> None:
    bound = EpochBound(1_000, FIRST)
    for n in range(100):  # they say little about epochs that are six times as large
        bound.note(1_200, n * 1000, n * 1000 + 100)
    assert bound.due is None


def test_it_is_lowered_before_epochs_fill_it() -> None:
    bound = EpochBound(1_000, Pace(100, 1_000_000))
    for n in range(20):  # hosts have become slow: 120,000 rows take 3 s, and 400,000 would take 10
        bound.note(120_000, n * 4000, n * 4000 + 3000)
    assert bound.due is not None
    assert 10_000 <= bound.due <= 20_000


def test_a_large_fixed_cost_does_not_starve_a_flow() -> None:
    truth = Pace(fixed_ms=600.0, rows_per_s=60_000.0)  # too slow for the latency bound
    bound = EpochBound(1_000, FIRST)
    catch_up(bound, truth, 200)
    assert bound.rows >= 3_500


def test_the_first_epochs_of_a_start_do_not_count() -> None:
    bound = EpochBound(1_000, FIRST)
    for n in range(3):
        bound.note(7_500, n * 9000, n * 9000 + 8000)
    assert bound.pace == FIRST


def test_one_slow_epoch_in_between_changes_nothing() -> None:
    epochs = [(10_000, 300.0)] * 20
    assert pace_of([*epochs, (10_000, 9_000.0)], FIRST) == pace_of(epochs, FIRST)


def test_a_pace_is_like_another_if_epochs_take_about_as_long() -> None:
    assert Pace(200, 50_000).is_like(Pace(210, 52_000))
    assert not Pace(200, 50_000).is_like(Pace(200, 100_000))
    assert not Pace(200, 50_000).is_like(Pace(90, 50_000))
