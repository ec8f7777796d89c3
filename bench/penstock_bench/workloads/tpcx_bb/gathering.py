"""Sets of distinct items that occur together, in a basket or in a session.

The loops are compiled and run without the GIL, so that several workers of a host run them at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import njit

from penstock.operators.operator import CHANGE
from penstock_bench.workloads.draws import Numbers


@dataclass(frozen=True)
class Gathered:
    """The distinct items of groups, in order of arrival.

    >>> held = gathered(2, np.array([1]), np.array([7]), np.array([0, 1, 1]), np.array([5, 8, 7]))
    >>> held.of(1).tolist()
    [7, 8]
    >>> held.earlier.tolist(), held.items_before().to_pylist()
    ([0, 1, 0], [[], [7], []])
    """

    items: Numbers
    """Items, one group after the other, in order of arrival within a group."""
    starts: Numbers
    """Index of each group's first item in `items`, followed by the end of the last group."""
    begins: Numbers
    """For each new row: index of its group's first item."""
    earlier: Numbers
    """For each new row: number of items of its group before it; 0 if its item is one of them."""

    def of(self, group: int) -> Numbers:
        """The items of a group."""
        return self.items[self.starts[group] : self.starts[group + 1]]

    def lists(self, groups: Numbers) -> pa.ListArray:
        """The items of each of these groups."""
        begins = self.starts[groups]
        return _lists(self.items, begins, self.starts[groups + 1] - begins)

    def items_before(self) -> pa.ListArray:
        """For each new row: the items of its group before it; none if its item is one of them."""
        return _lists(self.items, self.begins, self.earlier)


def gathered(
    groups: int, held_group: Numbers, held_item: Numbers, group: Numbers, item: Numbers
) -> Gathered:
    """Add new rows (group, item), in order, to the items that groups already hold, each item once."""
    return Gathered(
        *_gather(groups, plain(held_group), plain(held_item), plain(group), plain(item))
    )


@njit(cache=True, nogil=True)
def _gather(groups, held_group, held_item, group, item):  # type: ignore[no-untyped-def]
    """The fields of `Gathered`. Groups are small: whether an item is new is found by looking at all."""
    room = np.zeros(groups + 1, np.int64)
    for at in range(len(held_group)):
        room[held_group[at] + 1] += 1
    for at in range(len(group)):
        room[group[at] + 1] += 1
    room = np.cumsum(room)
    ends = room[:-1].copy()
    items = np.empty(room[-1], np.int64)
    begins, earlier = np.empty(len(group), np.int64), np.zeros(len(group), np.int64)
    for at in range(len(held_group)):
        _add(items, room, ends, held_group[at], held_item[at])
    for at in range(len(group)):
        known = ends[group[at]] - room[group[at]]
        if _add(items, room, ends, group[at], item[at]):
            earlier[at] = known
    starts = np.zeros(groups + 1, np.int64)
    for number in range(groups):
        count = ends[number] - room[number]
        starts[number + 1] = starts[number] + count
        for at in range(count):
            items[starts[number] + at] = items[room[number] + at]
    for at in range(len(group)):
        begins[at] = starts[group[at]]
    return items[: starts[-1]], starts, begins, earlier


@njit(cache=True, nogil=True)
def _add(items, room, ends, group, item):  # type: ignore[no-untyped-def]
    """Add an item to its group, and return whether it is new there."""
    for at in range(room[group], ends[group]):
        if items[at] == item:
            return False
    items[ends[group]] = item
    ends[group] += 1
    return True


def plain(numbers: Numbers) -> Numbers:
    """Numbers in the one form that kernels are compiled for: int64, contiguous and writable."""
    plain = np.ascontiguousarray(numbers, np.int64)
    return plain if plain.flags.writeable else plain.copy()


def ranges(begins: Numbers, lengths: Numbers) -> Numbers:
    """Concatenated ranges of consecutive numbers with these beginnings and lengths.

    >>> ranges(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    numbers: Numbers = _ranges(plain(begins), plain(lengths))
    return numbers


@njit(cache=True, nogil=True)
def _ranges(begins, lengths):  # type: ignore[no-untyped-def]
    numbers = np.empty(lengths.sum(), np.int64)
    end = 0
    for at in range(len(begins)):
        for number in range(lengths[at]):
            numbers[end + number] = begins[at] + number
        end += lengths[at]
    return numbers


def flat(lists: pa.ListArray) -> tuple[Numbers, Numbers]:
    """For each element of the lists: the index of its list, and its value. A list may be null.

    >>> [part.tolist() for part in flat(pa.array([[3, 4], None, [5]]))]
    [[0, 0, 2], [3, 4, 5]]
    """
    lengths = lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    return _owners(plain(lengths)), lists.flatten().to_numpy(zero_copy_only=False)


@njit(cache=True, nogil=True)
def _owners(lengths):  # type: ignore[no-untyped-def]
    """Each index as often as its length."""
    owners = np.empty(lengths.sum(), np.int64)
    end = 0
    for at in range(len(lengths)):
        owners[end : end + lengths[at]] = at
        end += lengths[at]
    return owners


def pairs(items: Numbers, others: Numbers) -> tuple[pa.Array, pa.Array]:
    """The two items of each pair, the smaller one first."""
    return pa.array(np.minimum(items, others)), pa.array(np.maximum(items, others))


def _lists(items: Numbers, begins: Numbers, lengths: Numbers) -> pa.ListArray:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(items[ranges(begins, lengths)]))


Mask = npt.NDArray[np.bool_]


def leading(group: Numbers, n: Numbers, ties: tuple[Numbers, ...], most: int) -> Mask:
    """Mask of the `most` entries of each group with the largest n; smaller `ties` win among equals.

    Entries with n = 0 are never included.

    >>> leading(np.zeros(3, int), np.array([4, 4, 0]), (np.array([9, 8, 1]),), 1).tolist()
    [False, True, False]
    """
    order = np.lexsort((*reversed(ties), -n, group))
    g = group[order]
    begins = np.ones(len(g), np.bool_)
    begins[1:] = g[1:] != g[:-1]
    place = np.arange(len(g))
    place -= np.maximum.accumulate(np.where(begins, place, 0))
    mask = np.zeros(len(g), np.bool_)
    mask[order] = place < most
    return mask & (n > 0)


def changes(
    columns: dict[str, Numbers], was: Numbers, now: Numbers, led: Mask, leads: Mask
) -> pa.RecordBatch:
    """Changes, -1 and 1, of leading rows where `was` became `now`, and `led` became `leads`.

    >>> one = np.array([True])
    >>> changes({"item": np.array([5])}, np.array([1]), np.array([2]), one, one).to_pylist()
    [{'item': 5, 'n': 1, '_change': -1}, {'item': 5, 'n': 2, '_change': 1}]
    """
    gone = np.flatnonzero(led & ~(leads & (was == now)))
    come = np.flatnonzero(leads & ~(led & (was == now)))
    rows = np.concatenate([gone, come])
    arrays = [pa.array(values[rows]) for values in columns.values()]
    arrays.append(pa.array(np.concatenate([was[gone], now[come]])))
    arrays.append(pa.array(np.repeat(np.array([-1, 1], np.int8), [len(gone), len(come)])))
    return pa.RecordBatch.from_arrays(arrays, [*columns, "n", CHANGE])
