"""Rows of a live run whose state has not arrived: held back until it has, key by key and in order.

Other rows overtake them, even rows of the same slot. Only if the flow is ordered, or the slot is fetched as
a whole, do all rows of a slot wait together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.host.holdings import Holdings
from penstock.host.residence import NeedKeys
from penstock.state.arrays import Array, fixed_array
from penstock.state.keys.codec import Keys
from penstock.state.keys.index import KeyIndex, key_index
from penstock.wire.live import Chunk

_FETCHES = 4
"""Largest number of concurrent requests for missing keys."""

Piece = tuple[str, pa.RecordBatch, int]
"""Records that can be applied: (kind, records, number of the courier that sent them)."""


@dataclass(frozen=True)
class HeldChunk:
    """Rows of a chunk that wait for state, in order."""

    serial: int
    courier: int
    number: int
    kind: str
    rows: pa.RecordBatch
    keys: Keys
    slots: Array

    def only(self, rows: Array) -> HeldChunk:
        """Return a chunk with some of the rows, by index."""
        kept = (taken(self.rows, rows), self.keys.take(rows), self.slots[rows])
        return HeldChunk(self.serial, self.courier, self.number, self.kind, *kept)


class HeldRows:
    """Rows that one host holds back in one run, and the requests that they caused.

    With `by_slot`, all rows of a slot keep their order, not only those of a key.
    """

    def __init__(self, holdings: Holdings, by_slot: bool = False) -> None:
        self._holdings, self._operator, self._by_slot = holdings, holdings.operator, by_slot
        self.chunks: list[HeldChunk] = []
        self.next_serial = 0
        """Serial number of the next chunk to be held. Chunks with lower numbers arrived earlier."""
        self._came = self._unasked = False
        """Whether state has arrived; whether rows are held whose state was not requested."""
        self._asked = 0
        self._begin()

    def _begin(self) -> list[HeldChunk]:
        """Reset to holding nothing, and return the chunks that were held."""
        held, self.chunks = self.chunks, []
        self.slots = np.zeros(self._operator.table.slot_map.count, np.bool_)
        """Whether rows of a slot are held."""
        self._keys: KeyIndex = key_index(self._operator.table.codec.layout)
        """Keys of held rows. Later rows of these keys wait too, even when the state has arrived."""
        return held

    @property
    def first_serial(self) -> int:
        """Serial number of the oldest held chunk, or of the next one if none is held."""
        return self.chunks[0].serial if self.chunks else self.next_serial

    def state_came(self) -> None:
        """Note that entries or whole slots were installed."""
        self._came = True

    def answered(self) -> None:
        """Note that a request for missing keys is finished."""
        self._asked -= 1

    def hold(self, courier: int, chunk: Chunk, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        """Hold back the rows of a chunk that cannot be applied yet, and return the others."""
        if not self.chunks and not self._holdings.residence.any_partial:
            return batch
        keys = self._operator.keys(chunk.kind, [batch])[0]
        slots = self._operator.table.slot_map.of(keys.hashes)
        before = len(self.chunks)
        free = self._keep(
            HeldChunk(self.next_serial, courier, chunk.number, chunk.kind, batch, keys, slots)
        )
        self.next_serial += len(self.chunks) - before
        return free

    def released(self) -> tuple[list[Piece], NeedKeys | None]:
        """Return the rows whose state has arrived, and the state to fetch for the others."""
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
        """Hold those rows of a chunk that must wait, and return the others; None if all must wait."""
        waits = self._waits(chunk.keys, chunk.slots)
        if not waits.any():
            return chunk.rows
        held = chunk if waits.all() else chunk.only(np.flatnonzero(waits))
        self.chunks.append(held)
        self.slots[held.slots] = True
        self._keys.upsert(held.keys)
        return None if held is chunk else taken(chunk.rows, np.flatnonzero(~waits))

    def _waits(self, keys: Keys, slots: Array) -> Array:
        """Tell for each row whether it must wait: for state that is missing, or behind earlier rows."""
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
        """Return the state to fetch for these rows; None if there is nothing to request now.

        Slots that are fetched as a whole are left out.
        """
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
    """Return some rows of a batch, by index."""
    return batch.take(fixed_array(rows, pa.int64()))
