"""A day at the exchange: the number of orders, their times and their stocks."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.errors import SettingError
from penstock_bench.workloads.exchange import trace
from penstock_bench.workloads.exchange.trace import DAY_MS

SEED = 3


@pytest.fixture(scope="module")
def day() -> trace.Day:
    return trace.day(SEED)


@pytest.fixture(scope="module")
def seconds(day: trace.Day) -> np.ndarray:
    return np.bincount(day.arrival_ms // 1000, minlength=DAY_MS // 1000)


def test_a_day_has_exactly_its_orders_in_order(day: trace.Day) -> None:
    assert len(day) == trace.ORDERS == 14_854_215
    assert (np.diff(day.arrival_ms) >= 0).all()
    assert day.arrival_ms[0] >= 0
    assert day.arrival_ms[-1] < DAY_MS == 4 * 3600 * 1000


def test_orders_follow_a_power_law_over_stocks(day: trace.Day) -> None:
    orders = np.bincount(day.stock, minlength=trace.STOCKS)
    assert len(orders) == 1_156
    assert (np.diff(orders) <= 0).all()
    assert 0.020 < orders[0] / len(day) < 0.025
    assert 0.10 < orders[:11].sum() / len(day) < 0.12
    rank = np.arange(1, 1_157)
    slope = np.polyfit(np.log(rank), np.log(orders), 1)[0]
    assert slope == pytest.approx(-0.58, abs=0.01)


def test_both_sessions_open_with_a_spike_that_is_soon_over(seconds: np.ndarray) -> None:
    for opening in (0, 7200):
        assert 70_000 <= seconds[opening] <= 80_000
        assert seconds[opening + 1] < seconds[opening] / 4
        assert seconds[opening + 3 : opening + 60].max() < 10_000


def test_it_varies_from_hundreds_to_thousands_a_second(seconds: np.ndarray) -> None:
    rest = np.delete(seconds, np.r_[0:5, 7200:7205])
    assert 100 < rest.min() < 500
    assert 5_000 < rest.max() < 20_000
    assert 700 < np.median(rest) < 1100
    assert np.quantile(rest, 0.99) > 2_000
    # bursts come within seconds: the rate doubles from one second to the next, and not by chance
    doubled = rest[1:] > 2 * rest[:-1]
    assert doubled.sum() > 10


def test_sessions_are_busy_at_their_ends_and_most_at_the_close(seconds: np.ndarray) -> None:
    minutes = seconds.reshape(-1, 60).sum(axis=1)
    middle = np.median(np.r_[minutes[30:90], minutes[150:210]])
    assert minutes[1:10].mean() > 1.3 * middle
    assert minutes[-10:].mean() > 1.7 * middle
    assert minutes[-10:].mean() > minutes[110:120].mean()


def test_stocks_have_bursts_of_their_own(day: trace.Day, seconds: np.ndarray) -> None:
    minutes = np.maximum(seconds.reshape(-1, 60).sum(axis=1), 1)
    strongest = []
    for stock in range(0, 200, 5):
        mine = np.bincount(day.arrival_ms[day.stock == stock] // 60_000, minlength=240)
        beside = mine / minutes
        strongest.append(beside.max() / np.median(beside))
    assert np.median(strongest) > 2
    assert np.max(strongest) > 5


def test_the_trace_of_slots_has_the_orders_of_the_day(day: trace.Day) -> None:
    counts = trace.slot_trace(slots=16, delta_ms=500, seed=SEED)
    assert counts.shape == (28_800, 16)
    assert counts.dtype == np.int32
    cell = day.arrival_ms // 500 * 16 + trace.slots_of_stocks(16)[day.stock]
    assert np.array_equal(counts.ravel(), np.bincount(cell, minlength=counts.size))


def test_no_slot_of_64_is_more_than_a_host(day: trace.Day) -> None:
    shares = np.bincount(trace.slots_of_stocks(64)[day.stock], minlength=64) / len(day)
    assert shares.min() > 0.004
    assert shares.max() < 0.05


def test_another_seed_makes_another_day(seconds: np.ndarray) -> None:
    other = trace.slot_trace(4, 60_000, seed=SEED + 1).sum(axis=1)
    assert other.sum() == trace.ORDERS
    assert (other != seconds.reshape(-1, 60).sum(axis=1)).mean() > 0.9


def test_a_day_that_cannot_be_cut_is_refused() -> None:
    with pytest.raises(SettingError, match="cannot be cut"):
        trace.slot_trace(delta_ms=7)
