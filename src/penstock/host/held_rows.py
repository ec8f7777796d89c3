"""Rows of a live run whose state is not here: held back until it has come, key by key and in order.

All others go first, also those of the same slot; unless the flow asks for order, or a slot comes whole:
then the rows of a slot wait together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.host.holdings import Holdings
from penstock.host.residence import NeedKeys
from penstock.state.arrays import Array, fixed_array
from penstock.state.keys.codec import Keys, slots_of
from penstock.state.keys.index import KeyIndex, key_index
from penstock.wire.live import Chunk

_FETCHES = 4
"""Requests for missing keys that are under way at a time."""

Piece = tuple[str, pa.RecordBatch, int]
"""Records that can be applied: of what kind they are, and which courier sent them."""


@dataclass(frozen=True)
class HeldChunk:
    """Rows of a chunk that wait for state, in their order."""

    serial: int
    courier: int
    number: int
    kind: str
    rows: pa.RecordBatch
    keys: Keys
    slots: Array

    def only(self, rows: Array) -> HeldChunk:
        """Some of its rows."""
        kept = (taken(self.rows, rows), self.keys.take(rows), self.slots[rows])
        return HeldChunk(self.serial, self.courier, self.number, self.kind, *kept)


class HeldRows:
    """What one host holds back in one run, and what it has asked for because of that. With `by_slot`, all
    rows of a slot keep their order, not only those of a key."""

    def __init__(self, holdings: Holdings, by_slot: bool = False) -> None:
        self._holdings, self._operator, self._by_slot = holdings, holdings.operator, by_slot
        self.chunks: list[HeldChunk] = []
        self.next_serial = 0
        """The serial of the next chunk to be held: those before it came before what comes now."""
        self._came = self._unasked = False
        """State has come; rows are held that nobody has asked state for."""
        self._asked = 0
        self._begin()

    def _begin(self) -> list[HeldChunk]:
        """Hold nothing; gives what was held."""
        held, self.chunks = self.chunks, []
        self.slots = np.zeros(self._operator.table.slots, np.bool_)
        """Whether rows of a slot are held."""
        self._keys: KeyIndex = key_index(self._operator.table.codec.layout)
        """The keys that rows are held of. State may be here before they are released: later rows wait."""
        return held

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
        if not self.chunks and not self._holdings.residence.any_partial:
            return batch
        keys = self._operator.keys(chunk.kind, [batch])[0]
        slots = slots_of(keys.hashes, self._operator.table.slots)
        before = len(self.chunks)
        free = self._keep(
            HeldChunk(self.next_serial, courier, chunk.number, chunk.kind, batch, keys, slots)
        )
        self.next_serial += len(self.chunks) - before
        return free

    def released(self) -> tuple[list[Piece], NeedKeys | None]:
        """Rows whose state has come, and what must be fetched for others."""
        if not self._came:
            return [], None
        self._came = False
        pieces = list[Piece]()
        for held in self._begin():
            free = self._keep(held)
            if free is not None:
                pieces.append((held.kind, free, held.courier))
        return pieces, self.need(self.chunks) if self._unasked or not self._asked else None

    def _keep(self, chunk: HeldChunk) -> pa.RecordBatch | None:
        """Hold those rows of a chunk that must wait; gives the others."""
        waits = self._waits(chunk.keys, chunk.slots)
        if not waits.any():
            return chunk.rows
        held = chunk if waits.all() else chunk.only(np.flatnonzero(waits))
        self.chunks.append(held)
        self.slots[held.slots] = True
        self._keys.upsert(held.keys)
        return None if held is chunk else taken(chunk.rows, np.flatnonzero(~waits))

    def _waits(self, keys: Keys, slots: Array) -> Array:
        """Whether each row must wait: its state is not here, or earlier rows wait for it."""
        residence = self._holdings.residence
        waits = residence.whole[slots]
        unsure = np.flatnonzero(residence.partial[slots] & ~waits)
        if len(unsure):
            waits[unsure] = ~self._operator.table.known(keys.take(unsure))
        if self._by_slot:
            stuck = self.slots.copy()
            stuck[slots[waits]] = True
            return stuck[slots]
        behind = np.flatnonzero(self.slots[slots] & ~waits)
        if len(behind):
            waits[behind] = self._keys.find(keys.take(behind)) >= 0
        return waits

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


def taken(batch: pa.RecordBatch, rows: Array) -> pa.RecordBatch:
    """Some rows of a batch."""
    return batch.take(fixed_array(rows, pa.int64()))
