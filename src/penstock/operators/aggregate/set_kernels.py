"""Compiled loops of exact sets: an index of (set, value) with the conditions that hold for it.

The index is open addressing: `sets` (int32, 0 = free), `values` (int64) and `bits` (uint8) by place.
"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True, inline="always")
def _place(number, value, mask):  # type: ignore[no-untyped-def]
    mixed = np.uint64(value) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= np.uint64(number) * np.uint64(0xC2B2AE3D27D4EB4F)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(32)
    return mixed & mask


@njit(cache=True, nogil=True)
def put(  # type: ignore[no-untyped-def]
    numbers, new_values, new_bits, start, sets, values, bits, used, limit, added, news
):
    """Put in pairs from `start` on, until `limit` places are used.

    `added` and `news` take the rows of pairs that brought something new, and which bits those are.
    Returns the row it stopped at, the places used and how many were added.
    """
    mask = np.uint64(len(sets) - 1)
    count = 0
    for i in range(start, len(numbers)):
        if used >= limit:
            return i, used, count
        number, value, some = numbers[i], new_values[i], new_bits[i]
        at = _place(number, value, mask)
        while sets[at] != 0 and (sets[at] != number or values[at] != value):
            at = (at + np.uint64(1)) & mask
        if sets[at] == 0:
            sets[at] = number
            values[at] = value
            bits[at] = 0
            used += 1
        new = some & ~bits[at]
        if new:
            bits[at] |= new
            added[count] = i
            news[count] = new
            count += 1
    return len(numbers), used, count


@njit(cache=True, nogil=True)
def rehash(sets, values, bits, new_sets, new_values, new_bits):  # type: ignore[no-untyped-def]
    mask = np.uint64(len(new_sets) - 1)
    for i in range(len(sets)):
        if sets[i] == 0:
            continue
        at = _place(sets[i], values[i], mask)
        while new_sets[at] != 0:
            at = (at + np.uint64(1)) & mask
        new_sets[at] = sets[i]
        new_values[at] = values[i]
        new_bits[at] = bits[i]


@njit(cache=True, nogil=True)
def stale(entries, cells, known, numbers, first, out):  # type: ignore[no-untyped-def]
    """The entries whose cell is not the one that the index knows; they get new set numbers, from
    `first` on. Returns how many."""
    count = 0
    for i in range(len(entries)):
        entry = entries[i]
        same = cells[entry, 0] == known[entry, 0] and cells[entry, 1] == known[entry, 1]
        if numbers[entry] == 0 or not same:
            known[entry, 0] = cells[entry, 0]
            known[entry, 1] = cells[entry, 1]
            numbers[entry] = first + count
            out[count] = entry
            count += 1
    return count


@njit(cache=True, nogil=True)
def learn(entries, cells, known):  # type: ignore[no-untyped-def]
    """The index knows these entries as they are now."""
    for i in range(len(entries)):
        known[entries[i], 0] = cells[entries[i], 0]
        known[entries[i], 1] = cells[entries[i], 1]
