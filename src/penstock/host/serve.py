"""Answers to other hosts that ask for entries of slots that this host gave away."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.flight as fl

from penstock import codec
from penstock.errors import ProtocolError, StaleRunError
from penstock.host.machine import HostMachine
from penstock.state.arrays import Array
from penstock.wire.messages import AFTER, UNKNOWN, CopyTicket

_PIECE = 4 << 20
"""Bytes of a slot that are exported at a time, about: between two pieces the lock is free."""
_MOST = 16_384
"""Entries of a piece at most: many small ones hold the lock as long as a few big ones."""
_FIRST = 256
"""Entries of the first piece, which shows how big an entry is."""


def answer(machine: HostMachine, lock: threading.Condition, data: bytes) -> fl.FlightDataStream:
    """The stream that a ticket asks for."""
    ticket = codec.decode(data, CopyTicket)
    if ticket.kind == "slot":
        with lock:
            entries = machine.copies.of_slot(ticket.slots[0], ticket.version)
            renumberings = machine.operator.table.renumberings
        pieces = _pieces(machine, lock, ticket, entries, renumberings)
        return fl.GeneratorStream(machine.operator.table.schema, pieces)
    with lock:
        if ticket.kind == "due":
            slots = np.array(ticket.slots, np.int64)
            table, after = machine.copies.of_due(slots, ticket.limits, ticket.version)
            table = table.replace_schema_metadata({AFTER: codec.encode(after)})
        elif ticket.keys is not None:
            keys = machine.operator.table.codec.from_storage(ticket.keys)
            table, unknown = machine.copies.of_keys(keys, ticket.version)
            table = table.replace_schema_metadata({UNKNOWN: unknown.astype(np.int64).tobytes()})
        else:
            raise ProtocolError("another host asks for keys and names none")
    return fl.RecordBatchStream(table)


def _pieces(
    machine: HostMachine,
    lock: threading.Condition,
    ticket: CopyTicket,
    entries: Array,
    renumberings: int,
) -> Iterator[pa.RecordBatch]:
    start, count = 0, _FIRST
    while start < len(entries):
        with lock:
            frozen = machine.residence.frozen[ticket.slots[0]]
            if (frozen, machine.operator.table.renumberings) != (ticket.version, renumberings):
                raise StaleRunError("the copy of this slot was given up meanwhile")
            piece = machine.operator.table.export(entries[start : start + count])
        start += count
        count = max(1, int(_PIECE * count / max(1, piece.get_total_buffer_size())))
        count = min(count, _MOST)
        yield from piece.to_batches()
