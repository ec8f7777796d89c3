"""Compiled loops of the simulated data plane: queues of records, as a fluid.

What arrives for a slot within a time slot is a *cohort*, spread evenly over that time slot. A host
works on its slots first come, first served: on the oldest cohort first, and on all its slots that
have some of it at once, in proportion. Records are not told apart, so a cohort may be done by a
fraction. Of each slot only two numbers are kept: its oldest cohort that is not done (`head`), and
how much of it is left. They go with the slot when it moves, and with them all that waits.
"""

from __future__ import annotations

import numpy as np
from numba import njit

LATENCY_BINS = 200
_PER_OCTAVE = 8
_NEXT_TO_NOTHING = 1e-9
"""Part of a record that is left of a cohort for want of precision."""


@njit(cache=True, nogil=True)
def advance(  # type: ignore[no-untyped-def]
    counts, age_ms, first, last, delta_ms, bins_ms,
    head, left, before, owner, service_rate, paused_ms,
    completed, latency, carried, worked, histogram, all_arrived, all_completed,
):  # fmt: skip
    """Let the time slots from `first` to before `last` pass.

    `counts[m, slot]` arrive in time slot m, each having `age_ms[m]` behind it from steps before this
    one. What is done goes to `completed`, the sum of its latencies in this step to `latency`, and
    of the ages that it came with to `carried`, all by [m, slot]; to `worked` by host; and to
    `histogram`, one row for each `bins_ms`, by latency with age. A host does nothing before its
    `paused_ms`. `before` is what arrived earlier than the head of each slot: whole numbers, so that
    no error adds up however long it runs. The last two are counted up, by slot.
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
    """One host in time slot m: the records that it did, as a fraction may have it."""
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
            # What is left of a cohort is its end; of that, the first part is done now.
            behind = left[slot] / counts[cohort, slot]
            # A fluid is half done when a record that is being done is half done: it is done half
            # a service time later, and a whole one later where it does not have to wait.
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
    """A cohort that is still arriving, by a host that comes to it `late_ms` after it began.

    Part x of it arrives at x * delta and cannot be done before, nor before late + x * needs. Tells
    the part that is done in the time slot; the part at which the host has caught up and records no
    longer wait (0: it has not); and how long the host is then busy: till the end.
    """
    if needs_ms < delta_ms and late_ms < delta_ms - needs_ms:
        # At least a trace of it, so that 0 can stand for never.
        return 1.0, max(late_ms / (delta_ms - needs_ms), 1e-12), delta_ms - late_ms
    return min(1.0, (delta_ms - late_ms) / needs_ms), 0.0, delta_ms - late_ms


@njit(cache=True, nogil=True)
def _oldest(head, left, mine, m):  # type: ignore[no-untyped-def]
    """The oldest cohort that these slots have something of, and how much."""
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
    """Go on to the first cohort that holds something, or to the one that is yet to come."""
    while left[slot] <= 0:
        head[slot] += 1
        if head[slot] > m:
            return
        left[slot] = counts[head[slot], slot]


@njit(cache=True, nogil=True)
def _done(counts, head, left, before, slot, now):  # type: ignore[no-untyped-def]
    """All that the slot has completed, at the beginning of time slot `now`."""
    if head[slot] >= now:
        return np.float64(before[slot])
    return before[slot] + (counts[head[slot], slot] - left[slot])


@njit(cache=True, nogil=True)
def _by_owner(owner, hosts):  # type: ignore[no-untyped-def]
    """All slots in the order of their hosts, and where in it each host's slots begin."""
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
    """Which bin of a histogram a latency belongs to: each is 9 % wider than the one before it."""
    return min(LATENCY_BINS - 1, int(_PER_OCTAVE * np.log2(1.0 + latency_ms)))


@njit(cache=True, nogil=True)
def quantiles(histogram, share):  # type: ignore[no-untyped-def]
    """The latency that this share of each row is within; nan for an empty row."""
    found = np.full(len(histogram), np.nan)
    for i in range(len(histogram)):
        wanted = histogram[i].sum() * share
        if wanted <= 0:
            continue
        passed = 0.0
        for b in range(LATENCY_BINS):
            if passed + histogram[i, b] >= wanted and histogram[i, b] > 0:
                part = (wanted - passed) / histogram[i, b]
                found[i] = 2.0 ** ((b + part) / _PER_OCTAVE) - 1.0
                break
            passed += histogram[i, b]
    return found
