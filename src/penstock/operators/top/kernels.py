"""Compiled loops of the top-n. A code is an int64 by which smaller comes first (see `order`)."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def prefix(offsets, data, out):  # type: ignore[no-untyped-def]
    """The first eight bytes of each text, as numbers of the same order."""
    for i in range(len(out)):
        start, stop = offsets[i], offsets[i + 1]
        bits = np.uint64(0)
        for j in range(8):
            byte = np.uint64(data[start + j]) if start + j < stop else np.uint64(0)
            bits = (bits << np.uint64(8)) | byte
        out[i] = np.int64(bits ^ np.uint64(1 << 63))


@njit(cache=True, nogil=True)
def clip(words, out):  # type: ignore[no-untyped-def]
    """128-bit integers, two words each, as the nearest 64-bit ones."""
    for i in range(len(out)):
        low, high = words[2 * i], words[2 * i + 1]
        if high == (low >> 63):
            out[i] = low
        else:
            out[i] = np.iinfo(np.int64).max if high >= 0 else np.iinfo(np.int64).min


@njit(cache=True, nogil=True)
def contenders(entries, codes, cells, bars, n):  # type: ignore[no-untyped-def]
    """The rows that may be among the first n of their entry, which -1 stands for if it is new."""
    rows = np.empty(len(entries), np.int64)
    count = 0
    for i in range(len(entries)):
        entry = entries[i]
        if entry < 0 or cells[entry, 1] < n or codes[i] <= bars[entry]:
            rows[count] = i
            count += 1
    return rows[:count]


@njit(cache=True, nogil=True)
def leaders(groups, counts, codes, n):  # type: ignore[no-untyped-def]
    """The rows whose code is not greater than the n-th smallest of their group.

    `counts` says how many rows each group has. Each group has room for its n best codes so far.
    """
    starts = np.empty(len(counts) + 1, np.int64)
    starts[0] = 0
    for g in range(len(counts)):
        starts[g + 1] = starts[g] + min(counts[g], n)
    best = np.empty(starts[-1], np.int64)
    held = np.zeros(len(counts), np.int64)
    for i in range(len(groups)):
        g, code = groups[i], codes[i]
        first, many = starts[g], held[g]
        if many == n:
            if code >= best[first + n - 1]:
                continue
            many -= 1
        else:
            held[g] += 1
        at = first + many
        while at > first and best[at - 1] > code:
            best[at] = best[at - 1]
            at -= 1
        best[at] = code
    rows = np.empty(len(groups), np.int64)
    count = 0
    for i in range(len(groups)):
        g = groups[i]
        if held[g] < n or codes[i] <= best[starts[g] + n - 1]:
            rows[count] = i
            count += 1
    return rows[:count]


@njit(cache=True, nogil=True)
def with_latest(groups, many, times, kept):  # type: ignore[no-untyped-def]
    """The kept rows, and of groups whose greatest time none of them has, a row that has it."""
    latest = np.full(many, -1, np.int64)
    for i in range(len(groups)):
        g = groups[i]
        if latest[g] < 0 or times[i] > times[latest[g]]:
            latest[g] = i
    out = np.zeros(len(groups), np.bool_)
    for i in range(len(kept)):
        out[kept[i]] = True
        g = groups[kept[i]]
        if latest[g] >= 0 and times[kept[i]] == times[latest[g]]:
            latest[g] = -1
    for g in range(many):
        if latest[g] >= 0:
            out[latest[g]] = True
    return np.flatnonzero(out)


@njit(cache=True, nogil=True)
def places(groups, starts, ties):  # type: ignore[no-untyped-def]
    """The place of each row in its group, from zero on; with `ties`, that of the first equal one.

    Rows are sorted; `starts` says where one is not equal to that before it.
    """
    out = np.empty(len(groups), np.int64)
    at = run = 0
    for i in range(len(groups)):
        if i == 0 or groups[i] != groups[i - 1]:
            at = run = 0
        elif starts[i]:
            run = at
        out[i] = run if ties else at
        at += 1
    return out


@njit(cache=True, nogil=True)
def missing(ids, ranks, other_ids, other_ranks):  # type: ignore[no-untyped-def]
    """Where an (id, rank) is not among the others (bool)."""
    room = 16
    while room < 2 * len(other_ids):
        room *= 2
    mask = np.uint64(room - 1)
    index = np.full(room, -1, np.int64)
    for i in range(len(other_ids)):
        at = np.uint64(other_ids[i]) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(20) & mask
        while index[at] >= 0:
            at = (at + np.uint64(1)) & mask
        index[at] = i
    out = np.ones(len(ids), np.bool_)
    for i in range(len(ids)):
        at = np.uint64(ids[i]) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(20) & mask
        while index[at] >= 0:
            j = index[at]
            if other_ids[j] == ids[i]:
                out[i] = other_ranks[j] != ranks[i]
                break
            at = (at + np.uint64(1)) & mask
    return out
