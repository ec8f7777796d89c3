"""Compiled loops of the simulated data plane: queues of records, as a fluid.

The records that arrive for a slot within a time slot are a *cohort*, spread evenly over that time slot. A
host serves its slots first come, first served: the oldest cohort first, and all slots that have records of it
at once, in proportion. Single records are not distinguished, so a cohort may be done by a fraction. The state
of a slot is only its oldest unfinished cohort (`head`) and how much of it is left. It moves with the slot,
and so do all waiting records.
"""

from __future__ import annotations

import numpy as np
from numba import njit

LATENCY_BINS = 200
_PER_OCTAVE = 8
_NEXT_TO_NOTHING = 1e-9
"""Fraction of a record below which the rest of a cohort is a rounding error."""


@njit(cache=True, nogil=True)
def advance(  # type: ignore[no-untyped-def]
    counts, age_ms, first, last, delta_ms, bins_ms,
    head, left, before, owner, service_rate, paused_ms,
    completed, latency, carried, worked, histogram, all_arrived, all_completed,
):  # fmt: skip
    """Simulate the time slots from `first` to before `last`.

    `counts[m, slot]` records arrive in time slot m, each with an age of `age_ms[m]` from the steps before
    this one. The results by [m, slot] are `completed`, the number of completed records, `latency`, the sum of
    their latencies in this step, and `carried`, the sum of the ages they arrived with. `worked` counts
    completed records by host. `histogram` counts them by latency including age, with one row for each
    `bins_ms`. A host does nothing before its `paused_ms`. `before` is the number of records that arrived
    earlier than the head of each slot; it is a whole number, so that rounding errors do not add up.
    `all_arrived` and `all_completed` are running totals by slot.
    """
    slots, hosts = len(head), len(service_rate)
    order, starts = _by_owner(owner, hosts)
    for m in range(first, last):
        for slot in range(slots):
            all_arrived[slot] += counts[m, slot]
            if head[slot] == m:
                left[slot] = counts[m, slot]
                _skip_empty(counts, head, left, slot, m)
        row = histogram[int(m * delta_ms / bins_ms)]
        for host in range(hosts):
            mine = order[starts[host] : starts[host + 1]]
            worked[host] += _serve(
                counts, age_ms, m, delta_ms, mine, head, left, before,
                service_rate[host] / 1000.0, paused_ms[host], latency, carried, row,
            )  # fmt: skip
        for slot in range(slots):
            now = _done(counts, head, left, before, slot, m + 1)
            completed[m, slot] = now - all_completed[slot]
            all_completed[slot] = now


@njit(cache=True, nogil=True)
def _serve(  # type: ignore[no-untyped-def]
    counts, age_ms, m, delta_ms, mine, head, left, before,
    per_ms, paused_ms, latency, carried, row,
):  # fmt: skip
    """Serve the slots of one host in time slot m. Returns the number of records done, with fractions."""
    start, end = m * delta_ms, (m + 1) * delta_ms
    clock, worked = max(start, paused_ms), 0.0
    while clock < end:
        cohort, waiting = _oldest(head, left, mine, m)
        if cohort > m:
            break
        if cohort < m:
            part = min(1.0, (end - clock) * per_ms / waiting)
            busy_ms, caught_up = part * waiting / per_ms, 0.0
        else:
            part, caught_up, busy_ms = _current(waiting / per_ms, clock - start, delta_ms)
        total = 0.0
        for slot in mine:
            if head[slot] != cohort:
                continue
            done = left[slot] * part
            # The end of a cohort is left; the first part of that is done now.
            behind = left[slot] / counts[cohort, slot]
            # In a fluid a record passes when its service is half done. It is done half a service
            # time later, and a whole service time later if it need not wait.
            if caught_up > 0.0:
                mean_ms = (clock - start) / 2.0 * caught_up + (1.0 - caught_up / 2.0) / per_ms
            else:
                arrived = (cohort + 1) * delta_ms - behind * delta_ms * (1.0 - part / 2.0)
                mean_ms = clock + busy_ms / 2.0 - arrived + 0.5 / per_ms
            latency[m, slot] += done * mean_ms
            carried[m, slot] += done * age_ms[cohort]
            total += done * mean_ms
            _take(counts, head, left, before, slot, part, m)
        done = waiting * part
        row[latency_bin(total / done + age_ms[cohort])] += done
        worked += done
        clock = end if part < 1.0 else min(end, clock + busy_ms)
    return worked


