"""Compiled loops of segments: sorting of rows by hash, and comparison of keys."""

from __future__ import annotations

import numpy as np
from numba import njit

from penstock.state.keys.index_kernels import same_bytes

_CROWD = 64
"""Maximum number of rows in a bucket for which insertion sort is fast enough."""


@njit(cache=True, nogil=True)
def hash_order(hashes):  # type: ignore[no-untyped-def]
    """A stable order of rows by hash, for hashes that are spread evenly over their range.

    Rows are put into as many buckets as there are rows, and then sorted by insertion. The result is empty
    if a bucket has too many rows: use another sort then.
    """
    n = len(hashes)
    order = np.empty(n, np.int64)
    if n == 0:
        return order
    least, most = hashes[0], hashes[0]
    for i in range(n):
        least, most = min(least, hashes[i]), max(most, hashes[i])
    shift = np.uint64(0)
    while ((most - least) >> shift) >= np.uint64(n):
        shift += np.uint64(1)
    ends = np.zeros(int((most - least) >> shift) + 2, np.int64)
    for i in range(n):
        ends[((hashes[i] - least) >> shift) + np.uint64(1)] += 1
    for b in range(1, len(ends)):
        if ends[b] > _CROWD:
            return np.empty(0, np.int64)
        ends[b] += ends[b - 1]
    near = np.empty(n, np.uint64)
    for i in range(n):
        bucket = (hashes[i] - least) >> shift
        at = ends[bucket]
        ends[bucket] = at + 1
        near[at] = hashes[i]
        order[at] = i
    for i in range(1, n):
        hash, row, at = near[i], order[i], i
        while at > 0 and near[at - 1] > hash:
            near[at], order[at] = near[at - 1], order[at - 1]
            at -= 1
        near[at], order[at] = hash, row
    return order


@njit(cache=True, nogil=True)
def same_keys(offsets, data, rows, other_offsets, other_data, other_rows):  # type: ignore[no-untyped-def]
    """A mask that is True where key rows[i] equals key other_rows[i] of the other keys."""
    base, there = np.int64(data.ctypes.data), np.int64(other_data.ctypes.data)
    out = np.empty(len(rows), np.bool_)
    for i in range(len(rows)):
        one, other = offsets[rows[i]], other_offsets[other_rows[i]]
        size = offsets[rows[i] + 1] - one
        alike = other_offsets[other_rows[i] + 1] - other == size
        out[i] = alike and same_bytes(base + one, there + other, size)
    return out
