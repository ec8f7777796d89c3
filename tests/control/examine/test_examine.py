"""Vitals of an examiner: rates, hosts and windows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from penstock.control.examine.examiner import Examiner
from penstock.control.examine.vitals import Work
from penstock.model import HostId, StepId

A, B = HOSTS = (HostId("sum/0"), HostId("sum/1"))
WORK = {host: Work(10, 10.0) for host in HOSTS}
STEP = StepId("sum")


def one_slot(window_ms: float = 1000, **settings: Any) -> Examiner:
    return Examiner(STEP, 1, window_ms, **settings)


def feed(examiner: Examiner, first: int, last: int, per_time_slot: float = 10.0) -> None:
    """Add steady arrivals, each completed in its time slot."""
    for m in range(first, last + 1):
        count = [per_time_slot * m]
        examiner.sample(m, count, count, [0], HOSTS, WORK)


def rate_of(examiner: Examiner, now_ms: float = 0.0) -> float:
    return examiner.vitals(now_ms, HOSTS, [0]).rate.item()


def test_a_rate_covers_the_window() -> None:
    examiner = one_slot()
    for m in range(1, 41):
        examiner.sample(m, [min(m, 25) * 4], [0], [0], HOSTS, WORK)
    # Time slots 31 to 40 had no arrivals; of 21 to 30, the first five had.
    assert rate_of(examiner) == 0.0
    examiner = one_slot()
    for m in range(1, 31):
        examiner.sample(m, [min(m, 25) * 4], [0], [0], HOSTS, WORK)
    assert rate_of(examiner) == 20.0


def test_at_first_a_rate_covers_the_time_seen() -> None:
    examiner = one_slot()
    rates = []
    for m in range(100, 113):
        examiner.sample(m, [(m - 99) * 7], [0], [0], HOSTS, WORK)
        rates.append(rate_of(examiner))
    assert rates == pytest.approx([70.0] * 13)


@pytest.mark.parametrize("horizon_ms", [2000.0, 2001.0, 2050.0, 2099.0, 2100.0])
@pytest.mark.parametrize("window_ms", [100, 250, 1000])
def test_a_horizon_within_a_time_slot_does_not_bend_the_rate(
    horizon_ms: float, window_ms: float
) -> None:
    """One record arrives in each millisecond."""
    examiner = one_slot(window_ms)
    known, m = 0.0, 1
    for horizon in (370.0, 1010.0, horizon_ms):
        last = math.ceil(horizon / 100)
        ends = np.minimum(np.arange(m, last + 1) * 100.0, horizon)
        counts = np.diff(ends, prepend=known)[:, np.newaxis]
        examiner.arriving(horizon, counts, m)
        known, m = horizon, last if horizon % 100 else last + 1
    assert rate_of(examiner) == pytest.approx(1000.0, rel=1e-9 if window_ms > 100 else 0.01)


def test_a_window_is_at_least_a_time_slot() -> None:
    examiner = one_slot(window_ms=30)
    feed(examiner, 1, 5)
    assert rate_of(examiner) == pytest.approx(100.0)
    assert examiner.window_ms == 30


def test_records_out_of_order_count_at_their_arrival() -> None:
    examiner = one_slot()
    examiner.arriving(1000, np.full((10, 1), 5.0), 1)
    examiner.arriving(1500, [[20.0]], 3)
    assert rate_of(examiner) == 25.0, "time slot 3 is no longer in the window"
    examiner.arriving(1500, [[20.0]], 8)
    assert rate_of(examiner) == 45.0


def test_an_epoch_without_rows_updates_the_rate() -> None:
    examiner = one_slot()
    examiner.arriving(1000, np.full((10, 1), 5.0), 1)
    examiner.arriving(1600, np.zeros((0, 1)), 17)
    assert rate_of(examiner) == 20.0


@pytest.mark.parametrize("seed", range(5))
def test_the_peak_is_the_highest_recent_rate(seed: int) -> None:
    random = np.random.default_rng(seed)
    slots, memory_ms = 3, 5000.0
    examiner = Examiner(STEP, slots, 500, memory_ms=memory_ms)
    arrived, rates = np.zeros(slots), []
    for m in range(1, 301):
        arrived += random.poisson(random.exponential(5.0, slots))
        examiner.sample(m, arrived, arrived, np.zeros(slots), [A], WORK)
        vitals = examiner.vitals(m * 100.0, [A], np.zeros(slots))
        rates.append(vitals.rate)
        least = np.max(rates[-50:], axis=0)
        most = np.max(rates[-61:], axis=0)
        assert (vitals.peak_rate >= least - 1e-9).all()
        assert (vitals.peak_rate <= most + 1e-9).all()


def test_a_peak_within_a_long_epoch_is_seen() -> None:
    examiner = one_slot(window_ms=200)
    counts = np.zeros((40, 1))
    counts[20:22] = 50.0
    examiner.arriving(4000, counts, 1)
    vitals = examiner.vitals(4000, HOSTS, [0])
    assert (vitals.rate.item(), vitals.peak_rate.item()) == (0.0, 500.0)


def test_service_rates_are_smoothed_and_kept_apart() -> None:
    examiner = Examiner(STEP, 2, 1000)
    owner = [0, 1]
    examiner.sample(1, [0, 0], [0, 0], owner, HOSTS, {A: Work(0, 0.0), B: Work(50, 100.0)})
    rates = examiner.vitals(100, HOSTS, owner).service_rate
    assert math.isnan(rates[0])
    assert rates[1] == 500.0
    examiner.sample(2, [0, 0], [0, 0], owner, HOSTS, {A: Work(20, 10.0), B: Work(90, 100.0)})
    assert examiner.vitals(200, HOSTS, owner).service_rate.tolist() == [2000.0, 550.0]
    examiner.sample(3, [0, 0], [0, 0], owner, HOSTS, {A: Work(0, 0.0), B: Work(0, 0.0)})
    assert examiner.vitals(300, HOSTS, owner).service_rate.tolist() == [2000.0, 550.0]
    assert examiner.vitals(300, HOSTS[::-1], owner).service_rate.tolist() == [550.0, 2000.0]


def test_a_record_that_takes_several_time_slots_is_not_quick() -> None:
    examiner = one_slot()
    for m in range(1, 800):
        done = m % 4 == 0
        examiner.sample(m, [m], [m // 4], [0], [A], {A: Work(int(done), 100.0)})
    assert examiner.vitals(79_900, [A], [0]).service_rate.item() == pytest.approx(2.5)


def test_latency_counts_for_the_owner_at_completion() -> None:
    examiner = one_slot()
    examiner.sample(1, [10], [0], [0], HOSTS, WORK)
    examiner.sample(2, [10], [4], [0], HOSTS, WORK)
    examiner.sample(5, [10], [10], [1], HOSTS, WORK)
    vitals = examiner.vitals(500, HOSTS, [1])
    assert vitals.latency_ms[0] == pytest.approx((4 * 100 + 2 * 200 + 2 * 300) / 8)
    assert vitals.latency_ms[1] == pytest.approx(400)
    assert vitals.slot_latency_ms[0] == pytest.approx((400 + 400 + 600 + 800) / 10)


def test_a_window_forgets() -> None:
    examiner = one_slot(window_ms=300)
    examiner.sample(1, [10], [0], [0], HOSTS, WORK)
    examiner.sample(2, [20], [10], [0], HOSTS, WORK)
    for m in (3, 4):
        examiner.sample(m, [20], [10], [0], HOSTS, WORK)
        assert examiner.vitals(m * 100, HOSTS, [0]).latency_ms[0] == 100.0
    examiner.sample(5, [20], [10], [0], HOSTS, WORK)
    vitals = examiner.vitals(500, HOSTS, [0])
    assert np.isnan(vitals.latency_ms).all()
    assert np.isnan(vitals.slot_latency_ms).all()
    assert vitals.backlog.tolist() == [10.0]


def test_a_shorter_window_applies_at_once_and_a_longer_one_fills_up() -> None:
    examiner = one_slot(window_ms=500)
    feed(examiner, 1, 200)
    examiner.sample(201, [2100], [2000], [0], HOSTS, WORK)
    assert rate_of(examiner) == pytest.approx(280.0)
    examiner.window_ms = 100
    examiner.sample(202, [2110], [2000], [0], HOSTS, WORK)
    assert rate_of(examiner) == pytest.approx(100.0)
    examiner.window_ms = 60_000
    examiner.sample(203, [2120], [2000], [0], HOSTS, WORK)
    vitals = examiner.vitals(20_300, HOSTS, [0])
    assert vitals.latency_ms[0] == 0.0
    assert 100.0 < vitals.rate.item() < 120.0, "the window reaches as far back as counts are known"
    for m in range(204, 1000):
        examiner.sample(m, [2120 + 10 * (m - 203)], [2000], [0], HOSTS, WORK)
    assert rate_of(examiner) == pytest.approx(100.0)


def test_measured_latencies_are_averaged() -> None:
    examiner = Examiner(STEP, 2, 1000)
    examiner.sample(1, [10, 10], [4, 2], [0, 1], HOSTS, WORK, [40.0, -1])
    examiner.sample(2, [10, 10], [6, 4], [0, 1], HOSTS, WORK, [80.0, np.nan])
    vitals = examiner.vitals(200, HOSTS, [0, 1])
    assert vitals.measured_ms[0] == pytest.approx(120 / 6)
    assert math.isnan(vitals.measured_ms[1])


def test_a_new_host_inherits_nothing_from_a_forgotten_one() -> None:
    examiner = one_slot()
    examiner.sample(1, [10], [10], [0], [A], WORK, [50.0])
    examiner.sample(2, [-1], [-1], [0], [A], WORK)
    examiner.forget_host(A)
    examiner.sample(3, [10], [10], [0], [B], WORK)
    vitals = examiner.vitals(300, [B, A], [0])
    assert np.isnan(vitals.latency_ms).all()
    assert np.isnan(vitals.measured_ms).all()
    assert vitals.service_rate.tolist() == pytest.approx([1000.0, math.nan], nan_ok=True)
    examiner.forget_host(HostId("never seen"))


def test_slots_without_an_owner_count_for_no_host() -> None:
    examiner = Examiner(STEP, 2, 1000)
    examiner.sample(1, [10, 10], [10, 10], [-1, 0], [A], WORK)
    vitals = examiner.vitals(100, [A], [-1, 0])
    assert vitals.slot_latency_ms.tolist() == [0.0, 0.0]
    assert vitals.valid


def test_many_hosts_may_come_and_go() -> None:
    examiner = Examiner(STEP, 100, 1000)
    for m in range(1, 30):
        hosts = [HostId(f"sum/{n}") for n in range(m, m + 100)]
        work = {host: Work(1, 1.0) for host in hosts}
        counts = np.full(100, m)
        examiner.sample(m, counts, counts, np.arange(100), hosts, work)
        vitals = examiner.vitals(m * 100, hosts, np.arange(100))
        assert vitals.valid
        assert vitals.latency_ms.tolist() == [0.0] * 100
        examiner.forget_host(hosts[0])
    assert examiner._numbers.many == 100


def test_vitals_do_not_change_afterwards() -> None:
    examiner, owner = one_slot(), np.array([0])
    feed(examiner, 1, 3)
    vitals = examiner.vitals(300, HOSTS, owner)
    before = [np.copy(a) for a in (vitals.rate, vitals.backlog, vitals.peak_rate, vitals.owner)]
    examiner.sample(4, [900], [30], [0], HOSTS, WORK)
    examiner.vitals(400, HOSTS, owner)
    owner[0] = 1
    after = (vitals.rate, vitals.backlog, vitals.peak_rate, vitals.owner)
    assert all((a == b).all() for a, b in zip(after, before, strict=True))


def test_epochs_of_one_time_slot_add_up_and_a_clock_may_step_back() -> None:
    examiner = one_slot()
    examiner.arriving(1000, [[4.0]], 10)
    examiner.epoch(1010, [4.0], [0], HOSTS, WORK)
    examiner.arriving(1015, [[1.0]], 11)
    examiner.epoch(1020, [1.0], [0], HOSTS, WORK)
    assert examiner.vitals(1020, HOSTS, [0]).latency_ms[0] == pytest.approx((4 * 60 + 0) / 5)
    examiner.arriving(1001, [[1.0]], 11)
    examiner.epoch(1005, [1.0], [0], HOSTS, WORK)
    vitals = examiner.vitals(1005, HOSTS, [0])
    assert vitals.latency_ms[0] == pytest.approx(4 * 60 / 6)
    assert vitals.rate.item() == pytest.approx(6 / 0.115)


def test_an_epoch_longer_than_the_window_counts_when_it_is_done() -> None:
    examiner = one_slot()
    examiner.arriving(1000, np.ones((10, 1)), 1)
    examiner.epoch(60_000, [10.0], [0], HOSTS, WORK)
    assert examiner.vitals(60_000, HOSTS, [0], 250.0).latency_ms[0] == pytest.approx(59_500)


def test_times_may_be_counted_since_1970() -> None:
    results = []
    for start in (0, 18_000_000_000):
        examiner = Examiner(STEP, 2, 1000)
        for m in range(start + 3, start + 40, 3):
            counts = np.full((3, 2), 4.0)
            done_ms, horizon_ms = m * 100 + 250.0, m * 100.0
            examiner.arriving(horizon_ms, counts, m - 2)
            examiner.epoch(done_ms, [12, 12], [0, 1], HOSTS, WORK)
        vitals = examiner.vitals(done_ms, HOSTS, [0, 1])
        results.append(
            (vitals.rate.tolist(), vitals.latency_ms.tolist(), vitals.peak_rate.tolist())
        )
    assert results[0] == ([40.0, 40.0], [400.0, 400.0], [40.0, 40.0])
    assert results[1] == results[0]


def test_a_backlog_of_days_is_accepted() -> None:
    examiner = one_slot()
    day = 864_000
    examiner.arriving(3 * day * 100.0, [[7.0]], 1)
    examiner.arriving(3 * day * 100.0, [[1.0]], 3 * day)
    examiner.epoch(3 * day * 100.0, [8.0], [0], HOSTS, WORK)
    vitals = examiner.vitals(3 * day * 100.0, HOSTS, [0])
    assert vitals.rate.item() == 1.0
    # The age is ten minutes at most, less the time slot in which they end.
    assert vitals.latency_ms[0] == pytest.approx((7 * 599_950 + 50) / 8)


def test_unread_records_count_as_backlog() -> None:
    examiner = Examiner(STEP, 2, 1000)
    before = examiner.vitals(200, [A], [0, 0]).backlog
    examiner.unread = np.array([300.0, 100.0])
    assert (examiner.vitals(200, [A], [0, 0]).backlog - before).tolist() == [300.0, 100.0]
