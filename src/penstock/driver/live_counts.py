"""What the couriers of a live flow count, added up over couriers and runs: the samples of control. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from penstock.control.examine.vitals import Floats, Work
from penstock.model import HostId
from penstock.plan.steps import KeyedStep
from penstock.wire.live import CourierCounts, StepCounts

_STALE_MS = 2_500.0
"""Milliseconds after which counts say nothing about now: a courier tells of them every second at least."""


@dataclass(frozen=True, eq=False)
class StepSample:
    """Counts of one step since the flow began; arrays are by slot."""

    arrived: Floats
    completed: Floats
    measured_ms: Floats
    """Sum of the latencies of what completed since the sample before."""
    work: Mapping[HostId, Work]
    """What each host did since the sample before."""
    waiting_ms: Mapping[HostId, float]
    """Age of the oldest records that each host has not done."""


class _StepSum:
    """One step: counts of runs that are over, and of the one under way."""

    def __init__(self, slots: int) -> None:
        self._base = np.zeros(slots)
        """Records of earlier runs. All count as completed: what was under way is read again."""
        self._arrived = np.zeros(slots)
        """With those that nobody has sent yet, as far as is known."""
        self._completed, self._latency_ms = np.zeros(slots), np.zeros(slots)
        self._sent, self._total = np.zeros(slots), 0.0
        self._work: dict[str, tuple[int, int]] = {}
        """Host -> records and microseconds of this run that were told of."""

    def begin(self) -> None:
        """A run begins: couriers count from 0 again."""
        self._base = self._completed = self._arrived.copy()
        self._latency_ms = np.zeros_like(self._base)
        self._sent, self._total = self._base.copy(), float(self._base.sum())
        self._work = {}

    def sample(self, told: Iterable[StepCounts]) -> StepSample:
        """What couriers have told, as one sample."""
        parts = list(told)
        sent = self._base + sum((one.arrived for one in parts), np.zeros_like(self._base))
        self._note_arrivals(sent, sum(one.waiting for one in parts))
        completed = self._base + sum((one.completed for one in parts), np.zeros_like(self._base))
        latency_ms = sum((one.latency_us for one in parts), np.zeros_like(self._base)) / 1000
        measured_ms = np.maximum(latency_ms - self._latency_ms, 0.0)
        self._completed, self._latency_ms = completed, latency_ms
        waiting: dict[HostId, float] = {}
        for one in parts:
            for host, age_us in one.oldest_us.items():
                waiting[HostId(host)] = max(age_us / 1000, waiting.get(HostId(host), 0.0))
        return StepSample(
            self._arrived.copy(), completed, measured_ms, self._work_of(parts), waiting
        )

    def _note_arrivals(self, sent: Floats, waiting: int) -> None:
        """Rows that wait are laid to slots as those were that have been sent of late. As soon as they are
        sent it is known where they belong: a count that was too high stays until others have come so far."""
        new = sent - self._sent
        total = float(sent.sum()) + waiting
        more = max(total - max(self._total, float(sent.sum())), 0.0)
        shares = new if new.any() else sent
        if more and shares.any():
            self._arrived = self._arrived + more * shares / shares.sum()
        self._arrived = np.maximum(self._arrived, sent)
        self._sent, self._total = sent, max(total, self._total)

    def _work_of(self, parts: list[StepCounts]) -> dict[HostId, Work]:
        done: Counter[str] = Counter()
        busy: dict[str, int] = {}
        for one in parts:
            done.update(one.done)
            for host, busy_us in one.busy_us.items():
                # Each courier is told of all that a host worked, one later than the other.
                busy[host] = max(busy_us, busy.get(host, 0))
        work = {}
        for host in busy:
            records_before, busy_before = self._work.get(host, (0, 0))
            records, useful_us = done[host] - records_before, busy[host] - busy_before
            work[HostId(host)] = Work(max(records, 0), max(useful_us, 0) / 1000)
            self._work[host] = max(done[host], records_before), max(busy[host], busy_before)
        return work


class LiveCounts:
    """All steps of a flow. Used by one thread at a time.

    >>> from penstock.operators.aggregate.aggregates import AggregatePlan, count
    >>> import pyarrow as pa
    >>> plan = AggregatePlan(pa.schema([("user", pa.int64())]), ["user"], {"n": count()})
    >>> counts = LiveCounts([KeyedStep("clicks", 2, plan)])
    >>> counts.begin(run=0, couriers=1)
    >>> counts.sample(0.0) is None
    True
    >>> told = StepCounts("clicks", np.array([4, 0]), np.array([3, 0]), np.array([9e3, 0.0]), {"a": 3},
    ...                   {"a": 500}, {"a": 2_000})
    >>> counts.note(CourierCounts(0, 0, (told,)), 0.0)
    >>> sample = counts.sample(100.0)["clicks"]
    >>> sample.measured_ms.tolist(), sample.work, sample.waiting_ms
    ([9.0, 0.0], {'a': Work(completed=3, useful_ms=0.5)}, {'a': 2.0})
    """

    def __init__(self, steps: Iterable[KeyedStep]) -> None:
        self._steps = {step.id: _StepSum(step.slots) for step in steps}
        self._run = self._couriers = -1
        self._told: dict[int, tuple[float, CourierCounts]] = {}
        self.waiting_ms = 0.0
        """Age of the oldest record that no host has done, as of the last sample."""

    def begin(self, run: int, couriers: int) -> None:
        """A run begins, of so many couriers."""
        self._run, self._couriers, self._told, self.waiting_ms = run, couriers, {}, 0.0
        for step in self._steps.values():
            step.begin()

    def note(self, counts: CourierCounts, now_ms: float) -> None:
        """A courier has told what it counted."""
        if counts.run == self._run:
            self._told[counts.courier] = now_ms, counts

    def sample(self, now_ms: float) -> dict[str, StepSample] | None:
        """All counts as of now; None while a courier has not told."""
        if len(self._told) < self._couriers:
            return None
        if any(now_ms - at_ms > _STALE_MS for at_ms, _ in self._told.values()):
            return None
        by_step: dict[str, list[StepCounts]] = {step: [] for step in self._steps}
        for _, counts in self._told.values():
            for one in counts.steps:
                by_step[one.step].append(one)
        samples = {step: self._steps[step].sample(told) for step, told in by_step.items()}
        ages = (age_ms for one in samples.values() for age_ms in one.waiting_ms.values())
        self.waiting_ms = max(ages, default=0.0)
        return samples
