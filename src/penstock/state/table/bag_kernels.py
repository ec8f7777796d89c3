"""Compiled loops of bags: chains of nodes, each a run of rows that lie one after another.

Cells are (last node + 1, count of rows), int64; nodes are (first row, count of rows, node before
it + 1). Nodes are only ever appended, so a node's number is greater than those before it in its
chain.
"""

from __future__ import annotations

import numpy as np
from numba import njit

FIRST, COUNT, BEFORE = 0, 1, 2
"""The columns of a node."""


@njit(cache=True, nogil=True)
def list_ids(cells, skip, nodes, owner, ids):  # type: ignore[no-untyped-def]
    """Put down the rows of these cells but for the first skip[i], in order, each with the place of
    its cell."""
    start = 0
    for i in range(len(cells)):
        count = cells[i, 1] - skip[i]
        at = start + count
        node = cells[i, 0]
        while at > start:
            first = nodes[node - 1, FIRST]
            run = nodes[node - 1, COUNT]
            over = max(run - (at - start), 0)
            at -= run - over
            for j in range(run - over):
                ids[at + j] = first + over + j
            node = nodes[node - 1, BEFORE]
        for j in range(start, start + count):
            owner[j] = i
        start += count


@njit(cache=True, nogil=True)
def group(entries, place, distinct, counts):  # type: ignore[no-untyped-def]
    """The distinct entries in order of first appearance and how often each is there.

    `place` is room for a number per entry; what it holds before does not matter. Returns how many
    are distinct; `place` then says which of them an entry is.
    """
    found = 0
    for i in range(len(entries)):
        entry = entries[i]
        at = place[entry]
        if at < 0 or at >= found or distinct[at] != entry:
            at = found
            place[entry] = at
            distinct[at] = entry
            counts[at] = 0
            found += 1
        counts[at] += 1
    return found


@njit(cache=True, nogil=True)
def grouped_order(entries, place, counts, found):  # type: ignore[no-untyped-def]
    """The order that puts rows of one group together, groups as numbered, stable."""
    starts = np.empty(found, np.int64)
    start = 0
    for i in range(found):
        starts[i] = start
        start += counts[i]
    order = np.empty(len(entries), np.int64)
    for i in range(len(entries)):
        at = place[entries[i]]
        order[starts[at]] = i
        starts[at] += 1
    return order


@njit(cache=True, nogil=True)
def append_runs(cells, entries, counts, nodes, size, first):  # type: ignore[no-untyped-def]
    """A node behind the chain of each entry, for rows that lie in the order of entries."""
    for i in range(len(entries)):
        entry = entries[i]
        nodes[size, FIRST] = first
        nodes[size, COUNT] = counts[i]
        nodes[size, BEFORE] = cells[entry, 0]
        first += counts[i]
        size += 1
        cells[entry, 0] = size
        cells[entry, 1] += counts[i]


@njit(cache=True, nogil=True)
def count_runs(starts, counts, ids):  # type: ignore[no-untyped-def]
    """How many nodes hold these ids, of which counts[i] from starts[i] on are one bag."""
    runs = 0
    for i in range(len(counts)):
        for j in range(starts[i], starts[i] + counts[i]):
            if j == starts[i] or ids[j] != ids[j - 1] + 1:
                runs += 1
    return runs


@njit(cache=True, nogil=True)
def put_runs(starts, counts, ids, nodes, size, cells):  # type: ignore[no-untyped-def]
    """Chains of their own for bags of these ids; cells[i] becomes that of bag i."""
    for i in range(len(counts)):
        last = 0
        for j in range(starts[i], starts[i] + counts[i]):
            if last > 0 and ids[j] == ids[j - 1] + 1:
                nodes[size - 1, COUNT] += 1
                continue
            nodes[size, FIRST] = ids[j]
            nodes[size, COUNT] = 1
            nodes[size, BEFORE] = last
            size += 1
            last = size
        cells[i, 0] = last
        cells[i, 1] = counts[i]


@njit(cache=True, nogil=True)
def grew(old, new, nodes):  # type: ignore[no-untyped-def]
    """Where the chain of the old cell is the beginning of that of the new one (bool)."""
    out = np.empty(len(old), np.bool_)
    for i in range(len(old)):
        node = new[i, 0]
        while node > old[i, 0]:
            node = nodes[node - 1, BEFORE]
        out[i] = node == old[i, 0]
    return out


@njit(cache=True, nogil=True)
def shifted(old_counts, old, new_counts, new):  # type: ignore[no-untyped-def]
    """How many of the first ids are gone where a bag's old ids, without those, begin its new ones.

    The ids of all bags stand one after another. -1 where none of the old ids are left, or where
    they are not the first ones.
    """
    out = np.full(len(old_counts), -1, np.int64)
    here, there = 0, 0
    for i in range(len(old_counts)):
        before, now = old[here : here + old_counts[i]], new[there : there + new_counts[i]]
        here += old_counts[i]
        there += new_counts[i]
        gone = 0
        while gone < len(before) and len(now) > 0 and before[gone] != now[0]:
            gone += 1
        left = len(before) - gone
        if 0 < left <= len(now) and np.array_equal(before[gone:], now[:left]):
            out[i] = gone
    return out


@njit(cache=True, nogil=True)
def renumbered(ids, rows):  # type: ignore[no-untyped-def]
    """Number ids below `rows` anew, in place, in order of first appearance; returns the distinct ones."""
    number = np.full(rows, -1, np.int64)
    distinct = np.empty(min(rows, len(ids)), np.int64)
    found = 0
    for i in range(len(ids)):
        if number[ids[i]] < 0:
            number[ids[i]] = found
            distinct[found] = ids[i]
            found += 1
        ids[i] = number[ids[i]]
    return distinct[:found]


@njit(cache=True, nogil=True)
def total(cells):  # type: ignore[no-untyped-def]
    """How many rows all these cells hold."""
    rows = 0
    for i in range(len(cells)):
        rows += cells[i, 1]
    return rows
