"""Compiled loops of the aggregates: fold the values of rows into the entries they belong to.

Each takes the live columns of a table (or of a combiner), the entry of each row, and the rows'
values as int64 or float64, nulls taken out. `seen` says which entries hold a value at all. NaN is
the largest float, as in Spark. Kernels compile when they are first called, for the types at hand.

The last ones are of exact sets: an index of (set, value) with the conditions that hold for it, by open
addressing; `sets` (int32, 0 = free), `values` (int64) and `bits` (uint8) are by place.
"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def count_rows(counts, entries):  # type: ignore[no-untyped-def]
    for i in range(len(entries)):
        counts[np.uint64(entries[i])] += 1


@njit(cache=True, nogil=True)
def add_counts(counts, entries, values):  # type: ignore[no-untyped-def]
    for i in range(len(entries)):
        counts[np.uint64(entries[i])] += values[i]


@njit(cache=True, nogil=True)
def add(sums, seen, entries, values):  # type: ignore[no-untyped-def]
    for i in range(len(entries)):
        entry = np.uint64(entries[i])
        sums[entry] += values[i]
        seen[entry] = True


@njit(cache=True, nogil=True)
def add_exactly(sums, seen, entries, values):  # type: ignore[no-untyped-def]
    """Add integers. Returns whether all sums fit into int64: one does not if both that were added have
    another sign than it."""
    wrong = np.int64(0)
    for i in range(len(entries)):
        entry = np.uint64(entries[i])
        old, value = sums[entry], values[i]
        new = old + value
        wrong |= (old ^ new) & (value ^ new)
        sums[entry] = new
        seen[entry] = True
    return wrong >= 0


@njit(cache=True, nogil=True)
def put_first(held, seen, entries, values):  # type: ignore[no-untyped-def]
    for i in range(len(entries)):
        entry = np.uint64(entries[i])
        if not seen[entry]:
            held[entry] = values[i]
            seen[entry] = True


@njit(cache=True, nogil=True)
def put_last(held, seen, entries, values):  # type: ignore[no-untyped-def]
    for i in range(len(entries)):
        entry = np.uint64(entries[i])
        held[entry] = values[i]
        seen[entry] = True


@njit(cache=True, nogil=True)
def put_by(held, by, seen, entries, values, ranks, latest):  # type: ignore[no-untyped-def]
    """The smallest rank wins, among equal ones the one seen first; if `latest`, the largest, and the
    one seen last. A least or greatest value is its own rank."""
    for i in range(len(entries)):
        entry, rank = np.uint64(entries[i]), ranks[i]
        if latest:
            wins = rank >= by[entry] or rank != rank
        else:
            wins = rank < by[entry] or (by[entry] != by[entry] and rank == rank)
        if wins or not seen[entry]:
            held[entry] = values[i]
            by[entry] = rank
            seen[entry] = True


@njit(cache=True, nogil=True)
def best_rows(groups, ranks, count, latest):  # type: ignore[no-untyped-def]
    """The winning row of each group: the first of the smallest rank, or the last of the largest."""
    best = np.full(count, -1, np.int64)
    for i in range(len(groups)):
        held = best[groups[i]]
        if held < 0 or (ranks[i] >= ranks[held] if latest else ranks[i] < ranks[held]):
            best[groups[i]] = i
    return best


@njit(cache=True, nogil=True)
def raise_registers(registers, entries, hashes, precision):  # type: ignore[no-untyped-def]
    """HyperLogLog: the low bits of a hash choose a register, the zeros after them its value."""
    buckets = np.uint64((1 << precision) - 1)
    for i in range(len(entries)):
        bits = hashes[i] >> np.uint64(precision)
        rank = 1
        while not bits & np.uint64(1) and rank <= 64 - precision:
            bits >>= np.uint64(1)
            rank += 1
        bucket = hashes[i] & buckets
        if registers[entries[i], bucket] < rank:
            registers[entries[i], bucket] = rank


@njit(cache=True, nogil=True)
def merge_registers(registers, entries, others):  # type: ignore[no-untyped-def]
    for i in range(len(entries)):
        for bucket in range(registers.shape[1]):
            if others[i, bucket] > registers[entries[i], bucket]:
                registers[entries[i], bucket] = others[i, bucket]


@njit(cache=True, nogil=True)
def estimate(registers, entries, precision):  # type: ignore[no-untyped-def]
    """Ertl's estimator (arXiv 1702.01284, algorithm 6): no bias at any size, no tables."""
    size, most = 1 << precision, 64 - precision
    out = np.empty(len(entries), np.float64)
    counts = np.empty(most + 2, np.int64)
    for i in range(len(entries)):
        counts[:] = 0
        for bucket in range(size):
            counts[registers[entries[i], bucket]] += 1
        if counts[0] == size:
            out[i] = 0.0
            continue
        x = 1.0 - counts[most + 1] / size
        tau = 0.0
        if 0.0 < x < 1.0:
            tau, scale, before = 1.0 - x, 1.0, -1.0
            while tau != before:
                before = tau
                x = np.sqrt(x)
                scale *= 0.5
                tau -= (1.0 - x) ** 2 * scale
            tau /= 3.0
        total = size * tau
        for rank in range(most, 0, -1):
            total = 0.5 * (total + counts[rank])
        x = counts[0] / size
        sigma, scale, before = x, 1.0, -1.0
        while sigma != before:
            before = sigma
            x *= x
            sigma += x * scale
            scale += scale
        out[i] = size * size / (2.0 * np.log(2.0)) / (total + size * sigma)
    return out


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
