"""The entries of a table by slot, so that finding one slot's entries does not scan all of them."""

from __future__ import annotations

import numpy as np

from penstock.state.arrays import Array, ranges
from penstock.state.keys.index import KeyIndex
from penstock.state.keys.slot_map import SlotMap

_FEW = 1 << 16
"""Number of unsorted entries to scan before all are sorted again."""


class SlotOrder:
    """Entries ordered by slot. Sorted on first use, and again when entries were renumbered or many are new.

    >>> from penstock.state.keys.codec import int_keys
    >>> from penstock.state.keys.index import key_index
    >>> index, order = key_index("int"), SlotOrder(SlotMap(2))
    >>> keys = int_keys(np.arange(4))
    >>> entries = index.upsert(keys)
    >>> wanted = SlotMap(2).of(keys.hashes) == 1
    >>> order.entries(np.array([1]), index, 0).tolist() == entries[wanted].tolist()
    True
    """

    def __init__(self, slots: SlotMap) -> None:
        self._slots = slots
        self._size = 0
        """Number of entries, from entry 0 on, that are sorted."""
        self._order = np.zeros(0, np.int32)
        self._ends = np.zeros(slots.count + 1, np.int64)
        """Start of each slot's entries in `_order`, and the end of the last one."""
        self._renumberings = -1

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self._order.nbytes + self._ends.nbytes

    def cut_off(self, size: int) -> None:
        """Note that the entries from number `size` on were removed. New ones may get their numbers."""
        self._size = min(self._size, size)

    def entries(self, slots: Array, index: KeyIndex, renumberings: int) -> Array:
        """The entries of these slots, ascending."""
        slots = np.unique(slots)
        behind = index.size - self._size
        if renumberings != self._renumberings or behind > _FEW + self._size // 4:
            self._put_in_order(index)
            self._renumberings = renumberings
        ordered = self._order[ranges(self._ends[slots], self._ends[slots + 1] - self._ends[slots])]
        ordered = ordered[ordered < self._size].astype(np.int64)
        wanted = np.zeros(self._slots.count, np.bool_)
        wanted[slots] = True
        late = wanted[self._slots.of(index.hashes(slice(self._size, index.size)))]
        return np.concatenate([np.sort(ordered), self._size + np.flatnonzero(late)])

    def _put_in_order(self, index: KeyIndex) -> None:
        slots = self._slots.of(index.hashes(slice(index.size)))
        small = slots.astype(np.uint16) if self._slots.count <= 1 << 16 else slots  # radix-sorted
        self._order = np.argsort(small, kind="stable").astype(np.int32)
        self._ends[1:] = np.cumsum(np.bincount(slots, minlength=self._slots.count))
        self._size = index.size