@njit(cache=True, nogil=True)
def _current(needs_ms, late_ms, delta_ms):  # type: ignore[no-untyped-def]
    """Serve a cohort that is still arriving, by a host that starts on it `late_ms` after it began.

    Part x of the cohort arrives at x * delta, and is done neither before that nor before late + x * needs.
    Returns the part that is done in the time slot, the part at which the host has caught up so that records
    no longer wait (0 if it has not), and the milliseconds that the host is busy.
    """
    if needs_ms < delta_ms and late_ms < delta_ms - needs_ms:
        # It is never 0, because 0 stands for "has not caught up".
        return 1.0, max(late_ms / (delta_ms - needs_ms), 1e-12), delta_ms - late_ms
    return min(1.0, (delta_ms - late_ms) / needs_ms), 0.0, delta_ms - late_ms


@njit(cache=True, nogil=True)
def _oldest(head, left, mine, m):  # type: ignore[no-untyped-def]
    """The oldest cohort with waiting records in these slots, and their number."""
    cohort, waiting = m + 1, 0.0
    for slot in mine:
        if head[slot] < cohort:
            cohort, waiting = head[slot], left[slot]
        elif head[slot] == cohort and cohort <= m:
            waiting += left[slot]
    return cohort, waiting


@njit(cache=True, nogil=True)
def _take(counts, head, left, before, slot, part, m):  # type: ignore[no-untyped-def]
    left[slot] -= left[slot] * part
    if left[slot] > _NEXT_TO_NOTHING:
        return
    before[slot] += counts[head[slot], slot]
    head[slot] += 1
    if head[slot] <= m:
        left[slot] = counts[head[slot], slot]
        _skip_empty(counts, head, left, slot, m)


@njit(cache=True, nogil=True)
def _skip_empty(counts, head, left, slot, m):  # type: ignore[no-untyped-def]
    """Move the head to the first cohort with records, or to the next one to arrive."""
    while left[slot] <= 0:
        head[slot] += 1
        if head[slot] > m:
            return
        left[slot] = counts[head[slot], slot]


@njit(cache=True, nogil=True)
def _done(counts, head, left, before, slot, now):  # type: ignore[no-untyped-def]
    """Number of records that the slot has completed at the beginning of time slot `now`."""
    if head[slot] >= now:
        return np.float64(before[slot])
    return before[slot] + (counts[head[slot], slot] - left[slot])


@njit(cache=True, nogil=True)
def _by_owner(owner, hosts):  # type: ignore[no-untyped-def]
    """All slots in the order of their hosts, and the index at which each host's slots begin."""
    starts = np.zeros(hosts + 1, np.int64)
    for slot in range(len(owner)):
        starts[owner[slot] + 1] += 1
    starts = np.cumsum(starts)
    place, order = starts.copy(), np.empty(len(owner), np.int64)
    for slot in range(len(owner)):
        order[place[owner[slot]]] = slot
        place[owner[slot]] += 1
    return order, starts


@njit(cache=True, nogil=True)
def latency_bin(latency_ms):  # type: ignore[no-untyped-def]
    """Index of the histogram bin for a latency. Each bin is 9 % wider than the one before it."""
    return min(LATENCY_BINS - 1, int(_PER_OCTAVE * np.log2(1.0 + latency_ms)))


@njit(cache=True, nogil=True)
def quantiles(histogram, share):  # type: ignore[no-untyped-def]
    """The quantile of each row: the latency that `share` of its records are within; nan if it is empty."""
    result = np.full(len(histogram), np.nan)
    for i in range(len(histogram)):
        wanted = histogram[i].sum() * share
        if wanted <= 0:
            continue
        passed = 0.0
        for b in range(LATENCY_BINS):
            if passed + histogram[i, b] >= wanted and histogram[i, b] > 0:
                part = (wanted - passed) / histogram[i, b]
                result[i] = 2.0 ** ((b + part) / _PER_OCTAVE) - 1.0
                break
            passed += histogram[i, b]
    return result
