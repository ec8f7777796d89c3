"""Grouping of rows by number, such as the number of their entry, without sorting."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numba import njit

from penstock.state.arrays import Array
from penstock.state.table.bag_kernels import group, grouped_order


class Groups(NamedTuple):
    """Rows grouped by entry: group g has the rows order[ends[g]:ends[g + 1]], in input order."""

    entries: Array
    """The entry of each group, in order of first appearance."""
    order: Array
    """Row numbers, group after group."""
    ends: Array
    """Ends of the groups in `order`, after a leading zero: one element more than there are groups."""


def distinct(entries: Array) -> Array:
    """The distinct entries, in order of first appearance."""
    return _grouped(entries)[0]


def grouped(entries: Array) -> Groups:
    """Group rows by entry; row i belongs to entries[i].

    >>> groups = grouped(np.array([7, 3, 7]))
    >>> groups.order.tolist(), groups.ends.tolist()
    ([0, 2, 1], [0, 2, 3])
    """
    unique, counts, place = _grouped(entries)
    order = grouped_order(entries, place, counts, len(unique))
    return Groups(unique, order, ends_of(counts))


def numbered(entries: Array) -> tuple[Array, Array, Array]:
    """The distinct entries, the number of rows of each, and each row's position among the distinct entries.

    >>> [array.tolist() for array in numbered(np.array([7, 3, 7]))]
    [[7, 3], [2, 1], [0, 1, 0]]
    """
    unique, counts, place = _grouped(entries)
    return unique, counts, place[entries].astype(np.int64)


def ends_of(counts: Array) -> Array:
    """The ends of groups with these numbers of rows, after a leading zero."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])


def _grouped(entries: Array) -> tuple[Array, Array, Array]:
    unique, counts = np.empty(len(entries), np.int64), np.empty(len(entries), np.int64)
    place = np.zeros(int(entries.max()) + 1 if len(entries) else 0, np.int32)
    groups = group(entries, place, unique, counts)
    return unique[:groups], counts[:groups], place


@njit(cache=True, nogil=True)
def stable_order(groups, count):  # type: ignore[no-untyped-def]
    """Row numbers sorted stably by group, and the bounds of the groups: group g is bounds[g]:bounds[g + 1].

    Groups are numbered from 0 to `count` - 1.
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
    """Mask (bool) of the values that differ from the one before them; True for the first."""
    changed = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=changed[1:])
    return changed


def pieces(rows: Array, size: int) -> Iterator[Array]:
    """Yield the rows in slices of at most `size`."""
    return (rows[at : at + size] for at in range(0, len(rows), size))
