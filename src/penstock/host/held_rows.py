"""Rows of a live run whose state is not here: held back slot by slot and in order, until it has come."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa

from penstock.host.holdings import Holdings
from penstock.host.residence import NeedKeys
from penstock.state.arrays import Array, fixed_array
from penstock.state.keys.codec import Keys, slots_of
from penstock.wire.live import Chunk

_FETCHES = 4
"""Requests for missing keys that are under way at a time."""

Piece = tuple[str, pa.RecordBatch, int]
"""Records that can be applied: of what kind they are, and which courier sent them."""


@dataclass(frozen=True)
class HeldChunk:
    """Rows of a chunk that wait for state, sorted by slot."""

    serial: int
    courier: int
    number: int
    kind: str
    rows: pa.RecordBatch
    keys: Keys
    slots: Array
    left: tuple[tuple[int, int], ...]
    """(begin, end) of each slot's rows that still wait."""


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
        residence, table = self._holdings.residence, self._operator.table
        if not residence.any_partial and not self.chunks:
            return batch
        keys = self._operator.keys(chunk.kind, [batch])[0]
        slots = slots_of(keys.hashes, table.slots)
        away = np.flatnonzero(residence.partial[slots])
        stuck = residence.whole | self.slots
        stuck[slots[away[~table.known(keys.take(away))]]] = True
        waits = stuck[slots]
        if not waits.any():
            return batch
        rows = np.flatnonzero(waits)
        rows = rows[np.argsort(slots[rows], kind="stable")]
        slots = slots[rows]
        bounds = [0, *(np.flatnonzero(np.diff(slots)) + 1).tolist(), len(slots)]
        held = HeldChunk(
            self.next_serial, courier, chunk.number, chunk.kind, _taken(batch, rows),
            keys.take(rows), slots, tuple(pairwise(bounds)),
        )  # fmt: skip
        self.chunks.append(held)
        self.next_serial += 1
        self.slots[slots] = True
        free = np.flatnonzero(~waits)
        return _taken(batch, free) if len(free) else None

    def released(self) -> tuple[list[Piece], NeedKeys | None]:
        """Rows whose state has come, and what must be fetched for others."""
        if not self._came:
            return [], None
        self._came = False
        residence, table, pieces = self._holdings.residence, self._operator.table, list[Piece]()
        blocked, waiting = np.zeros_like(self.slots), list[HeldChunk]()
        for held in self.chunks:
            lacks = residence.partial[held.slots] & ~table.known(held.keys)
            lacks |= residence.whole[held.slots]
            left = []
            for begin, end in held.left:
                slot = held.slots[begin]
                if blocked[slot] or lacks[begin:end].any():
                    blocked[slot] = True
                    left.append((begin, end))
                else:
                    rows = held.rows.slice(begin, end - begin)
                    pieces.append((held.kind, rows, held.courier))
            if left:
                waiting.append(replace(held, left=tuple(left)))
        self.chunks, self.slots = waiting, blocked
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
