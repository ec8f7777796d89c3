"""Compiled loops of the aggregates, which fold the values of rows into their entries.

Arguments are the state columns of a table or a combiner, the entry of each row, and the rows' values as
int64 or float64, without nulls. `seen` marks the entries that hold a value. NaN is the largest float, as
in Spark. A kernel is compiled when it is first called, for the types of its arguments.

The last kernels are for exact sets: a hash index (open addressing) of (set, value) with a bit for each
condition. `sets` (int32, 0 = free), `values` (int64) and `bits` (uint8) are indexed by hash position.
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
    """Add integers. Returns whether all sums fit into int64. A sum has overflowed if its sign differs from
    the signs of both operands."""
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
    """Keep the value with the smallest rank, and the first one among equal ranks. If `latest`, keep the
    largest rank, and the last one. For a minimum or maximum, pass the values as ranks."""
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
    """The winning row of each group: the first with the smallest rank, or the last with the largest."""
    best = np.full(count, -1, np.int64)
    for i in range(len(groups)):
        held = best[groups[i]]
        if held < 0 or (ranks[i] >= ranks[held] if latest else ranks[i] < ranks[held]):
            best[groups[i]] = i
    return best


@njit(cache=True, nogil=True)
def raise_registers(registers, entries, hashes, precision):  # type: ignore[no-untyped-def]
    """Update HyperLogLog registers: a hash's low bits choose a register, the zeros after them its value."""
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
    """Estimate the distinct counts of entries with Ertl's method (arXiv 1702.01284, algorithm 6). It has no
    bias at any size and needs no tables."""
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
    """Insert (set, value) pairs from row `start` on, until `limit` positions are used.

    The rows of pairs with new bits are written to `added`, and the new bits to `news`. Returns the row at
    which it stopped, the number of used positions, and the number of rows written.
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
    """Write to `out` the entries whose cell is not the one in the index, and give them new set numbers from
    `first` on. Returns their number."""
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
    """Note in the index the current cells of these entries."""
    for i in range(len(entries)):
        known[entries[i], 0] = cells[entries[i], 0]
        known[entries[i], 1] = cells[entries[i], 1]
