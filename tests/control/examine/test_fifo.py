"""Waiting records: none is lost, and each has its true age."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.control.examine.fifo import Fifo


def row(*counts: float) -> np.ndarray:
    return np.array([counts], dtype=np.float64)


def test_the_oldest_go_first() -> None:
    fifo = Fifo(2)
    fifo.arrive(1, np.array([[2.0, 0.0], [0.0, 0.0], [3.0, 4.0]]), newest=3)
    assert fifo.complete(5, np.array([3.0, 1.0])).tolist() == [2 * 4 + 1 * 2, 2.0]
    assert fifo.complete(6, np.array([2.0, 3.0])).tolist() == [2 * 3, 3 * 3]
    assert fifo.backlog().tolist() == [0.0, 0.0]


def test_records_out_of_order_have_their_true_age() -> None:
    fifo = Fifo(1)
    fifo.arrive(10, row(5), newest=10)
    fifo.complete(10, np.array([3.0]))
    fifo.arrive(4, row(1), newest=11)
    assert fifo.complete(12, np.array([2.0])).tolist() == [(12 - 4) + (12 - 10)]


def test_records_of_a_later_time_slot_count_in_the_present_one() -> None:
    fifo = Fifo(1)
    fifo.arrive(9, row(1), newest=5)
    assert fifo.complete(7, np.array([1.0])).tolist() == [2.0]


def test_a_latency_is_never_negative() -> None:
    fifo = Fifo(1)
    fifo.arrive(5, row(1), newest=5)
    assert fifo.complete(4.5, np.array([1.0])).tolist() == [0.0]


def test_old_records_keep_their_age_while_the_table_grows() -> None:
    fifo = Fifo(1)
    for m in range(1, 1001):
        fifo.arrive(m, row(1), newest=m)
    ages = [fifo.complete(1000, np.array([1.0])).item() for _ in range(1000)]
    assert ages == list(range(999, -1, -1))


def test_beyond_the_longest_time_records_are_kept_and_their_age_is_clamped() -> None:
    fifo = Fifo(2, most_rows=100)
    fifo.arrive(1, row(7, 0), newest=1)
    fifo.arrive(50, row(0, 1), newest=50)
    fifo.arrive(120, row(0, 1), newest=120)
    assert fifo.complete(120, np.array([7.0, 2.0])).tolist() == [7 * 99, 70 + 0]
    fifo.arrive(130, row(3, 0), newest=130)
    fifo.arrive(9_000, row(1, 1), newest=9_000)
    assert fifo.complete(9_000, np.array([4.0, 1.0])).tolist() == [3 * 99, 0.0]
    assert fifo.backlog().tolist() == [0.0, 0.0]


def test_the_table_is_reused_for_the_time_slots_that_follow() -> None:
    fifo = Fifo(1)
    for m in range(1, 1000):
        fifo.arrive(m, row(2), newest=m)
        assert fifo.complete(m, np.array([2.0])).tolist() == [0.0]
    assert len(fifo._waiting) == 64


def test_completions_before_known_arrivals_are_set_off() -> None:
    fifo = Fifo(1)
    fifo.arrive(1, row(2), newest=1)
    assert fifo.complete(3, np.array([5.0])).tolist() == [2 * 2]
    assert fifo.backlog().tolist() == [0.0]
    fifo.arrive(4, row(4), newest=4)
    assert fifo.backlog().tolist() == [1.0]
    assert fifo.complete(6, np.array([1.0])).tolist() == [2.0]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), share=st.floats(0.2, 1.0))
def test_fractions_leave_no_crumbs(seed: int, share: float) -> None:
    """However counts are divided into fractions, all records complete and no old ones are left."""
    random = np.random.default_rng(seed)
    fifo = Fifo(3)
    left = np.zeros(3)
    for m in range(1, 300):
        counts = random.exponential(5.0, 3) * (random.random(3) < 0.7)
        fifo.arrive(m, counts[np.newaxis], newest=m)
        left += counts
        gone = left * (1.0 if m % 20 == 0 else share * random.random())
        fifo.complete(m, gone)
        left -= gone
        assert fifo.backlog() == pytest.approx(left, abs=1e-6)
        if m % 20 == 0:
            assert fifo.backlog().tolist() == [0.0, 0.0, 0.0]
    assert len(fifo._waiting) == 64
