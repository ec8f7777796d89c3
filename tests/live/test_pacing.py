"""Pacing of chunks: cut at once while rows are rare, and fewer and larger as the rate rises."""

from __future__ import annotations

import pytest

from penstock.live.pacing import Pacer


def paced(
    rate: float, cost_s: float, per_row_s: float, seconds: float = 1.0
) -> tuple[float, float]:
    """Mean pause and mean wait of a row in the steady state, in milliseconds."""
    pacer, now, number, last = Pacer(longest_s=0.020), 0.0, 0, 0.0
    done: list[tuple[float, int]] = []
    pauses, waits = [], []
    while now < seconds:
        now += 1 / min(rate, 10_000)
        while done and done[0][0] <= now:
            at, which = done.pop(0)
            pacer.done(which, at)
        if pacer.next_at() <= now:
            rows = int((now - last) * rate)
            if rows < 1:
                continue
            # hosts work on one chunk after the other
            begins = max(now, done[-1][0] if done else 0.0)
            done.append((begins + cost_s + rows * per_row_s, number))
            pacer.cut(number, rows, now)
            if now > seconds / 2:
                pauses.append(pacer.pause_s * 1000)
                waits.append((now - last) / 2 * 1000)
            number, last = number + 1, now
    return sum(pauses) / len(pauses), sum(waits) / len(waits)


@pytest.mark.parametrize(
    ("rate", "low_ms", "high_ms"),
    [(100, 0, 0.01), (1_000, 0, 0.5), (10_000, 2, 4), (50_000, 2, 5), (1_000_000, 5, 20)],
)
def test_the_pause_follows_the_rate_and_the_cost_of_chunks(
    rate: float, low_ms: float, high_ms: float
) -> None:
    pause_ms, wait_ms = paced(rate, cost_s=0.0013, per_row_s=0.3e-6)
    assert low_ms <= pause_ms <= high_ms
    assert wait_ms <= 12


def test_expensive_chunks_are_cut_less_often_up_to_a_limit() -> None:
    cheap, dear, dearest = (paced(20_000, cost, 0)[0] for cost in (0.001, 0.003, 0.050))
    assert cheap < 3 < dear < dearest <= 20


def test_two_chunks_are_in_flight_at_most() -> None:
    pacer = Pacer(longest_s=0.020)
    pacer.cut(0, 1, now=1.0)
    assert pacer.free(1.0)
    pacer.cut(1, 1, now=1.0)
    assert not pacer.free(1.001)
    pacer.done(1, now=1.001)
    assert pacer.free(1.001)


def test_a_chunk_that_a_host_holds_back_does_not_hold_back_all_others() -> None:
    pacer, now = Pacer(longest_s=0.020), 1.0
    for number in range(50):
        assert now <= pacer.next_at() or pacer.free(now)
        now = max(now, pacer.next_at())
        pacer.cut(number, 1, now)  # no chunk is ever applied
    assert 0.1 < now - 1.0 < 50 * 0.020
    for number in range(50):
        pacer.done(number, now + 5)
    assert pacer.cost_s <= 0.020


def test_rows_after_a_quiet_time_are_not_waited_for() -> None:
    pacer = Pacer(longest_s=0.020)
    for number in range(100):
        pacer.cut(number, 100, now=number * 0.005)
        pacer.done(number, now=number * 0.005 + 0.002)
    assert pacer.pause_s > 0.003
    assert pacer.next_at() < 60
    pacer.cut(100, 1, now=60.0)
    pacer.done(100, now=60.002)
    assert pacer.pause_s == 0


def test_chunks_that_wait_on_a_busy_machine_are_not_cut_less_often_for_that() -> None:
    pacer = Pacer(longest_s=0.020)
    for number in range(200):
        now = number * 0.020
        pacer.cut(number, 200, now)
        pacer.done(number, now + 0.015, work_s=0.0014)
    assert pacer.pause_s == pytest.approx(0.0028, abs=1e-4)
