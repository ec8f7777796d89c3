"""Samples of running counts, one for each time slot. Some counts may be missing.

A sample with a missing count is held back until a later sample has that count. The missing counts between
are then interpolated linearly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numba import njit

from penstock.control.examine.fifo import CRUMB, resized
from penstock.control.examine.vitals import Floats, Ints
from penstock.errors import ProtocolError
from penstock.model import StepId

_MOST_HELD = 256
"""Maximum number of samples held back. Beyond it, every second one is dropped."""

_NO_SLOTS: Ints = np.arange(0)


class Increase(NamedTuple):
    """Records that arrived and completed per slot in time slot `m`, or in a few time slots up to it."""

    m: int
    arrived: Floats
    completed: Floats
    owner: Ints
    measured_ms: Floats | None


class _Sample(NamedTuple):
    m: int
    counts: Floats
    owner: Ints
    measured_ms: Floats | None


class Samples:
    """Turns running counts into increases per time slot, in order and without gaps.

    >>> samples = Samples(StepId("sum"), slots=1, most=100)
    >>> def add(m, arrived, completed):
    ...     rises = samples.add(m, np.array([arrived]), np.array([completed]), np.array([0]), None)
    ...     return [(rise.m, rise.arrived.item(), rise.completed.item()) for rise in rises]
    >>> add(1, 10.0, 4.0), add(2, -1.0, 6.0), samples.missing.tolist()
    ([(1, 10.0, 4.0)], [], [0])
    >>> add(3, 30.0, 8.0), samples.missing.tolist()
    ([(2, 10.0, 2.0), (3, 10.0, 2.0)], [])
    """

    def __init__(self, step: StepId, slots: int, most: int) -> None:
        self.missing: Ints = np.arange(slots)
        """Slots without a count in the last sample. Before the first sample, all slots."""
        self._step, self._most = step, most
        self._latest = np.zeros((2, slots))
        """Last known counts of arrived and of completed records, by slot."""
        self._returned = _Sample(0, self._latest, np.full(slots, -1), None)
        """The last sample whose increases have all been returned."""
        self._held: list[_Sample] = []
        self._last: int | None = None
        self._new = np.zeros((2, slots))

    def add(
        self, m: int, arrived: Floats, completed: Floats, owner: Ints, measured_ms: Floats | None
    ) -> Sequence[Increase]:
        """Add the counts at the end of time slot `m`; negative or nan where they are missing.

        Counts start at the beginning of the first sample's time slot. Returns the increases that have
        become known. The next call overwrites their arrays.
        """
        if self._last is not None and m <= self._last:
            raise ProtocolError(
                f"step {self._step} was sampled at time slot {m} after time slot {self._last}",
                hint="sample each time slot once, in order",
            )
        missing = _compare(arrived, completed, self._latest, self._new)
        if missing < 0:
            raise ProtocolError(
                f"a count of slot {-1 - missing} of step {self._step} decreased in time slot {m}",
                hint="pass the counts since the start: they only grow",
            )
        before = m - 1 if self._last is None else self._last
        self._last = m
        if missing or self._held or m > before + 1:
            return self._bridge(before, m, np.stack((arrived, completed)), owner, measured_ms)
        self._latest[0], self._latest[1] = arrived, completed
        self._returned = _Sample(m, self._latest, owner, None)
        self.missing = _NO_SLOTS
        return (Increase(m, self._new[0], self._new[1], owner, measured_ms),)

    def resize(self, slots: int) -> None:
        """Change the number of slots. Samples that were held back are given up; counts go on."""
        self._latest = resized(self._latest, slots)
        self._new = np.zeros((2, slots))
        self._returned = _Sample(self._last or 0, self._latest, np.full(slots, -1), None)
        self._held, self.missing = [], _NO_SLOTS

    def disown(self, host: int) -> None:
        """Forget the host of this number. Its slots have no owner in samples that are held back."""
        for sample in (self._returned, *self._held):
            sample.owner[sample.owner == host] = -1

    def _bridge(
        self, before: int, m: int, counts: Floats, owner: Ints, measured_ms: Floats | None
    ) -> list[Increase]:
        if not self._held:
            self._returned = _Sample(before, self._latest.copy(), self._returned.owner, None)
        counts[~(counts >= 0)] = np.nan
        unknown = np.isnan(counts)
        self.missing = np.flatnonzero(unknown.any(axis=0))
        self._latest = np.where(unknown, self._latest, counts)
        if measured_ms is not None:
            # A sum of latencies is of no use without the number of records in it.
            measured_ms = np.where(unknown[1], np.nan, measured_ms)
        self._held.append(_Sample(m, counts, owner, measured_ms))
        if len(self._held) > _MOST_HELD:
            self._held = self._held[::-2][::-1]
        return self._increases()

    def _increases(self) -> list[Increase]:
        samples = [self._returned, *self._held]
        counts = np.stack([sample.counts for sample in samples])
        times = np.array([sample.m for sample in samples])
        known = _interpolate(times, counts)
        increases: list[Increase] = []
        for n in range(1, known + 1):
            earlier, sample = samples[n - 1], samples[n]
            rise = (counts[n] - counts[n - 1]) / (sample.m - earlier.m)
            # After a pause of hours, the oldest part is returned as a single increase.
            start = max(earlier.m + 1, sample.m - self._most)
            for m in range(start, sample.m):
                arrived, completed = rise * (m - earlier.m if m == start else 1)
                increases.append(Increase(m, arrived, completed, earlier.owner, None))
            increases.append(Increase(sample.m, rise[0], rise[1], sample.owner, sample.measured_ms))
        last = samples[known]
        self._returned = _Sample(last.m, counts[known], last.owner, None)
        del self._held[:known]
        return increases


@njit(cache=True, nogil=True)
def _compare(arrived, completed, latest, new):  # type: ignore[no-untyped-def]
    """Set `new` to the increase since `latest`. Returns the number of missing counts.

    Returns -1 - slot if a count is smaller than before.
    """
    missing = 0
    for k in range(len(arrived)):
        new[0, k] = arrived[k] - latest[0, k]
        new[1, k] = completed[k] - latest[1, k]
        for n, count in enumerate((arrived[k], completed[k])):
            if not count >= 0:
                missing += 1
            elif new[n, k] < -CRUMB:
                return -1 - k
    return missing


@njit(cache=True, nogil=True)
def _interpolate(times, counts):  # type: ignore[no-untyped-def]
    """Interpolate between known counts. Returns the index of the last complete sample."""
    samples, kinds, slots = counts.shape
    known = samples - 1
    for kind in range(kinds):
        for k in range(slots):
            last = 0
            for n in range(1, samples):
                count = counts[n, kind, k]
                if np.isnan(count):
                    continue
                base = counts[last, kind, k]
                for between in range(last + 1, n):
                    part = (times[between] - times[last]) / (times[n] - times[last])
                    counts[between, kind, k] = base + part * (count - base)
                last = n
            known = min(known, last)
    return known
