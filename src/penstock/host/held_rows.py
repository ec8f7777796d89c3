"""Rows of a live run whose state is not here: held back until it has come, key by key and in order.

All others go first, also those of the same slot.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.host.holdings import Holdings
from penstock.host.residence import NeedKeys
from penstock.state.arrays import Array, fixed_array
from penstock.state.keys.codec import Keys, slots_of
from penstock.wire.live import Chunk

_FETCHES = 4
"""Requests for missing keys that are under way at a time."""

Piece = tuple[str, pa.RecordBatch]
"""Records that can be applied, and of what kind they are."""


@dataclass(frozen=True)
class HeldChunk:
    """Rows of a chunk that wait for state."""

    serial: int
    courier: int
    number: int
    kind: str
    rows: pa.RecordBatch
    keys: Keys
    slots: Array

    def only(self, rows: Array) -> HeldChunk:
        """Some of its rows."""
        kept = (_taken(self.rows, rows), self.keys.take(rows), self.slots[rows])
        return HeldChunk(self.serial, self.courier, self.number, self.kind, *kept)


class HeldRows:
    """What one host holds back in one run, and what it has asked for because of that."""

    def __init__(self, holdings: Holdings) -> None:
        self._holdings, self._operator = holdings, holdings.operator
        self.chunks: list[HeldChunk] = []
        self.slots = np.zeros(holdings.operator.table.slots, np.bool_)
        """Whether rows of a slot are held."""
        self.next_serial = 0
        """The serial of the next chunk to be held: those before it came before what comes now."""
        self._came = self._unasked = False
        """State has come; rows are held that nobody has asked state for."""
        self._asked = 0

    @property
    def first_serial(self) -> int:
        """The serial of the oldest chunk that is held, or of the next one."""
        return self.chunks[0].serial if self.chunks else self.next_serial

    def state_came(self) -> None:
        """Entries or whole slots were installed."""
        self._came = True

    def answered(self) -> None:
        """A request for missing keys is over."""
        self._asked -= 1

    def hold(self, courier: int, chunk: Chunk, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        """Hold back what cannot be applied of a chunk; gives the rest of it."""
        if not self._holdings.residence.any_partial:
            return batch
        keys = self._operator.keys(chunk.kind, [batch])[0]
        slots = slots_of(keys.hashes, self._operator.table.slots)
        waits = self._lacking(keys, slots)
        if not waits.any():
            return batch
        held = HeldChunk(self.next_serial, courier, chunk.number, chunk.kind, batch, keys, slots)
        held = held.only(np.flatnonzero(waits))
        self.chunks.append(held)
        self.next_serial += 1
        self.slots[held.slots] = True
        free = np.flatnonzero(~waits)
        return _taken(batch, free) if len(free) else None

    def _lacking(self, keys: Keys, slots: Array) -> Array:
        """Whether each row's state is not here, or its slot comes whole and is not complete."""
        residence = self._holdings.residence
        lacking = residence.whole[slots]
        unsure = np.flatnonzero(residence.partial[slots] & ~lacking)
        if len(unsure):
            lacking[unsure] = ~self._operator.table.known(keys.take(unsure))
        return lacking

    def released(self) -> tuple[list[Piece], NeedKeys | None]:
        """Rows whose state has come, and what must be fetched for others."""
        if not self._came:
            return [], None
        self._came = False
        pieces, waiting = list[Piece](), list[HeldChunk]()
        self.slots = np.zeros_like(self.slots)
        for held in self.chunks:
            lacking = self._lacking(held.keys, held.slots)
            if not lacking.all():
                pieces.append((held.kind, _taken(held.rows, np.flatnonzero(~lacking))))
            if lacking.any():
                waiting.append(held.only(np.flatnonzero(lacking)))
                self.slots[waiting[-1].slots] = True
        self.chunks = waiting
        return pieces, self.need(waiting) if self._unasked or not self._asked else None

    def need(self, held: list[HeldChunk]) -> NeedKeys | None:
        """The state to fetch that these rows wait for, without slots that come whole; None: nothing now."""
        if not held:
            return None
        self._unasked = self._asked >= _FETCHES
        if self._unasked:
            return None
        whole = self._holdings.residence.whole
        lacking = (h.keys.take(np.flatnonzero(~whole[h.slots])) for h in held)
        missing = self._holdings.missing([keys for keys in lacking if len(keys)])
        if missing is None:
            return None
        self._asked += 1
        return self._holdings.need_keys(missing)


def _taken(batch: pa.RecordBatch, rows: Array) -> pa.RecordBatch:
    return batch.take(fixed_array(rows, pa.int64()))
