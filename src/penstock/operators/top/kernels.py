"""Compiled loops of the top-n. A code is an int64 sort key: smaller codes come first (see `order`)."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def prefix(offsets, data, out):  # type: ignore[no-untyped-def]
    """Write the first eight bytes of each text to `out`, as int64 of the same order."""
    for i in range(len(out)):
        start, stop = offsets[i], offsets[i + 1]
        bits = np.uint64(0)
        for j in range(8):
            byte = np.uint64(data[start + j]) if start + j < stop else np.uint64(0)
            bits = (bits << np.uint64(8)) | byte
        out[i] = np.int64(bits ^ np.uint64(1 << 63))


@njit(cache=True, nogil=True)
def clip(words, out):  # type: ignore[no-untyped-def]
    """Write 128-bit integers, two words each, to `out` as the nearest int64."""
    for i in range(len(out)):
        low, high = words[2 * i], words[2 * i + 1]
        if high == (low >> 63):
            out[i] = low
        else:
            out[i] = np.iinfo(np.int64).max if high >= 0 else np.iinfo(np.int64).min


@njit(cache=True, nogil=True)
def contenders(entries, codes, cells, bars, n):  # type: ignore[no-untyped-def]
    """The rows that may be among the first n of their entry; an entry of -1 is new."""
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

    `counts` has the number of rows of each group. The n best codes of each group are kept on the way.
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
    """The kept rows, and for each group one row with its greatest time if no kept row has that time."""
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
    """The rank of each row in its group, from 0. With `ties`, equal rows have the rank of the first of them.

    Rows are sorted; `starts` marks the rows that differ from the row before.
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
    """Mask (bool) of the (id, rank) pairs that are not among the others."""
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
