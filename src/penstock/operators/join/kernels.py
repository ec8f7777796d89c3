"""Compiled loops of joins. Times and numbers are int64."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def in_order(values, ends):  # type: ignore[no-untyped-def]
    """Whether values ascend within each group; group g is ends[g]:ends[g + 1]."""
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
    """Positions of all (left, right) pairs with first <= time <= last, group by group.

    Group g has the left rows lefts[g]:lefts[g + 1], sorted by first, and the right rows
    rights[g]:rights[g + 1], sorted by time. The cost is linear in the number of rows and pairs. Times
    ascend: a left row becomes active at its first time, and is dropped for good after its last.
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
    """Set the due times of entries to those of their new rows, if these are earlier. Entries with more than
    `few` rows keep a due time that they have: scanning many rows for one of them does not pay."""
    for i in range(len(entries)):
        entry = entries[i]
        if due[entry] == 0 or (stamps[i] < due[entry] and counts[i] <= few):
            due[entry] = stamps[i]


@njit(cache=True, nogil=True)
def _nth(values, n):  # type: ignore[no-untyped-def]
    """The n-th smallest value, from 0 (quickselect). Reorders the values."""
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
    """The time at which to scan each group of rows again; 0 for a group without rows.

    With `exact`, that is when its first row falls due. Otherwise it is when a quarter of its rows do, so
    that each scan removes many rows. Owners are ascending.
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
    """Cancel each new row with the newest equal row (the same number) of the opposite weight.

    Rows from `stored` on are new. Returns a mask (bool) of the cancelled rows. A new row that cancels another
    row takes over its flag.
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
