"""Mapping of keys to dense entry numbers: the first distinct key is entry 0, the next one entry 1, and so on.

Tables and combiners store their values by entry number. Entries are only appended, and removed from the
end, which makes undoing inserts cheap.

>>> index = key_index("int")
>>> index.upsert(int_keys(np.array([7, 9, 7])))
array([0, 1, 0])
>>> index.find(int_keys(np.array([9, 8])))
array([ 1, -1])
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

import numpy as np

from penstock.state.arrays import Array, grown, more
from penstock.state.keys import index_kernels as kernels
from penstock.state.keys.codec import Keys, int_keys
from penstock.state.keys.kernels import gather_bytes, gather_offsets

_LEAST = 1024
_LOAD = 0.7
"""Maximum load factor of the index. A higher one makes probing slow, a lower one wastes memory."""


def _cells_for(entries: int) -> int:
    cells = 2 * _LEAST
    while entries >= cells * _LOAD:
        cells *= 2
    return cells


class KeyIndex(ABC):
    """Base class of the indexes for both key layouts. Single-threaded. Entry numbers stay valid until `keep`
    or `clear`."""

    size: int
    """Number of entries."""
    room: int
    """Number of entries that fit before arrays grow. Arrays beside the index grow with it."""

    def __init__(self) -> None:
        self.size, self.room = 0, _LEAST
        self._cells = np.full(2 * _LEAST, -1, np.int32)

    @property
    def nbytes(self) -> int:
        """Bytes of memory, spare room included."""
        return sum(array.nbytes for array in vars(self).values() if isinstance(array, np.ndarray))

    def upsert(self, keys: Keys) -> Array:
        """The entry (int64) of each key. New keys are appended."""
        out = np.empty(len(keys), np.int64)
        row = 0
        while True:
            self.size, row = self._upsert(keys, row, out)
            if row == len(keys):
                return out
            if self.size >= self.room:
                self._widen(more(self.room))
            if self.size >= self._limit():
                self._rehash(2 * len(self._cells))

    def reserve(self, entries: int) -> None:
        """Make room for `entries` entries in total, to avoid growing step by step. Only a hint."""
        if entries > self.room:
            self._widen(entries)
        self._rehash(_cells_for(entries))

    def truncate(self, size: int) -> None:
        """Remove the entries from number `size` on."""
        before, self.size = self.size, size
        if before > 2 * size + _LEAST:
            self._cells.fill(-1)
            kernels.fill(self._cells, self.hashes(slice(size)))
        else:
            kernels.unwind(self._cells, self.hashes(slice(size, before)), size)

    def clear(self) -> None:
        """Remove all entries, but keep the memory."""
        self.size = 0
        self._cells.fill(-1)

    def keep(self, entries: Array) -> None:
        """Remove all entries but these, and renumber these in the given order."""
        kept = self.keys(entries)
        self.size = len(entries)
        self.room = max(_LEAST, more(self.size))
        self._replace(kept)
        self._cells = np.empty(0, np.int32)
        self._rehash(_cells_for(self.size))

    def _rehash(self, cells: int) -> None:
        if cells > len(self._cells):
            self._cells = np.full(cells, -1, np.int32)
            kernels.fill(self._cells, self.hashes(slice(self.size)))

    def _limit(self) -> int:
        return min(self.room, int(len(self._cells) * _LOAD))

    @abstractmethod
    def find(self, keys: Keys) -> Array:
        """The entry (int64) of each key; -1 for an unknown key."""

    @abstractmethod
    def keys(self, entries: Array) -> Keys:
        """The keys of these entries."""

    @abstractmethod
    def hashes(self, entries: Array | slice) -> Array:
        """The hashes of these entries' keys."""

    @abstractmethod
    def _upsert(self, keys: Keys, row: int, out: Array) -> tuple[int, int]:
        """Find or append keys from `row` on until arrays are full (see `upsert_ints`)."""

    @abstractmethod
    def _widen(self, room: int) -> None:
        """Make room for `room` entries in total."""

    @abstractmethod
    def _replace(self, kept: Keys) -> None:
        """Replace all keys with these `size` keys."""


class IntIndex(KeyIndex):
    """An index for keys of the layout "int". A key takes 8 bytes; hashes are computed when needed."""

    def __init__(self) -> None:
        super().__init__()
        self._keys = np.zeros(self.room, np.int64)

    def find(self, keys: Keys) -> Array:
        entries: Array = kernels.find_ints(keys.ints, keys.hashes, self._cells, self._keys)
        return entries

    def keys(self, entries: Array) -> Keys:
        return int_keys(self._keys[entries])

    def hashes(self, entries: Array | slice) -> Array:
        return int_keys(self._keys[entries]).hashes

    def _upsert(self, keys: Keys, row: int, out: Array) -> tuple[int, int]:
        size, row = kernels.upsert_ints(
            keys.ints, keys.hashes, row, self._cells, self._keys, self.size, self._limit(), out
        )
        return size, row

    def _widen(self, room: int) -> None:
        self._keys = grown(self._keys, self.size, room)
        self.room = room

    def _replace(self, kept: Keys) -> None:
        assert kept.ints is not None
        self._keys = grown(kept.ints, self.size, self.room)


class ByteIndex(KeyIndex):
    """An index for keys of the layout "bytes": the bytes of all keys in one array, and the hash of each."""

    def __init__(self) -> None:
        super().__init__()
        self._hashes = np.zeros(self.room, np.uint64)
        self._ends = np.zeros(self.room + 1, np.int64)
        self._heap = np.zeros(16 * self.room, np.uint8)

    def find(self, keys: Keys) -> Array:
        entries: Array = kernels.find_bytes(
            keys.offsets, keys.data, keys.hashes, self._cells, self._hashes, self._ends, self._heap
        )
        return entries

    def keys(self, entries: Array) -> Keys:
        offsets = gather_offsets(self._ends, entries)
        data = gather_bytes(self._ends, self._heap, entries, offsets)
        return Keys(self._hashes[entries], offsets=offsets, data=data)

    def hashes(self, entries: Array | slice) -> Array:
        out: Array = self._hashes[entries]
        return out

    def _upsert(self, keys: Keys, row: int, out: Array) -> tuple[int, int]:
        size, done = kernels.upsert_bytes(
            keys.offsets, keys.data, keys.hashes, row, self._cells, self._hashes, self._ends,
            self._heap, self.size, self._limit(), out,
        )  # fmt: skip
        if done < len(keys):
            assert keys.offsets is not None
            used = int(self._ends[size])
            need = used + int(keys.offsets[done + 1] - keys.offsets[done])
            if need > len(self._heap):
                self._heap = grown(self._heap, used, max(need, more(len(self._heap))))
        return size, done

    def _widen(self, room: int) -> None:
        self._hashes = grown(self._hashes, self.size, room)
        self._ends = grown(self._ends, self.size + 1, room + 1)
        self.room = room

    def _replace(self, kept: Keys) -> None:
        assert kept.offsets is not None and kept.data is not None
        self._hashes = grown(kept.hashes, self.size, self.room)
        self._ends = grown(kept.offsets, self.size + 1, self.room + 1)
        self._heap = grown(kept.data, len(kept.data), max(16 * _LEAST, more(len(kept.data))))


def key_index(layout: Literal["int", "bytes"]) -> KeyIndex:
    """Create an empty index for keys of this layout."""
    return IntIndex() if layout == "int" else ByteIndex()
