"""Compiled loops of sessions. All numbers are int64; times are microseconds since 1970."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def group_rows(users, users_in_all, times, order, gap):  # type: ignore[no-untyped-def]
    """Make sessions of rows: (each row's session, then each session's user, start and end).

    `order` goes through the rows by time; empty: they lie in it already. Sessions are numbered by
    their start. `users` are numbers.
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
def distinct(entries, scratch):  # type: ignore[no-untyped-def]
    """Entries, each once, and for each of those given its place among them.

    `scratch` has a zero for every entry.
    """
    places, found = np.empty(len(entries), np.int64), np.empty(len(entries), np.int64)
    size = 0
    for i in range(len(entries)):
        entry = entries[i]
        if scratch[entry] == 0:
            found[size] = entry
            size += 1
            scratch[entry] = size
        places[i] = scratch[entry] - 1
    return found[:size].copy(), places


@njit(cache=True, nogil=True)
def by_place(order, places, places_in_all):  # type: ignore[no-untyped-def]
    """The same order, but by place first."""
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
    """Merge the sessions of one place that overlap: (each one's new session, then the new sessions'
    places, starts and ends, and whether each is other than it was).

    `order` goes by place, then start. The first `stored` sessions are there already and do not
    overlap each other.
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
    """The earliest stamp of each place; zero where there is none."""
    out = np.zeros(places_in_all, np.int64)
    for i in range(len(places)):
        place = places[i]
        if out[place] == 0 or stamps[i] < out[place]:
            out[place] = stamps[i]
    return out
