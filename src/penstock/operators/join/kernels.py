"""Compiled loops of joins. Times and numbers are int64."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def in_order(values, ends):  # type: ignore[no-untyped-def]
    """Whether values go up within each group; group g is ends[g]:ends[g + 1]."""
    for g in range(len(ends) - 1):
        for i in range(ends[g] + 1, ends[g + 1]):
            if values[i] < values[i - 1]:
                return False
    return True


@njit(cache=True, nogil=True)
def _more(array, used):  # type: ignore[no-untyped-def]
    out = np.empty(2 * len(array), np.int64)
    for i in range(used):
        out[i] = array[i]
    return out


@njit(cache=True, nogil=True)
def interval_pairs(firsts, lasts, lefts, times, rights):  # type: ignore[no-untyped-def]
    """Places of (left, right) with first <= time <= last, group by group.

    Group g has the left rows lefts[g]:lefts[g + 1], by first, and the right rows
    rights[g]:rights[g + 1], by time. The work is that of the rows plus the pairs found: times go
    up, left rows join the active ones at their first time and leave them for good after their last.
    """
    found_left = np.empty(len(times) + len(firsts) + 16, np.int64)
    found_right = np.empty(len(found_left), np.int64)
    used = 0
    active = np.empty(len(firsts), np.int64)
    for g in range(len(lefts) - 1):
        l0, l1, r0, r1 = lefts[g], lefts[g + 1], rights[g], rights[g + 1]
        begun, living = l0, 0
        for r in range(r0, r1):
            time = times[r]
            while begun < l1 and firsts[begun] <= time:
                active[living] = begun
                begun += 1
                living += 1
            while used + living > len(found_left):
                found_left, found_right = _more(found_left, used), _more(found_right, used)
            still = 0
            for a in range(living):
                left = active[a]
                if lasts[left] >= time:
                    active[still] = left
                    still += 1
                    found_left[used], found_right[used] = left, r
                    used += 1
            living = still
    return found_left[:used], found_right[:used]


@njit(cache=True, nogil=True)
def bring_forward(due, entries, stamps, counts, few):  # type: ignore[no-untyped-def]
    """Entries fall due when their new rows do, if that is sooner; not those of more than `few` rows
    that have a due time: it is not worth looking through many rows for one of them."""
    for i in range(len(entries)):
        entry = entries[i]
        if due[entry] == 0 or (stamps[i] < due[entry] and counts[i] <= few):
            due[entry] = stamps[i]


@njit(cache=True, nogil=True)
def _nth(values, n):  # type: ignore[no-untyped-def]
    """What stands in place n when the values are sorted (quickselect); they are moved about."""
    low, high = 0, len(values) - 1
    while low < high:
        pivot = values[(low + high) // 2]
        i, j = low, high
        while i <= j:
            while values[i] < pivot:
                i += 1
            while values[j] > pivot:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i += 1
                j -= 1
        if n <= j:
            high = j
        elif n >= i:
            low = i
        else:
            break
    return values[n]


@njit(cache=True, nogil=True)
def next_due(owner, stamps, groups, exact):  # type: ignore[no-untyped-def]
    """When to look at each group of rows again, 0 for one without rows.

    `exact`: when its first row falls due. Else when a quarter of them do, so that the work of
    looking through all is shared by many that go. Owners are ascending.
    """
    out = np.zeros(groups, np.int64)
    start = 0
    while start < len(owner):
        stop = start + 1
        while stop < len(owner) and owner[stop] == owner[start]:
            stop += 1
        nth = 0 if exact else (stop - start) // 4
        out[owner[start]] = _nth(stamps[start:stop].copy(), nth)
        start = stop
    return out


@njit(cache=True, nogil=True)
def cancel(numbers, weights, flags, groups, stored):  # type: ignore[no-untyped-def]
    """Let each row cancel the newest equal one (of the same number) of the opposite weight.

    Returns which rows are cancelled. Of those from `stored` on, that is of the new ones, a row that
    cancels another takes over its flag.
    """
    gone = np.zeros(len(numbers), np.bool_)
    top = np.full(groups, -1, np.int64)
    below = np.empty(len(numbers), np.int64)
    for i in range(len(numbers)):
        number = numbers[i]
        other = top[number]
        if i >= stored and other >= 0 and weights[other] == -weights[i]:
            gone[i] = gone[other] = True
            flags[i] = flags[other]
            top[number] = below[other]
        else:
            below[i] = other
            top[number] = i
    return gone
