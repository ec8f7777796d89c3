"""Counts over a sliding window: what arrived, and what completed, in the last time slots.

Both histories keep running totals by time slot, in a ring of rows: what happened in a window is the
difference of two rows, however long the window is. Time is counted in time slots, and a time slot
is known by its end: time slot m is the time from m - 1 to m.
"""

from __future__ import annotations

import math

import numpy as np

from penstock.control.examine.history_kernels import add_arrivals, add_completed, read_completed
from penstock.control.examine.vitals import Floats, Ints

_SPARE_ROWS = 64
"""Beyond the window: the rates within an epoch of so many time slots can still be told."""


_ROUNDING = 1e-9


def time_slot(time: float) -> int:
    """The time slot that a moment lies in; rounding errors do not count.

    >>> time_slot(6.7), time_slot(7.0), time_slot(0.1 * 3 * 10)
    (7, 7, 3)
    """
    return math.ceil(time - _ROUNDING)


def _rows(window: float) -> int:
    return math.ceil(window) + _SPARE_ROWS


def _longer(ring: Floats, window: float, newest: int) -> Floats:
    """The ring with rows for a longer window; of what it has no rows for, nothing is known to be."""
    old = newest - len(ring) + 1
    larger = np.empty((_rows(window), *ring.shape[1:]))
    larger[:] = ring[old % len(ring)]
    kept = np.arange(old, newest + 1)
    larger[kept % len(larger)] = ring[kept % len(ring)]
    return larger


class ArrivalRates:
    """How many records arrived for each slot, at what rate, and at what rate at most of late.

    >>> arrivals = ArrivalRates(slots=1, window=2.0, memory=20, bin=4)
    >>> arrivals.add(1, np.array([[6.0], [2.0], [1.0]]), horizon=3.0)
    >>> arrivals.rate.tolist(), arrivals.peak.tolist()  # records per time slot
    ([1.5], [6.0])
    """

    def __init__(self, slots: int, window: float, memory: int, bin: int) -> None:
        self.rate = np.zeros(slots)
        """Per slot: records per time slot over the window that ends at the horizon."""
        self.peak = np.zeros(slots)
        """Per slot: the highest rate at any time slot's end in the last `memory` time slots, or in
        up to `bin` time slots more."""
        self._bin = bin
        self._bins = np.zeros((-(-memory // bin) + 1, slots))
        self._window = window
        self._ring = np.zeros((_rows(window), slots))
        self._begin: int | None = None
        """Arrivals are known of the time slots after this one."""
        self._newest, self._horizon = 0, 0.0

    @property
    def window(self) -> float:
        return self._window

    @window.setter
    def window(self, window: float) -> None:
        self._window = window
        if _rows(window) > len(self._ring):
            if self._begin is not None:
                self._begin = max(self._begin, self._newest - len(self._ring) + 1)
            self._ring = _longer(self._ring, window, self._newest)

    def add(self, first: int, counts: Floats, horizon: float) -> None:
        """Take in `counts[j, slot]` records that arrived in time slot `first + j`.

        All that arrived until `horizon` is known then; it never goes back.
        """
        newest = time_slot(horizon)
        if self._begin is None:
            self._begin = self._newest = min(first, newest) - 1
        add_arrivals(
            self._ring, self._begin, self._newest, newest, horizon, self._window, first, counts,
            self._bins, self._bin, self.rate, self.peak,
        )  # fmt: skip
        self._newest, self._horizon = newest, horizon

    def newest(self, time_slots: int) -> tuple[Floats, float]:
        """The rates over so many of the newest time slots, and how long that is: the last of them may
        not be over. As long as that much has not been seen, `rate` over the window."""
        before = self._newest - time_slots
        if self._begin is None or before < self._begin or time_slots >= self._window:
            return self.rate, self._window
        length = self._horizon - before
        ring = self._ring
        arrived = ring[self._newest % len(ring)] - ring[before % len(ring)]
        return arrived / length, length


class Completions:
    """How many records completed, and the sums of their latencies, for each slot and each host.

    >>> done = Completions(slots=2, hosts=1, window=10.0)
    >>> done.add(5, np.array([0, 0]), np.array([3.0, 1.0]), np.array([6.0, 0.0]), None)
    >>> slots, hosts, measured = done.averages(7, np.array([0]))
    >>> slots.tolist(), hosts.tolist(), measured.tolist()
    ([2.0, 0.0], [1.5], [nan])
    """

    def __init__(self, slots: int, hosts: int, window: float) -> None:
        self._window = window
        self._slots = np.zeros((_rows(window), 2, slots))
        """By time slot, totals per slot: records, their latencies."""
        self._hosts = np.zeros((_rows(window), 4, hosts))
        """By time slot, totals per host: records, their latencies; records that were measured,
        their measured latencies."""
        self._newest = 0
        self._not_measured = np.full(slots, np.nan)

    @property
    def window(self) -> float:
        return self._window

    @window.setter
    def window(self, window: float) -> None:
        self._window = window
        if _rows(window) > len(self._slots):
            self._slots = _longer(self._slots, window, self._newest)
            self._hosts = _longer(self._hosts, window, self._newest)

    @property
    def hosts(self) -> int:
        """How many hosts there is room for. More room can be made, never less."""
        return self._hosts.shape[2]

    @hosts.setter
    def hosts(self, hosts: int) -> None:
        more = np.zeros((len(self._hosts), 4, hosts))
        more[:, :, : self.hosts] = self._hosts
        self._hosts = more

    def forget(self, host: int) -> None:
        """What this host completed is no longer counted to it: another may get its number."""
        self._hosts[:, :, host] = 0.0

    def add(
        self, m: int, owner: Ints, counts: Floats, latency: Floats, measured: Floats | None
    ) -> None:
        """Take in what completed in time slot `m`, no earlier than the one before.

        `latency` and `measured` are sums per slot; `measured` is negative or nan where it is
        missing. `owner` is the number of each slot's host, or -1.
        """
        add_completed(
            self._slots, self._hosts, self._newest, m, owner, counts, latency,
            self._not_measured if measured is None else measured,
        )  # fmt: skip
        self._newest = m

    def averages(self, now: int, hosts: Ints) -> tuple[Floats, Floats, Floats]:
        """Average latencies over the window until `now`: per slot; per host; per host, measured."""
        slot, latency, measured = (
            np.empty(self._slots.shape[2]), np.empty(len(hosts)), np.empty(len(hosts)),
        )  # fmt: skip
        # Totals have not changed since the newest time slot.
        low = max(now - time_slot(self._window), self._newest - len(self._slots) + 1)
        low = min(low, self._newest)
        read_completed(self._slots, self._hosts, low, self._newest, hosts, slot, latency, measured)
        return slot, latency, measured
