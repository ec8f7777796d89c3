"""Rows grouped by their entry, without sorting: entries are numbers that index an array."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from penstock.state.arrays import Array
from penstock.state.table.bag_kernels import group, grouped_order


class Groups(NamedTuple):
    """Group g has the rows order[ends[g]:ends[g + 1]], in the order in which they came."""

    entries: Array
    """The entry of each group, in the order in which they first came."""
    order: Array
    ends: Array
    """One more than there are groups; the first is zero."""


def distinct(entries: Array) -> Array:
    """Each of these entries once, in the order in which they first came.

    >>> distinct(np.array([7, 3, 7])).tolist()
    [7, 3]
    """
    return _grouped(entries)[0]


def grouped(entries: Array) -> Groups:
    """The rows of these entries by entry.

    >>> groups = grouped(np.array([7, 3, 7]))
    >>> groups.order.tolist(), groups.ends.tolist()
    ([0, 2, 1], [0, 2, 3])
    """
    found, counts, place = _grouped(entries)
    order = grouped_order(entries, place, counts, len(found))
    return Groups(found, order, ends_of(counts))


def numbered(entries: Array) -> tuple[Array, Array, Array]:
    """Each of these entries once, how often it is there, and for each row which of them it has.

    >>> [array.tolist() for array in numbered(np.array([7, 3, 7]))]
    [[7, 3], [2, 1], [0, 1, 0]]
    """
    found, counts, place = _grouped(entries)
    return found, counts, place[entries].astype(np.int64)


def ends_of(counts: Array) -> Array:
    """Where groups with these counts of rows end, behind a zero."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])


def _grouped(entries: Array) -> tuple[Array, Array, Array]:
    found, counts = np.empty(len(entries), np.int64), np.empty(len(entries), np.int64)
    place = np.zeros(int(entries.max()) + 1 if len(entries) else 0, np.int32)
    groups = group(entries, place, found, counts)
    return found[:groups], counts[:groups], place
