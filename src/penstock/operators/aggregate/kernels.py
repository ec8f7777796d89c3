"""Compiled loops of the aggregates: fold the values of rows into the entries they belong to.

Each takes the live columns of a table (or of a combiner), the entry of each row, and the rows'
values as int64 or float64, nulls taken out. `seen` says which entries hold a value at all. NaN is
the largest float, as in Spark. Kernels compile when they are first called, for the types at hand.
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
def least(held, seen, entries, values):  # type: ignore[no-untyped-def]
    for i in range(len(entries)):
        entry, value = np.uint64(entries[i]), values[i]
        if not seen[entry] or value < held[entry] or held[entry] != held[entry]:
            held[entry] = value
            seen[entry] = True


@njit(cache=True, nogil=True)
def greatest(held, seen, entries, values):  # type: ignore[no-untyped-def]
    for i in range(len(entries)):
        entry, value = np.uint64(entries[i]), values[i]
        if not seen[entry] or value > held[entry] or value != value:
            held[entry] = value
            seen[entry] = True


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
def put_first_by(held, by, seen, entries, values, ranks):  # type: ignore[no-untyped-def]
    """The smallest rank wins; among equal ones, the one seen first."""
    for i in range(len(entries)):
        entry, rank = np.uint64(entries[i]), ranks[i]
        smaller = rank < by[entry] or (by[entry] != by[entry] and rank == rank)
        if smaller or not seen[entry]:
            held[entry] = values[i]
            by[entry] = rank
            seen[entry] = True


@njit(cache=True, nogil=True)
def put_last_by(held, by, seen, entries, values, ranks):  # type: ignore[no-untyped-def]
    """The largest rank wins; among equal ones, the one seen last."""
    for i in range(len(entries)):
        entry, rank = np.uint64(entries[i]), ranks[i]
        if not seen[entry] or rank >= by[entry] or rank != rank:
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
