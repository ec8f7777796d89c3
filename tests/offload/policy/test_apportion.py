"""Burst workers shared out among couriers."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.control.examine.vitals import Floats
from penstock.offload.policy.shares import apportioned

rows = st.lists(st.integers(0, 10_000), min_size=1, max_size=40).map(
    lambda rows: np.array(rows, np.float64)
)


@given(functions=st.integers(1, 60), rows=rows)
def test_burst_workers_are_split_by_rows(functions: int, rows: Floats) -> None:
    each = apportioned(functions, rows)
    assert functions <= sum(each) <= functions + len(rows)
    exact = functions * (rows / rows.sum() if rows.any() else np.ones(len(rows)) / len(rows))
    for got, wanted in zip(each, exact.tolist(), strict=True):
        assert max(1, np.floor(wanted - 1e-6)) <= got <= max(1, np.ceil(wanted + 1e-6))


@given(functions=st.integers(1, 60), count=st.integers(1, 40), together=st.integers(1, 50))
def test_couriers_at_work_together_have_no_more_than_all_burst_workers(
    functions: int, count: int, together: int
) -> None:
    each = apportioned(functions, np.ones(count), together)
    at_work = min(count, together)
    assert functions - at_work < sum(each[:at_work]) <= max(functions, at_work)


@given(rows=rows, together=st.integers(1, 50), at_most=st.integers(1, 50))
def test_no_more_are_requested_than_there_are(rows: Floats, together: int, at_most: int) -> None:
    """All couriers have equal work, and any of them may be at work at the same time."""
    each = apportioned(at_most, np.ones(len(rows)), together, at_most)
    at_work = min(len(rows), together)
    assert np.mean(each) * at_work <= max(at_most, 1) + 1e-6
    assert any(each)
    by_rows = apportioned(at_most, rows, None, at_most)
    if at_most < len(rows):
        assert sum(by_rows) == at_most
        left_out = rows[np.array(by_rows) == 0].max(initial=0)
        assert rows[np.array(by_rows) > 0].min() >= left_out or not rows.any()
