"""Memory of a policy: recent peaks of arrivals, and numbers of hosts that were too few."""

from __future__ import annotations

import numpy as np
from numba import njit

from penstock.control.examine.vitals import Floats, Ints

_BINS = 32
_MUCH_MORE = 1.2
_LONGEST_MS = 24 * 3_600_000.0


class Peaks:
    """Remembers the rates of all slots for some time, to compute the peak that a host would have had.

    The sum of the slots' own peaks would be too high, since slots seldom peak together. So the time is
    divided into 32 parts, and for each part the rates of all slots at its highest total are kept.

    >>> peaks = Peaks(memory_ms=3_000)
    >>> for now, rates in enumerate(([5.0, 1.0, 1.0], [1.0, 5.0, 2.0], [1.0, 1.0, 1.0], [2.0, 1.0, 1.0])):
    ...     peaks.note(1_000.0 * now, np.array(rates))
    >>> peaks.ready, peaks.per_host(np.array([0, 0, 1]), 2).tolist()
    (True, [6.0, 2.0])
    """

    def __init__(self, memory_ms: float) -> None:
        self.memory_ms = memory_ms
        self._rates: Floats = np.empty((0, 0))
        self._total = np.empty(0)
        self._bin = np.empty(0, dtype=np.int64)
        self._since_ms = self._now_ms = -np.inf

    def note(self, now_ms: float, rate: Floats) -> None:
        """Add the rates of all slots at `now_ms`, which is later than in the last call.

        After a long gap, or with another number of slots, the memory is cleared first.
        """
        gap_ms = now_ms - self._now_ms
        if not 0 <= gap_ms <= self.memory_ms / 2 or len(rate) != self._rates.shape[1]:
            self._rates = np.zeros((_BINS, len(rate)))
            self._total = np.zeros(_BINS)
            self._bin = np.full(_BINS, -1)
            self._since_ms = now_ms
        self._now_ms = now_ms
        number = int(now_ms * _BINS / self.memory_ms)
        _note(self._rates, self._total, self._bin, number, rate)

    @property
    def ready(self) -> bool:
        """Whether rates of the last `memory_ms` milliseconds are known."""
        return self._now_ms - self._since_ms >= self.memory_ms

    def per_host(self, owner: Ints, hosts: int) -> Floats:
        """Peak arrivals per host, for its present slots together, in records per second."""
        number = int(self._now_ms * _BINS / self.memory_ms)
        peaks: Floats = _per_host(self._rates, self._bin, number - _BINS, owner, hosts)
        return peaks


class Lessons:
    """Remembers numbers of hosts that were too few, with the rate of the whole step at that time.

    >>> lessons = Lessons(memory_ms=300_000)
    >>> lessons.note(0.0, hosts=3, rate=900.0)
    >>> lessons.forbid(60_000.0, 3, 950.0), lessons.forbid(60_000.0, 3, 850.0)
    (True, False)
    >>> lessons.forbid(60_000.0, 4, 950.0), lessons.forbid(360_000.0, 3, 950.0)
    (False, False)
    """

    def __init__(self, memory_ms: float) -> None:
        self.memory_ms = memory_ms
        self._too_few: dict[int, tuple[float, float, float]] = {}
        """By number of hosts: the time until which to remember, for how long, and the lowest such rate."""

    def note(self, now_ms: float, hosts: int, rate: float) -> None:
        """Remember that `hosts` are not enough for this rate.

        If that was forgotten only recently, it is remembered for twice as long.
        """
        until_ms, for_ms, known = self._too_few.get(hosts, (-np.inf, self.memory_ms, np.inf))
        if now_ms < until_ms:
            rate = min(known, rate)
        else:
            again = now_ms < until_ms + for_ms and rate <= _MUCH_MORE * known
            for_ms = min(2 * for_ms, _LONGEST_MS) if again else self.memory_ms
        self._too_few[hosts] = (now_ms + for_ms, for_ms, rate)

    def forbid(self, now_ms: float, hosts: int, rate: float) -> bool:
        """Whether this many hosts or more were too few for this rate or a lower one."""
        return any(
            hosts <= few and rate >= much and now_ms < until_ms
            for few, (until_ms, _, much) in self._too_few.items()
        )


@njit(cache=True, nogil=True)
def _note(rates, total, bins, number, rate):  # type: ignore[no-untyped-def]
    place = number % len(bins)
    amount = rate.sum()
    if bins[place] != number or amount > total[place]:
        bins[place] = number
        total[place] = amount
        rates[place] = rate


@njit(cache=True, nogil=True)
def _per_host(rates, bins, oldest, owner, hosts):  # type: ignore[no-untyped-def]
    peak = np.zeros(hosts)
    for place in range(len(bins)):
        if bins[place] > oldest:
            arriving = np.zeros(hosts)
            for slot in range(len(owner)):
                arriving[owner[slot]] += rates[place, slot]
            peak = np.maximum(peak, arriving)
    return peak
