"""Arrival times of records, from the reports of couriers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.control.examine.arrivals import arrivals_of
from penstock.wire.report import Seen


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(9_000, 10_500), min_size=1, max_size=5),
            st.lists(st.integers(0, 40), min_size=3, max_size=3),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_no_record_is_lost_and_none_arrives_after_the_epoch_began(
    tasks: list[tuple[list[int], list[int]]],
) -> None:
    seen = [
        Seen(len(times), tuple(times), (1,) * len(times), loads={"sum": np.array(load)})
        for times, load in tasks
    ]
    arrivals = arrivals_of("sum", 3, seen, delta_ms=100, since_ms=9_500, started_ms=10_000)
    assert arrivals.by_slot == pytest.approx(np.sum([load for _, load in tasks], axis=0))
    assert arrivals.first_m + len(arrivals.counts) - 1 <= 100
    assert arrivals.horizon_ms <= 10_000
    assert (arrivals.waited_ms >= 0).all()


def test_each_task_has_its_own_times() -> None:
    early = Seen(2, (1_050,), (2,), loads={"sum": np.array([2, 0])})
    late = Seen(1, (1_250,), (1,), loads={"sum": np.array([0, 1])})
    arrivals = arrivals_of("sum", 2, [early, late], delta_ms=100, since_ms=1_000, started_ms=1_300)
    assert arrivals.first_m == 11
    assert arrivals.counts.tolist() == [[2, 0], [0, 0], [0, 1]]
    assert arrivals.waited_ms.tolist() == [500, 50]


def test_rows_without_a_time_are_spread_since_the_last_epoch() -> None:
    seen = [Seen(10, loads={"sum": np.array([10])})]
    arrivals = arrivals_of("sum", 1, seen, delta_ms=100, since_ms=2_000, started_ms=3_000)
    assert arrivals.counts[:, 0] == pytest.approx([1.0] * 10)
    assert (arrivals.first_m, arrivals.horizon_ms) == (21, 3_000)
    assert arrivals.age_ms == pytest.approx(500)


def test_an_epoch_without_rows() -> None:
    arrivals = arrivals_of("sum", 2, [Seen(0)], delta_ms=100, since_ms=2_000, started_ms=3_000)
    assert (arrivals.counts.shape, arrivals.by_slot.tolist(), arrivals.horizon_ms) == (
        (0, 2),
        [0, 0],
        3_000,
    )
