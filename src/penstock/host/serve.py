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
from penstock.plan.slots import must_be_slots
from penstock.state.arrays import Array
from penstock.state.table.parted import StepTable
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
    _check(ticket, machine.operator.table)
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
        else:
            keys = machine.operator.table.codec.from_storage(ticket.keys)
            table, unknown = machine.copies.of_keys(keys, ticket.version)
            table = table.replace_schema_metadata({UNKNOWN: unknown.astype(np.int64).tobytes()})
    return fl.RecordBatchStream(table)


def _check(ticket: CopyTicket, table: StepTable) -> None:
    """Refuse a ticket that asks for what a host of this step cannot have."""
    must_be_slots(ticket.slots, table.slots)
    columns = set(table.schema.names)
    fits = (
        len(ticket.slots) == 1
        if ticket.kind == "slot"
        else ticket.keys is not None and ticket.keys.type == table.codec.storage_type
        if ticket.kind == "keys"
        else set(ticket.limits) <= columns
    )
    numbers = (ticket.version, *ticket.limits.values())
    if not fits or any(abs(number) >= 1 << 63 for number in numbers):
        raise ProtocolError(
            f"another host asks for {ticket.kind!r} in a way that does not fit this step",
            hint="use the same flow and the same release of Penstock everywhere",
        )


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
