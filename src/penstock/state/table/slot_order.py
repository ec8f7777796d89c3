"""The entries of a table by slot, so that one slot is found without looking at all entries."""

from __future__ import annotations

import numpy as np

from penstock.state.arrays import Array, ranges
from penstock.state.keys.codec import slots_of
from penstock.state.keys.index import KeyIndex

_FEW = 1 << 16
"""Entries that are looked at one by one before all are put in order again."""


class SlotOrder:
    """Made when it is first asked, and again when entries were numbered anew or many have come.

    >>> from penstock.state.keys.codec import int_keys
    >>> from penstock.state.keys.index import key_index
    >>> index, order = key_index("int"), SlotOrder(slots=2)
    >>> keys = int_keys(np.arange(4))
    >>> entries = index.upsert(keys)
    >>> wanted = slots_of(keys.hashes, 2) == 1
    >>> order.entries(np.array([1]), index, 0).tolist() == entries[wanted].tolist()
    True
    """

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._size = 0
        """The entries below this number are in order."""
        self._order = np.zeros(0, np.int32)
        self._ends = np.zeros(slots + 1, np.int64)
        """Where in the order each slot begins, and the one after it."""
        self._renumberings = -1

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self._order.nbytes + self._ends.nbytes

    def cut_off(self, size: int) -> None:
        """The entries from number `size` on are gone; others may come in their place."""
        self._size = min(self._size, size)

    def entries(self, slots: Array, index: KeyIndex, renumberings: int) -> Array:
        """The entries of these slots, ascending."""
        slots = np.unique(slots)
        behind = index.size - self._size
        if renumberings != self._renumberings or behind > _FEW + self._size // 4:
            self._put_in_order(index)
            self._renumberings = renumberings
        found = self._order[ranges(self._ends[slots], self._ends[slots + 1] - self._ends[slots])]
        found = found[found < self._size].astype(np.int64)
        wanted = np.zeros(self._slots, np.bool_)
        wanted[slots] = True
        late = wanted[slots_of(index.hashes(slice(self._size, index.size)), self._slots)]
        return np.concatenate([np.sort(found), self._size + np.flatnonzero(late)])

    def _put_in_order(self, index: KeyIndex) -> None:
        slots = slots_of(index.hashes(slice(index.size)), self._slots)
        small = slots.astype(np.uint16) if self._slots <= 1 << 16 else slots  # sorted by radix
        self._order = np.argsort(small, kind="stable").astype(np.int32)
        self._ends[1:] = np.cumsum(np.bincount(slots, minlength=self._slots))
        self._size = index.size
