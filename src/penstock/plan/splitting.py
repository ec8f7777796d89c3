"""Requests to split a step's slots, and to put them together again, until they take effect. No I/O.

`Topology` carries them out at a boundary. Hosts are numbers here, as in `Topology`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from penstock.errors import SettingError
from penstock.model import StepId
from penstock.plan.placement import MOST_SLOTS
from penstock.state.arrays import Array
from penstock.state.keys.codec import slots_of
from penstock.state.keys.slot_map import Range, SlotMap, less

STAYS = -1
"""Home of a split that stays where it is."""


@dataclass(frozen=True)
class NewSplit:
    """A split that takes effect at the next boundary."""

    ranges: tuple[Range, ...]
    home: int = STAYS
    """The host to move to."""
    lasting: bool = False
    """Whether it consists of keys that a user moves."""

    def without(self, hashes: Collection[int]) -> NewSplit:
        """The split without these keys, which the user wants elsewhere by now."""
        if not self.lasting:
            return self
        return replace(self, ranges=tuple(key for key in self.ranges if key[0] not in hashes))


class SplitRequests:
    """The splits of one step that were requested and are not in force, and those that should end."""

    def __init__(self, step: StepId) -> None:
        self._step = step
        self.new: list[NewSplit] = []
        self.ending: set[int] = set()
        """Extra slots that end once they are with their hash slots."""

    def add_parts(self, slots: SlotMap, parts: Iterable[Sequence[Range]]) -> None:
        """Request that each part, some hashes of one slot, becomes an extra slot."""
        new = [NewSplit(tuple(ranges)) for ranges in parts]
        for ranges in (split.ranges for split in new):
            (slot,) = slots.of(np.array(ranges[0][:1], np.uint64)).tolist()
            if less(ranges, slots.ranges(slot)):
                raise SettingError(
                    f"step {self._step}: a part of a split slot must be hashes of one slot",
                    hint="split it by what it has now",
                )
        self._add(slots, new)

    def add_keys(self, slots: SlotMap, hashes: Iterable[int], home: int, homes: Array) -> Array:
        """Request that keys move to host `home`. Returns the homes of all slots after that.

        Keys that have an extra slot to themselves already take that one along.
        """
        wanted, result, new = sorted(set(hashes)), homes.copy(), list[NewSplit]()
        for keys in slots.by_slot((hash, hash) for hash in wanted):
            (slot,) = slots.of(np.array(keys[0][:1], np.uint64)).tolist()
            if slot >= slots.hashed and slots.ranges(slot) == keys:
                result[slot] = home
                self.ending.discard(slot)
                if home == homes[slots.parent(slot)]:
                    self.ending.add(slot)
            elif home != homes[slot]:
                new.append(NewSplit(keys, home, lasting=True))
        self.new = [split.without(wanted) for split in self.new]
        self._add(slots, new)
        return result

    def end(self, slots: SlotMap, whole: Collection[int]) -> set[int]:
        """Have all splits of these hash slots end, also those that have not begun. Returns extra slots."""
        extra = {extra for slot in whole for extra in slots.extras(slot)}
        self.ending |= extra
        firsts = [split.ranges[0][0] if split.ranges else 0 for split in self.new]
        parents = slots_of(np.array(firsts, np.uint64), slots.hashed).tolist()
        self.new = [split for split, of in zip(self.new, parents, strict=True) if of not in whole]
        return extra

    def endable(self, slots: SlotMap, owner: Array) -> list[int]:
        """Extra slots that should end, and are with their hash slots."""
        return [e for e in sorted(self.ending) if owner[e] == owner[slots.parent(e)]]

    def take_new(self) -> list[NewSplit]:
        """Remove and return all new splits. Keys that users move come last: they may be in other splits."""
        new, self.new = self.new, []
        return sorted(new, key=lambda split: split.lasting)

    def _add(self, slots: SlotMap, new: list[NewSplit]) -> None:
        if slots.count + len(self.new) + len(new) > MOST_SLOTS:
            raise SettingError(
                f"step {self._step} would have more than {MOST_SLOTS:,} slots",
                hint="move whole slots, so that earlier splits end",
            )
        self.new += new
