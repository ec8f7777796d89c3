"""Counts over a sliding window: records that arrived and completed in the last time slots.

Both histories keep running totals by time slot, in a ring of rows. The counts of a window are the difference
of two rows, however long the window is. The unit of time is the time slot, numbered by its end: time slot m
is the time from m - 1 to m.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from penstock.control.examine.fifo import CRUMB, resized
from penstock.control.examine.vitals import Floats, Ints

_SPARE_ROWS = 64
"""Rows beyond the window, so that rates within an epoch of this many time slots are known."""


_ROUNDING = 1e-9


def time_slot(time: float) -> int:
    """The number of the time slot that contains `time`. Ignores rounding errors.

    >>> time_slot(6.7), time_slot(7.0), time_slot(0.1 * 3 * 10)
    (7, 7, 3)
    """
    return math.ceil(time - _ROUNDING)


def _rows(window: float) -> int:
    return math.ceil(window) + _SPARE_ROWS


def _longer(ring: Floats, window: float, newest: int) -> Floats:
    """The ring with rows for a longer window. The rows before its oldest one count nothing."""
    old = newest - len(ring) + 1
    larger = np.empty((_rows(window), *ring.shape[1:]))
    larger[:] = ring[old % len(ring)]
    kept = np.arange(old, newest + 1)
    larger[kept % len(larger)] = ring[kept % len(ring)]
    return larger


class ArrivalRates:
    """Arrival rates of each slot: the present rate, and the recent peak.

    >>> arrivals = ArrivalRates(slots=1, window=2.0, memory=20, bin=4)
    >>> arrivals.add(1, np.array([[6.0], [2.0], [1.0]]), horizon=3.0)
    >>> arrivals.rate.tolist(), arrivals.peak.tolist()  # records per time slot
    ([1.5], [6.0])
    """

    def __init__(self, slots: int, window: float, memory: int, bin: int) -> None:
        self.rate = np.zeros(slots)
        """Records per time slot over the window that ends at the horizon, by slot."""
        self.peak = np.zeros(slots)
        """Highest `rate` in the last `memory` time slots, or in up to `bin` more, by slot."""
        self._bin = bin
        self._bins = np.zeros((-(-memory // bin) + 1, slots))
        self._window = window
        self._ring = np.zeros((_rows(window), slots))
        self._begin: int | None = None
        """The time slot after which arrivals are known; None before the first ones."""
        self._newest, self._horizon = 0, 0.0

    def set_window(self, window: float) -> None:
        """Set the length of the window in time slots. A longer window fills up over time."""
        self._window = window
        if _rows(window) > len(self._ring):
            if self._begin is not None:
                self._begin = max(self._begin, self._newest - len(self._ring) + 1)
            self._ring = _longer(self._ring, window, self._newest)

    def add(self, first: int, counts: Floats, horizon: float) -> None:
        """Add `counts[j, slot]` records that arrived in time slot `first + j`.

        `horizon` is the time until which all arrivals are known. It never decreases.
        """
        newest = time_slot(horizon)
        if self._begin is None:
            self._begin = self._newest = min(first, newest) - 1
        _add_arrivals(
            self._ring, self._begin, self._newest, newest, horizon, self._window, first, counts,
            self._bins, self._bin, self.rate, self.peak,
        )  # fmt: skip
        self._newest, self._horizon = newest, horizon

    def newest(self, time_slots: int) -> tuple[Floats, float]:
        """Rates over the newest `time_slots` time slots, and the length of that time.

        The length may be shorter, since the last time slot may not be over. Returns `rate` and the window
        while fewer time slots are known.
        """
        before = self._newest - time_slots
        if self._begin is None or before < self._begin or time_slots >= self._window:
            return self.rate, self._window
        length = self._horizon - before
        ring = self._ring
        arrived = ring[self._newest % len(ring)] - ring[before % len(ring)]
        return arrived / length, length


class Completions:
    """Completed records and the sums of their latencies, for each slot and each host.

    >>> done = Completions(slots=2, hosts=1, window=10.0)
    >>> done.add(5, np.array([0, 0]), np.array([3.0, 1.0]), np.array([6.0, 0.0]), None)
    >>> slots, hosts, measured = done.averages(7, np.array([0]))
    >>> slots.tolist(), hosts.tolist(), measured.tolist()
    ([2.0, 0.0], [1.5], [nan])
    """

    def __init__(self, slots: int, hosts: int, window: float) -> None:
        self._window = window
        self._slots = np.zeros((_rows(window), 2, slots))
        """Totals by time slot and slot: records, and their latencies."""
        self._hosts = np.zeros((_rows(window), 4, hosts))
        """Totals by time slot and host: records and their latencies, measured records and their measured
        latencies."""
        self._newest = 0
        self._not_measured = np.full(slots, np.nan)

    def resize(self, slots: int) -> None:
        """Change the number of slots. New ones have completed nothing."""
        self._slots = resized(self._slots, slots)
        self._not_measured = np.full(slots, np.nan)

    def set_window(self, window: float) -> None:
        """Set the length of the window in time slots. A longer window fills up over time."""
        self._window = window
        if _rows(window) > len(self._slots):
            self._slots = _longer(self._slots, window, self._newest)
            self._hosts = _longer(self._hosts, window, self._newest)

    @property
    def hosts(self) -> int:
        """Number of hosts that there is room for. It can be raised but not lowered."""
        return self._hosts.shape[2]

    @hosts.setter
    def hosts(self, hosts: int) -> None:
        more = np.zeros((len(self._hosts), 4, hosts))
        more[:, :, : self.hosts] = self._hosts
        self._hosts = more

    def forget(self, host: int) -> None:
        """Clear the totals of this host, since another host may get its number."""
        self._hosts[:, :, host] = 0.0

    def add(
        self,
        m: int,
        owner: Ints,
        counts: Floats,
        latency: Floats,
        measured: Floats | None,
        slot_latency: Floats | None = None,
    ) -> None:
        """Add the records that completed in time slot `m`. `m` never decreases.

        `latency` and `measured` are sums per slot; `measured` is negative or nan where it is
        missing. `slot_latency`, if it is known, counts for slots instead of `latency`, which then counts for
        hosts only. `owner` is the number of each slot's host, or -1.
        """
        _add_completed(
            self._slots, self._hosts, self._newest, m, owner, counts, latency,
            latency if slot_latency is None else slot_latency,
            self._not_measured if measured is None else measured,
        )  # fmt: skip
        self._newest = m

    def averages(self, now: int, hosts: Ints) -> tuple[Floats, Floats, Floats]:
        """Mean latencies over the window until `now`: per slot, per host, and measured per host."""
        slot, latency, measured = (
            np.empty(self._slots.shape[2]), np.empty(len(hosts)), np.empty(len(hosts)),
        )  # fmt: skip
        # Totals have not changed since the newest time slot.
        low = max(now - time_slot(self._window), self._newest - len(self._slots) + 1)
        low = min(low, self._newest)
        _read_completed(self._slots, self._hosts, low, self._newest, hosts, slot, latency, measured)
        return slot, latency, measured


# -- compiled loops over the rings: the row of time slot m has index m % rows


@njit(cache=True, nogil=True)
def _add_arrivals(  # type: ignore[no-untyped-def]
    ring, begin, old, newest, horizon, window, first, counts, bins, bin, rate, peak
):
    """Add arrivals, and record the rates at the end of each new time slot."""
    rows = len(ring)
    _advance(ring, old, newest)
    _spread(ring, first, counts, newest)
    # A rate is known if the start of its window is still in the ring.
    kept = newest - rows + 1
    start = old + 1 if begin >= kept else max(old + 1, math.ceil(kept + window))
    for m in range(start, newest):
        _set_rates(ring, begin, float(m), window, rate)
        _remember(bins, bin, old, m, rate, peak)
        old = m
    _set_rates(ring, begin, horizon, window, rate)
    _remember(bins, bin, old, newest, rate, peak)


@njit(cache=True, nogil=True)
def _advance(ring, old, newest):  # type: ignore[no-untyped-def]
    """Copy the totals of time slot `old` to the time slots after it, up to `newest`."""
    rows = len(ring)
    for m in range(max(old, newest - rows) + 1, newest + 1):
        ring[m % rows] = ring[old % rows]


@njit(cache=True, nogil=True)
def _spread(ring, first, counts, newest):  # type: ignore[no-untyped-def]
    """Add `counts[j]` to the totals of time slot `first + j` and all later ones.

    Counts older than all rows need not be added, because only differences of rows are used.
    """
    rows, slots = ring.shape
    start = max(first, newest - rows + 1)
    for k in range(slots):
        total = 0.0
        for m in range(min(start, newest), newest):
            if m - first < len(counts):
                total += counts[m - first, k]
            ring[m % rows, k] += total
        for j in range(max(newest - first, 0), len(counts)):
            total += counts[j, k]
        ring[newest % rows, k] += total


@njit(cache=True, nogil=True)
def _set_rates(ring, begin, at, window, rate):  # type: ignore[no-untyped-def]
    """Set `rate` to records per time slot over (at - window, at], or over the known part of it.

    If the window begins within a time slot, the arrivals of that time slot are assumed to be even.
    """
    rows, slots = ring.shape
    low = max(at - max(window, 1.0), float(begin))
    span = max(at - low, 1.0)
    m = math.floor(low)
    part = low - m
    before, after, last = ring[m % rows], ring[(m + 1) % rows], ring[math.ceil(at) % rows]
    for k in range(slots):
        rate[k] = (last[k] - before[k] - part * (after[k] - before[k])) / span


@njit(cache=True, nogil=True)
def _remember(bins, bin, old, m, rate, peak):  # type: ignore[no-untyped-def]
    """Update the highest rates, by bins of time. A new bin replaces the oldest one."""
    many, slots = bins.shape
    last, now = old // bin, m // bin
    for b in range(max(last, now - many) + 1, now + 1):
        bins[b % many] = 0.0
    if now > last:
        for k in range(slots):
            peak[k] = 0.0
        for b in range(many):
            for k in range(slots):
                peak[k] = max(peak[k], bins[b, k])
    best = bins[now % many]
    for k in range(slots):
        best[k] = max(best[k], rate[k])
        peak[k] = max(peak[k], rate[k])


@njit(cache=True, nogil=True)
def _add_completed(  # type: ignore[no-untyped-def]
    slots, hosts, old, m, owner, counts, latency, slot_latency, measured
):
    """Add the records completed in time slot `m` to the totals of their slots and hosts."""
    _advance(slots, old, m)
    _advance(hosts, old, m)
    slot, host = slots[m % len(slots)], hosts[m % len(hosts)]
    for k in range(len(counts)):
        slot[0, k] += counts[k]
        slot[1, k] += slot_latency[k]
        i = owner[k]
        if i >= 0:
            host[0, i] += counts[k]
            host[1, i] += latency[k]
            if measured[k] >= 0:
                host[2, i] += counts[k]
                host[3, i] += measured[k]


@njit(cache=True, nogil=True)
def _read_completed(slots, hosts, low, newest, numbers, slot, latency, measured):  # type: ignore[no-untyped-def]
    """Mean latencies of records completed after time slot `low`, for each slot and these hosts."""
    now, then = slots[newest % len(slots)], slots[low % len(slots)]
    for k in range(len(slot)):
        slot[k] = _average(now, then, 0, k)
    now, then = hosts[newest % len(hosts)], hosts[low % len(hosts)]
    for n in range(len(numbers)):
        latency[n] = _average(now, then, 0, numbers[n])
        measured[n] = _average(now, then, 2, numbers[n])


@njit(cache=True, nogil=True)
def _average(now, then, row, i):  # type: ignore[no-untyped-def]
    count = now[row, i] - then[row, i]
    return (now[row + 1, i] - then[row + 1, i]) / count if count > CRUMB else np.nan
