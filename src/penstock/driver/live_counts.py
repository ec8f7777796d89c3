"""Counts of a live flow's couriers, summed over couriers and runs into samples for control. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from penstock.control.examine.fifo import resized
from penstock.control.examine.vitals import Floats, Work
from penstock.model import HostId
from penstock.plan.steps import KeyedStep
from penstock.wire.live import CourierCounts, StepCounts

_STALE_MS = 2_500.0
"""Milliseconds after which counts are stale. A courier sends them at least once per second."""


@dataclass(frozen=True, eq=False)
class StepSample:
    """Counts of one step since the flow began. Arrays are by slot."""

    arrived: Floats
    """Number of records that have arrived."""
    completed: Floats
    """Number of records that hosts have completed."""
    measured_ms: Floats
    """Sum of the latencies of records that completed since the previous sample, in milliseconds."""
    work: Mapping[HostId, Work]
    """Work of each host since the previous sample."""
    waiting_ms: Mapping[HostId, float]
    """Age of each host's oldest unfinished record, in milliseconds."""


class _StepSum:
    """Counts of one step, over earlier runs and the current one."""

    def __init__(self, slots: int) -> None:
        self._base = np.zeros(slots)
        """Records of earlier runs by slot. All count as completed, since unfinished ones are read again."""
        self._arrived = np.zeros(slots)
        """Records that have arrived, including an estimate of those that are not sent yet."""
        self._completed, self._latency_ms = np.zeros(slots), np.zeros(slots)
        self._sent, self._total = np.zeros(slots), 0.0
        self._work: dict[str, tuple[int, int]] = {}
        """Host -> records and microseconds of work in this run that samples have reported."""

    def begin(self, slots: int) -> None:
        """Begin a run, in which couriers count from 0 again. Slots may have been split since the last one."""
        self._base = self._completed = resized(self._arrived, slots)
        self._arrived = self._base.copy()
        self._latency_ms = np.zeros_like(self._base)
        self._sent, self._total = self._base.copy(), float(self._base.sum())
        self._work = {}

    @property
    def slots(self) -> int:
        return len(self._base)

    def sample(self, counts: Iterable[StepCounts]) -> StepSample:
        """The sum of all couriers' counts, as one sample."""
        parts = list(counts)
        sent = self._base + sum((part.arrived for part in parts), np.zeros_like(self._base))
        self._note_arrivals(sent, sum(part.waiting for part in parts))
        completed = self._base + sum((part.completed for part in parts), np.zeros_like(self._base))
        latency_ms = sum((part.latency_us for part in parts), np.zeros_like(self._base)) / 1000
        measured_ms = np.maximum(latency_ms - self._latency_ms, 0.0)
        self._completed, self._latency_ms = completed, latency_ms
        waiting: dict[HostId, float] = {}
        for part in parts:
            for host, age_us in part.oldest_us.items():
                waiting[HostId(host)] = max(age_us / 1000, waiting.get(HostId(host), 0.0))
        return StepSample(
            self._arrived.copy(), completed, measured_ms, self._work_of(parts), waiting
        )

    def _note_arrivals(self, sent: Floats, waiting: int) -> None:
        """Estimate the slots of waiting rows by the rows that were sent last. Once rows are sent, their slots
        are known. An estimate that was too high stays until the real count has reached it."""
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
        for part in parts:
            done.update(part.done)
            for host, busy_us in part.busy_us.items():
                # A host reports its total work to each courier, to some later than to others.
                busy[host] = max(busy_us, busy.get(host, 0))
        work = {}
        for host in busy:
            records_before, busy_before = self._work.get(host, (0, 0))
            records, useful_us = done[host] - records_before, busy[host] - busy_before
            work[HostId(host)] = Work(max(records, 0), max(useful_us, 0) / 1000)
            self._work[host] = max(done[host], records_before), max(busy[host], busy_before)
        return work


class LiveCounts:
    """Counts of all steps of a flow. Used by one thread at a time.

    >>> from penstock.operators.aggregate.aggregates import AggregatePlan, count
    >>> import pyarrow as pa
    >>> plan = AggregatePlan(pa.schema([("user", pa.int64())]), ["user"], {"n": count()})
    >>> counts = LiveCounts([KeyedStep("clicks", 2, plan)])
    >>> counts.begin(run=0, couriers=1)
    >>> counts.sample(0.0) is None
    True
    >>> clicks = StepCounts("clicks", np.array([4, 0]), np.array([3, 0]), np.array([9e3, 0.0]), {"a": 3},
    ...                   {"a": 500}, {"a": 2_000})
    >>> counts.note(CourierCounts(0, 0, (clicks,)), 0.0)
    >>> counts.backlog
    1
    >>> sample = counts.sample(100.0)["clicks"]
    >>> sample.measured_ms.tolist(), sample.work, sample.waiting_ms
    ([9.0, 0.0], {'a': Work(completed=3, useful_ms=0.5, cpu=None)}, {'a': 2.0})
    """

    def __init__(self, steps: Iterable[KeyedStep]) -> None:
        self._steps = {step.id: _StepSum(step.slots) for step in steps}
        self._run = self._couriers = -1
        self._newest: dict[int, tuple[float, CourierCounts]] = {}
        self.waiting_ms = 0.0
        """Age of the oldest unfinished record at the last sample, in milliseconds."""

    def begin(self, run: int, couriers: int, slots: Mapping[str, int] | None = None) -> None:
        """Begin a run with this number of couriers, and of slots of each step."""
        self._run, self._couriers, self._newest, self.waiting_ms = run, couriers, {}, 0.0
        for name, step in self._steps.items():
            step.begin(step.slots if slots is None else slots[name])

    def note(self, counts: CourierCounts, now_ms: float) -> None:
        """Take in the counts of one courier."""
        if counts.run == self._run:
            self._newest[counts.courier] = now_ms, counts

    @property
    def backlog(self) -> int:
        """Number of records that have arrived, as far as couriers know, and that no host has applied. Any
        thread may ask."""
        parts = [part for _, counts in list(self._newest.values()) for part in counts.steps]
        return sum(int((p.arrived - p.completed).sum()) + p.waiting for p in parts)

    def sample(self, now_ms: float) -> dict[str, StepSample] | None:
        """All counts by step; None if a courier's counts are missing or stale."""
        if len(self._newest) < self._couriers:
            return None
        if any(now_ms - at_ms > _STALE_MS for at_ms, _ in self._newest.values()):
            return None
        by_step: dict[str, list[StepCounts]] = {step: [] for step in self._steps}
        for _, counts in self._newest.values():
            for part in counts.steps:
                by_step[part.step].append(part)
        samples = {step: self._steps[step].sample(parts) for step, parts in by_step.items()}
        ages = (age_ms for sample in samples.values() for age_ms in sample.waiting_ms.values())
        self.waiting_ms = max(ages, default=0.0)
        return samples
