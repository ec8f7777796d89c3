"""Rows grouped by numbers, such as those of their entries, without sorting."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numba import njit

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
    """Each of these entries once, in the order in which they first came."""
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


@njit(cache=True, nogil=True)
def stable_order(groups, count):  # type: ignore[no-untyped-def]
    """Rows by group, each group's in their order, and where groups begin; one more: where all end.

    Groups are numbered from 0 to `count`.
    """
    bounds = np.zeros(count + 1, np.int64)
    for i in range(len(groups)):
        bounds[groups[i] + 1] += 1
    for g in range(count):
        bounds[g + 1] += bounds[g]
    place = bounds[:count].copy()
    order = np.empty(len(groups), np.int64)
    for i in range(len(groups)):
        order[place[groups[i]]] = i
        place[groups[i]] += 1
    return order, bounds


def changes(values: Array) -> Array:
    """Where a value is not that before it (bool); the first always is."""
    changed = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=changed[1:])
    return changed


def pieces(rows: Array, size: int) -> Iterator[Array]:
    """The rows some at a time, as many as go into a batch."""
    return (rows[at : at + size] for at in range(0, len(rows), size))
