"""Compiled loops over bags: chains of nodes, each a run of consecutive rows.

A cell is (last node + 1, number of rows), int64. A node is (first row, number of rows, previous node + 1).
Nodes are only appended, so a node's number is greater than those before it in its chain.
"""

from __future__ import annotations

import numpy as np
from numba import njit

FIRST, COUNT, BEFORE = 0, 1, 2
"""Columns of a node."""


@njit(cache=True, nogil=True)
def list_ids(cells, skip, nodes, owner, ids):  # type: ignore[no-untyped-def]
    """List the rows of these cells in order, without the first skip[i] of each, into `ids`, and the position
    of each row's cell into `owner`."""
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
    """List the distinct entries in order of first appearance, and count each.

    `place` is a scratch array with room for one number per entry; afterwards it maps an entry to its
    position in `distinct`. Returns the number of distinct entries.
    """
    groups = 0
    for i in range(len(entries)):
        entry = entries[i]
        at = place[entry]
        if at < 0 or at >= groups or distinct[at] != entry:
            at = groups
            place[entry] = at
            distinct[at] = entry
            counts[at] = 0
            groups += 1
        counts[at] += 1
    return groups


@njit(cache=True, nogil=True)
def grouped_order(entries, place, counts, groups):  # type: ignore[no-untyped-def]
    """A stable order of rows by group, in the order of the groups' numbers."""
    starts = np.empty(groups, np.int64)
    start = 0
    for i in range(groups):
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
    """Append one node to the chain of each entry, for rows that are stored in the order of entries."""
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
    """Number of nodes needed for these ids. Bag i has counts[i] of them from starts[i] on."""
    runs = 0
    for i in range(len(counts)):
        for j in range(starts[i], starts[i] + counts[i]):
            if j == starts[i] or ids[j] != ids[j - 1] + 1:
                runs += 1
    return runs


@njit(cache=True, nogil=True)
def put_runs(starts, counts, ids, nodes, size, cells):  # type: ignore[no-untyped-def]
    """Create new chains for bags of these ids. cells[i] receives the cell of bag i."""
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
    """A mask that is True where the chain of the old cell is the start of the new cell's chain."""
    out = np.empty(len(old), np.bool_)
    for i in range(len(old)):
        node = new[i, 0]
        while node > old[i, 0]:
            node = nodes[node - 1, BEFORE]
        out[i] = node == old[i, 0]
    return out


@njit(cache=True, nogil=True)
def shifted(old_counts, old, new_counts, new):  # type: ignore[no-untyped-def]
    """Number of ids removed at the front of each bag, if its new ids start with the rest of its old ids.

    The ids of all bags are concatenated. -1 if none of a bag's old ids are left, or if its new ids start
    with others.
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
    """Renumber ids below `rows` in place, in order of first appearance. Returns the distinct old ids."""
    number = np.full(rows, -1, np.int64)
    distinct = np.empty(min(rows, len(ids)), np.int64)
    count = 0
    for i in range(len(ids)):
        if number[ids[i]] < 0:
            number[ids[i]] = count
            distinct[count] = ids[i]
            count += 1
        ids[i] = number[ids[i]]
    return distinct[:count]


@njit(cache=True, nogil=True)
def total(cells):  # type: ignore[no-untyped-def]
    """Total number of rows in these cells."""
    rows = 0
    for i in range(len(cells)):
        rows += cells[i, 1]
    return rows


@njit(cache=True, nogil=True)
def list_runs(cells, numbers):  # type: ignore[no-untyped-def]
    """List the numbers of runs one after the other. A cell is (first number + 1, length of the run)."""
    at = 0
    for i in range(len(cells)):
        for number in range(cells[i, 0] - 1, cells[i, 0] - 1 + cells[i, 1]):
            numbers[at] = number
            at += 1
