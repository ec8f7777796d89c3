"""Compiled loops of windows and sessions.

All numbers are int64; times are microseconds since 1970, due stamps milliseconds.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from penstock.state.keys.kernels import load8


@njit(cache=True, nogil=True)
def panes(times, every, offset, rest):  # type: ignore[no-untyped-def]
    """The start of each time's pane. Fast for streams whose neighbours are mostly in the same pane."""
    out = np.empty(len(times), np.int64)
    low, high = np.int64(0), np.int64(0)
    for i in range(len(times)):
        t = times[i]
        if t < low or t >= high:
            last = (t - offset) // every * every + offset
            if t - last < rest:
                low, high = last, last + rest
            else:
                low, high = last + rest, last + every
        out[i] = low
    return out


@njit(cache=True, nogil=True)
def late(times, size, every, offset, horizon):  # type: ignore[no-untyped-def]
    """Mask (bool) of the times whose last window ends at or before the horizon."""
    out = np.empty(len(times), np.bool_)
    for i in range(len(times)):
        last = (times[i] - offset) // every * every + offset
        out[i] = last + size <= horizon
    return out


@njit(cache=True, nogil=True)
def spread(times, size, every, offset, horizon):  # type: ignore[no-untyped-def]
    """Rows and starts of all windows that end after the horizon: by row, then by start."""
    n = len(times)
    firsts, counts = np.empty(n, np.int64), np.empty(n, np.int64)
    total = 0
    for i in range(n):
        last = (times[i] - offset) // every * every + offset
        many = (size - 1 - (times[i] - last)) // every + 1
        first = last - (many - 1) * every
        if first + size <= horizon:
            gone = (horizon - first - size) // every + 1
            first += gone * every
            many = max(many - gone, 0)
        firsts[i], counts[i] = first, many
        total += many
    rows, starts = np.empty(total, np.int64), np.empty(total, np.int64)
    at = 0
    for i in range(n):
        start = firsts[i]
        for _ in range(counts[i]):
            rows[at], starts[at] = i, start
            start += every
            at += 1
    return rows, starts


