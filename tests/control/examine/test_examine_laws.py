"""Estimated latencies are within one time slot of the exact ones of single records."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.control.examine.examiner import Examiner
from penstock.control.examine.vitals import Vitals, Work
from penstock.model import HostId, StepId

HOSTS = (HostId("sum/0"), HostId("sum/1"))
WORK = {host: Work(10, 10.0) for host in HOSTS}

times = st.floats(0.0, 400.0, allow_nan=False)
records = st.lists(st.tuples(times, times), max_size=30)
"""Milliseconds from one arrival to the next, and the service time of a record in milliseconds."""


@dataclass
class Exact:
    """All completed records: the time slot of completion, slot, host and latency of each."""

    delta_ms: float
    rows: list[tuple[int, int, int, float]] = field(default_factory=list)

    def add(self, slot: int, host: int, arrived_ms: float, done_ms: float) -> None:
        time_slot = math.ceil(done_ms / self.delta_ms)
        self.rows.append((time_slot, slot, host, done_ms - arrived_ms))

    def check(self, vitals: Vitals, now: int, window: int, error_ms: float) -> None:
        """Check mean latencies per slot and host to within `error_ms`, and measured ones exactly."""
        recent = [row for row in self.rows if now - window < row[0] <= now]
        for column, estimates in ((1, vitals.slot_latency_ms), (2, vitals.latency_ms)):
            for n, estimate in enumerate(estimates):
                latencies = [row[3] for row in recent if row[column] == n]
                if latencies:
                    assert estimate == pytest.approx(np.mean(latencies), abs=error_ms + 1e-6)
                else:
                    assert math.isnan(estimate)
        for n, measured in enumerate(vitals.measured_ms):
            latencies = [row[3] for row in recent if row[2] == n]
            exactly = np.mean(latencies) if latencies else math.nan
            assert measured == pytest.approx(exactly, nan_ok=True)


def in_order(gaps: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """Arrival and completion times of the records of a slot, in order."""
    arrived, done, now, free = [], [], 0.0, 0.0
    for gap, service in gaps:
        now += gap + 1.0
        free = max(now, free) + service
        arrived.append(now)
        done.append(free)
    return arrived, done


@settings(max_examples=100, deadline=None)
@given(
    slots=st.lists(records, min_size=1, max_size=3),
    delta_ms=st.sampled_from([10.0, 33.3, 100.0]),
    window_ms=st.sampled_from([100.0, 1000.0, 2500.0]),
    seed=st.integers(0, 99),
)
def test_samples(
    slots: list[list[tuple[float, float]]], delta_ms: float, window_ms: float, seed: int
) -> None:
    random = np.random.default_rng(seed)
    lives = [in_order(gaps) for gaps in slots]
    last = max((done[-1] for _, done in lives if done), default=0.0)
    many = math.ceil(last / delta_ms) + 2
    owners = random.integers(0, 2, (many + 1, len(slots)))
    exact = Exact(delta_ms)
    measured = np.zeros((many + 1, len(slots)))
    for slot, (arrived, done) in enumerate(lives):
        for begin, end in zip(arrived, done, strict=True):
            m = math.ceil(end / delta_ms)
            exact.add(slot, owners[m, slot], begin, end)
            measured[m, slot] += end - begin
    examiner = Examiner(StepId("sum"), len(slots), window_ms, delta_ms)
    for m in range(1, many):
        arrivals, completions = (
            np.array(
                [bisect_right(life[n], m, key=lambda t: math.ceil(t / delta_ms)) for life in lives]
            )
            for n in (0, 1)
        )
        examiner.sample(m, arrivals, completions, owners[m], HOSTS, WORK, measured[m])
        vitals = examiner.vitals(m * delta_ms, HOSTS, owners[m])
        exact.check(vitals, m, math.ceil(window_ms / delta_ms), delta_ms)
        assert vitals.backlog.tolist() == (arrivals - completions).tolist()


@settings(max_examples=100, deadline=None)
@given(
    arrivals=st.lists(st.tuples(times, st.integers(0, 2), st.booleans()), max_size=60),
    lengths=st.lists(st.floats(1.0, 700.0), min_size=1, max_size=8),
    delta_ms=st.sampled_from([10.0, 33.3, 100.0]),
    early=st.booleans(),
    seed=st.integers(0, 99),
)
def test_epochs(
    arrivals: list[tuple[float, int, bool]],
    lengths: list[float],
    delta_ms: float,
    early: bool,
    seed: int,
) -> None:
    """Epochs without pauses. Some records are read only two epochs later, so they are out of order."""
    random = np.random.default_rng(seed)
    now, waiting = 0.0, []
    for gap, slot, late in arrivals:
        now += gap + 1.0
        waiting.append((now, slot, late))
    examiner, exact = Examiner(StepId("sum"), 3, 1000.0, delta_ms), Exact(delta_ms)
    horizon = done = 0.0
    for length in lengths:
        before, horizon = horizon, done
        done = horizon + length
        read = [r for r in waiting if r[0] <= (before if r[2] else horizon)]
        waiting = [r for r in waiting if r not in read]
        owner = random.integers(0, 2, 3)
        completed, measured = np.zeros(3), np.zeros(3)
        first = min((math.ceil(arrived / delta_ms) for arrived, _, _ in read), default=1)
        newest = max((math.ceil(arrived / delta_ms) for arrived, _, _ in read), default=1)
        counts = np.zeros((newest - first + 1, 3))
        for arrived, slot, _ in read:
            counts[math.ceil(arrived / delta_ms) - first, slot] += 1
            completed[slot] += 1
            measured[slot] += done - arrived
            exact.add(slot, owner[slot], arrived, done)
        examiner.arriving(horizon, counts, first)
        if early:
            assert examiner.vitals(horizon, HOSTS, owner).backlog.tolist() == completed.tolist()
        examiner.epoch(done, completed, owner, HOSTS, WORK, measured)
        vitals = examiner.vitals(done, HOSTS, owner)
        window = math.ceil(1000.0 / delta_ms)
        # The time of completion is known exactly; only the time of arrival is not.
        exact.check(vitals, math.ceil(done / delta_ms), window, delta_ms / 2)
        assert vitals.valid
        assert vitals.backlog.tolist() == [0.0, 0.0, 0.0]
