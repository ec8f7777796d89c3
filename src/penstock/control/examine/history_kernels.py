"""Compiled loops of the histories: rings of running totals, the row of time slot m at m % rows."""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from penstock.control.examine.fifo import CRUMB


@njit(cache=True, nogil=True)
def add_arrivals(  # type: ignore[no-untyped-def]
    ring, begin, old, newest, horizon, window, first, counts, bins, bin, rate, peak
):
    """Add arrivals, and note the rates at the ends of all time slots that are new."""
    rows = len(ring)
    _advance(ring, old, newest)
    _spread(ring, first, counts, newest)
    # A rate can be told where the start of its window is still in the ring.
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
    """Nothing is known to have happened yet in the time slots after `old`."""
    rows = len(ring)
    for m in range(max(old, newest - rows) + 1, newest + 1):
        ring[m % rows] = ring[old % rows]


@njit(cache=True, nogil=True)
def _spread(ring, first, counts, newest):  # type: ignore[no-untyped-def]
    """Add `counts[j]` to the totals of time slot `first + j` and all later ones.

    Of what is older than all rows nothing need be added: only differences of rows are ever used.
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
    """Records per time slot over (at - window, at]; over less where less is known.

    What arrived in a time slot is taken to be spread evenly where the window begins within it.
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
    """Keep the highest rates by bins of time; a new bin takes the place of the oldest."""
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
def add_completed(slots, hosts, old, m, owner, counts, latency, measured):  # type: ignore[no-untyped-def]
    """Add what completed in time slot `m` to the totals of slots and of the hosts that own them."""
    _advance(slots, old, m)
    _advance(hosts, old, m)
    slot, host = slots[m % len(slots)], hosts[m % len(hosts)]
    for k in range(len(counts)):
        slot[0, k] += counts[k]
        slot[1, k] += latency[k]
        i = owner[k]
        if i >= 0:
            host[0, i] += counts[k]
            host[1, i] += latency[k]
            if measured[k] >= 0:
                host[2, i] += counts[k]
                host[3, i] += measured[k]


@njit(cache=True, nogil=True)
def read_completed(slots, hosts, low, newest, numbers, slot, latency, measured):  # type: ignore[no-untyped-def]
    """Averages of what completed after time slot `low`, for each slot and these hosts."""
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