@njit(cache=True, nogil=True)
def closing_stamps(starts, size, moved):  # type: ignore[no-untyped-def]
    """The closing times of windows: the first millisecond at or after their end, plus `moved`."""
    out = np.empty(len(starts), np.int64)
    last, stamp = np.int64(0), -(-size // 1000) + moved
    for i in range(len(starts)):
        if starts[i] != last:
            last = starts[i]
            stamp = -(-(last + size) // 1000) + moved
        out[i] = stamp
    return out


@njit(cache=True, nogil=True)
def put_due(due, emitted, entries, stamps, limit, stay, once, again):  # type: ignore[no-untyped-def]
    """Set the due times of entries that have none.

    If windows stay for `stay` milliseconds after they were emitted, `emitted` is not empty. Then entries that
    were emitted `once`, and new entries that are due already, are marked to be emitted `again`.
    """
    stays = len(emitted) > 0
    for i in range(len(entries)):
        entry = np.uint64(entries[i])
        if due[entry] == 0:
            due[entry] = stamps[i]
            if stays and stamps[i] <= limit:
                due[entry] += stay
                emitted[entry] = again
        elif stays and emitted[entry] == once:
            emitted[entry] = again


@njit(cache=True, nogil=True)
def last_words(offsets, data):  # type: ignore[no-untyped-def]
    """The last 8 bytes of each key, as an int64."""
    out = np.empty(len(offsets) - 1, np.int64)
    base = np.int64(data.ctypes.data)
    for i in range(len(out)):
        out[i] = np.int64(load8(base + offsets[i + 1] - 8))
    return out


@njit(cache=True, nogil=True)
def pairs(users, starts, panes):  # type: ignore[no-untyped-def]
    """The pair (user << 32 | pane) of each row; rows from starts[j] on have panes[j]."""
    out = np.empty(len(users), np.int64)
    for j in range(len(starts)):
        end = starts[j + 1] if j + 1 < len(starts) else len(users)
        for i in range(starts[j], end):
            out[i] = (users[i] << 32) | panes[j]
    return out


@njit(cache=True, nogil=True)
def find_pairs(users, starts, panes, grid, numbers, size):  # type: ignore[no-untyped-def]
    """The entry of each row's (user, pane) pair, and the number of pairs. New pairs are added to the grid."""
    out = np.empty(len(users), np.int64)
    for j in range(len(starts)):
        end = starts[j + 1] if j + 1 < len(starts) else len(users)
        row, pane = grid[panes[j]], panes[j]
        for i in range(starts[j], end):
            user = np.uint64(users[i])
            entry = row[user]
            if entry < 0:
                entry = np.int32(size)
                row[user] = entry
                numbers[size] = (users[i] << 32) | pane
                size += 1
            out[i] = entry
    return out, size


@njit(cache=True, nogil=True)
def group_rows(users, users_in_all, times, order, gap):  # type: ignore[no-untyped-def]
    """Group rows into sessions. Returns each row's session, then each session's user, start and end.

    `order` is the order of the rows by time; it is empty if they are sorted already. Sessions are numbered by
    their start. `users` are numbers below `users_in_all`.
    """
    n = len(users)
    current = np.full(users_in_all, -1, np.int64)
    out = np.empty(n, np.int64)
    owners, starts, ends = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    size = 0
    for j in range(n):
        i = order[j] if len(order) else j
        user, time = users[i], times[i]
        at = current[user]
        if at < 0 or time >= ends[at]:
            at = size
            size += 1
            current[user] = at
            owners[at], starts[at] = user, time
        ends[at] = time + gap
        out[i] = at
    return out, owners[:size].copy(), starts[:size].copy(), ends[:size].copy()


@njit(cache=True, nogil=True)
def by_place(order, places, places_in_all):  # type: ignore[no-untyped-def]
    """Sort an order of rows by place first, keeping the order within each place."""
    at = np.zeros(places_in_all + 1, np.int64)
    for i in range(len(places)):
        at[places[i] + 1] += 1
    for place in range(places_in_all):
        at[place + 1] += at[place]
    out = np.empty(len(order), np.int64)
    for j in range(len(order)):
        place = places[order[j]]
        out[at[place]] = order[j]
        at[place] += 1
    return out


@njit(cache=True, nogil=True)
def merge_sessions(order, places, starts, ends, stored):  # type: ignore[no-untyped-def]
    """Merge overlapping sessions of the same place.

    Returns the merged session of each session, then the merged sessions' places, starts and ends, and a mask
    (bool) of those that are new or changed. `order` is by place, then start. The first `stored` sessions
    are in the table already and do not overlap each other.
    """
    n = len(order)
    out = np.empty(n, np.int64)
    whose, begins, finishes = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    fresh = np.zeros(n, np.bool_)
    size = 0
    for j in range(n):
        i = order[j]
        if size == 0 or whose[size - 1] != places[i] or starts[i] >= finishes[size - 1]:
            whose[size], begins[size], finishes[size] = places[i], starts[i], ends[i]
            size += 1
        elif ends[i] > finishes[size - 1]:
            finishes[size - 1] = ends[i]
        out[i] = size - 1
        if i >= stored:
            fresh[size - 1] = True
    return (
        out,
        whose[:size].copy(),
        begins[:size].copy(),
        finishes[:size].copy(),
        fresh[:size].copy(),
    )


@njit(cache=True, nogil=True)
def first_due(places, stamps, places_in_all):  # type: ignore[no-untyped-def]
    """The earliest stamp of each place; zero for a place without stamps."""
    out = np.zeros(places_in_all, np.int64)
    for i in range(len(places)):
        place = places[i]
        if out[place] == 0 or stamps[i] < out[place]:
            out[place] = stamps[i]
    return out
