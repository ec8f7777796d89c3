"""From the hash of a key to its slot, with slots that were split.

A step has a fixed number of hash slots, which are equal ranges of hashes. A *split* slot has lost some of its
hashes to an extra slot, whose number is above those of the hash slots. Everything that owns, moves, counts or
fetches slots treats an extra slot as any other. Only files of state know nothing of it: they are organized by
hash slot, so a split changes none of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numba import njit

from penstock.errors import ProtocolError
from penstock.state.arrays import Array
from penstock.state.keys.codec import slots_of

Range = tuple[int, int]
"""The first and the last of consecutive hashes."""
_LAST = (1 << 64) - 1


@dataclass(frozen=True)
class Split:
    """The hashes of an extra slot. They all come from one hash slot.

    A key alone is a range of one hash. A split without ranges is vacant: its number is free.
    """

    ranges: tuple[Range, ...] = ()
    """Ranges of hashes, ascending and disjoint."""
    lasting: bool = False
    """Whether it stays until a user ends it. If not, control ends it when the load is low."""


@dataclass(frozen=True)
class SlotMap:
    """The slots of a step: its hash slots, then its extra slots. Immutable.

    >>> keys = np.array([1 << 62, (1 << 62) + 5, 3 << 62], np.uint64)
    >>> plain = SlotMap(4)
    >>> plain.of(keys).tolist()
    [1, 1, 3]
    >>> slots = plain.with_split([(keys[1], keys[1])])
    >>> slots.of(keys).tolist(), slots.count, slots.parent(4)
    ([1, 4, 3], 5, 1)
    >>> slots.sources(plain), plain.sources(slots)
    ([(4, [1])], [(1, [1, 4])])
    >>> slots.without([4]) == plain
    True
    """

    hashed: int
    """Number of hash slots."""
    splits: tuple[Split, ...] = ()
    """Split number i has the slot number `hashed` + i."""

    def __post_init__(self) -> None:
        if not self.splits:
            return
        starts, ends, _ = self._ranges
        if np.any(starts > ends) or np.any(starts[1:] <= ends[:-1]):
            raise ProtocolError(
                "the ranges of split slots overlap",
                hint="use the same release of Penstock everywhere",
            )

    @property
    def count(self) -> int:
        """Number of slots, with the extra ones."""
        return self.hashed + len(self.splits)

    def of(self, hashes: Array) -> Array:
        """The slot (int32) of each hash."""
        slots = slots_of(hashes, self.hashed)
        if self.splits:
            _except(hashes, slots, self._first, *self._ranges)
        return slots

    def parent(self, slot: int) -> int:
        """The hash slot that a slot is part of; the slot itself if it is one, or if it is vacant."""
        if slot < self.hashed or not (ranges := self.splits[slot - self.hashed].ranges):
            return slot
        return int(slots_of(np.array(ranges[0][:1], np.uint64), self.hashed)[0])

    @cached_property
    def parents(self) -> Array:
        """The hash slot of each slot (int64)."""
        return np.array([self.parent(slot) for slot in range(self.count)], np.int64)

    def extras(self, slot: int) -> list[int]:
        """The extra slots that were split off a hash slot."""
        extra = range(self.hashed, self.count)
        return [number for number in extra if self.parents[number] == slot]

    def ranges(self, slot: int) -> tuple[Range, ...]:
        """All hashes of a slot, as ascending ranges."""
        if slot >= self.hashed:
            return self.splits[slot - self.hashed].ranges
        gone = [range for extra in self.extras(slot) for range in self.ranges(extra)]
        return less([_hash_range(slot, self.hashed)], gone)

    def by_slot(self, ranges: Iterable[Range]) -> list[tuple[Range, ...]]:
        """The ranges by the slots that they are in. A range must be in one slot; all of it counts there."""
        groups: dict[int, list[Range]] = {}
        for first, last in ranges:
            slot = int(self.of(np.array([first], np.uint64))[0])
            groups.setdefault(slot, []).append((first, last))
        return [tuple(some) for some in groups.values()]

    def with_split(self, ranges: Iterable[Range], lasting: bool = False) -> SlotMap:
        """The map with one more extra slot, which gets these hashes. They must be of one slot now.

        The extra slot gets the lowest vacant number.
        """
        taken = joined([(int(first), int(last)) for first, last in ranges])
        splits = [
            replace(split, ranges=less(split.ranges, taken)) if split.ranges else split
            for split in self.splits
        ]
        new = Split(taken, lasting)
        vacant = next((i for i, split in enumerate(self.splits) if not split.ranges), None)
        if vacant is None:
            splits.append(new)
        else:
            splits[vacant] = new
        return SlotMap(self.hashed, _trimmed(splits))

    def without(self, extra: Iterable[int]) -> SlotMap:
        """The map without these extra slots: their hashes belong to their hash slots again."""
        ended = set(extra)
        splits = [
            Split() if self.hashed + i in ended else split for i, split in enumerate(self.splits)
        ]
        return SlotMap(self.hashed, _trimmed(splits))

    def sources(self, before: SlotMap) -> list[tuple[int, list[int]]]:
        """(slot, slots that its hashes were in before), for each slot that has hashes it had not before."""
        maps = (before, self)
        extra = {slot for each in maps for slot in range(each.hashed, each.count)}
        near = extra | {each.parent(slot) for each in maps for slot in extra if slot < each.count}
        had = {slot: before.ranges(slot) for slot in sorted(near) if slot < before.count}
        found = []
        for slot in sorted(slot for slot in near if slot < self.count):
            now = self.ranges(slot)
            if less(now, had.get(slot, ())):
                found.append((slot, [n for n, ranges in had.items() if _meet(ranges, now)]))
        return found

    def origins(self, before: SlotMap) -> Array:
        """For each slot, the slot that it is a part of, or is made from, in an earlier map (int64); any slot
        for a new vacant one."""
        origins = np.arange(self.count)
        origins[before.count :] = 0
        for slot, parts in self.sources(before):
            origins[slot] = parts[0]
        return origins

    @cached_property
    def _first(self) -> Array:
        """Index of the first range in `_ranges` of each hash slot, and the number of all ranges."""
        held = slots_of(self._ranges[0], self.hashed)
        return np.searchsorted(held, np.arange(self.hashed + 1)).astype(np.int64)

    @cached_property
    def _ranges(self) -> tuple[Array, Array, Array]:
        """First and last hash of all ranges of extra slots, ascending, and the slot of each."""
        rows = sorted(
            (first, last, self.hashed + i)
            for i, split in enumerate(self.splits)
            for first, last in split.ranges
        )
        starts, ends, slots = zip(*rows, strict=True) if rows else ((), (), ())
        return np.array(starts, np.uint64), np.array(ends, np.uint64), np.array(slots, np.int32)


@njit(cache=True, nogil=True)
def _except(hashes, slots, first, starts, ends, numbers):  # type: ignore[no-untyped-def]
    """Set the slots of those hashes that lie in a range. The ranges of hash slot s begin with `first[s]`."""
    for i in range(len(hashes)):
        low, high = first[slots[i]], first[slots[i] + 1]
        if low == high:
            continue
        hash, least = hashes[i], low
        while low < high:  # find the first range that begins above the hash
            middle = (low + high) >> 1
            if starts[middle] <= hash:
                low = middle + 1
            else:
                high = middle
        if low > least and hash <= ends[low - 1]:
            slots[i] = numbers[low - 1]


def _hash_range(slot: int, slots: int) -> Range:
    """The hashes of a hash slot."""
    first, after = (-(-(n << 32) // slots) << 32 for n in (slot, slot + 1))
    return first, min(after - 1, _LAST)


def joined(ranges: Sequence[Range]) -> tuple[Range, ...]:
    """The same hashes as ascending ranges that neither overlap nor touch."""
    result: list[Range] = []
    for first, last in sorted(ranges):
        if result and first <= result[-1][1] + 1:
            result[-1] = (result[-1][0], max(last, result[-1][1]))
        else:
            result.append((first, last))
    return tuple(result)


def less(ranges: Sequence[Range], taken: Iterable[Range]) -> tuple[Range, ...]:
    """The ranges without the hashes of others.

    >>> less([(0, 9)], [(3, 3), (9, 20)])
    ((0, 2), (4, 8))
    """
    left = list(ranges)
    for begin, end in taken:
        left = [
            part
            for first, last in left
            for part in ((first, min(last, begin - 1)), (max(first, end + 1), last))
            if part[0] <= part[1]
        ]
    return tuple(left)


def _meet(some: Sequence[Range], others: Sequence[Range]) -> bool:
    return any(a <= d and c <= b for a, b in some for c, d in others)


def _trimmed(splits: list[Split]) -> tuple[Split, ...]:
    """The splits without vacant ones at the end."""
    while splits and not splits[-1].ranges:
        splits.pop()
    return tuple(splits)
