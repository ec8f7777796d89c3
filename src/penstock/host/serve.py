"""Answers to other hosts that fetch entries of slots that have left this host."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.flight as fl

from penstock import codec
from penstock.errors import ProtocolError, StaleRunError
from penstock.host.holdings import Holdings
from penstock.host.load import Load
from penstock.plan.slots import must_be_slots
from penstock.state.arrays import Array
from penstock.state.table.parted import StepTable
from penstock.wire.messages import AFTER, LACKING, UNKNOWN, CopyTicket

_PIECE = 4 << 20
"""Approximate bytes per piece of a slot. The lock is released between two pieces."""
_MOST = 16_384
"""Largest number of entries per piece: many small entries hold the lock as long as a few large ones."""
_FIRST = 256
"""Number of entries in the first piece, which shows how large an entry is."""


def answer(
    holdings: Holdings,
    lock: threading.Condition,
    load: Load,
    will_reach: Callable[[int, int], bool],
    data: bytes,
) -> fl.FlightDataStream:
    """Return the stream for a ticket. Waits for a reroute that the host `will_reach` in a live run.

    The stream of a slot that no row waits for rests between pieces, as this host's load demands.
    """
    ticket = codec.decode(data, CopyTicket)
    table = holdings.operator.table
    _check(ticket, table)
    keys = None if ticket.keys is None else table.codec.from_storage(ticket.keys)
    slots = np.array(ticket.slots, np.int64)
    if keys is not None:
        slots = table.slot_map.of(keys.hashes)
    copies, version, run = holdings.copies, ticket.version, ticket.run
    with lock:
        residence = holdings.residence
        lock.wait_for(
            lambda: residence.holds(slots, version, run).all() or not will_reach(run, version)
        )
        if run >= 0 and not residence.holds(slots, version, run).all():
            raise StaleRunError(f"this host has no copy for reroute {version} of run {run}")
        lacking = copies.lacking(slots)
        facts = {} if lacking is None else {LACKING: codec.encode(lacking)}
        if ticket.kind == "slot":
            entries = copies.of_slot(ticket.slots[0], version, run)
            pieces = _pieces(holdings, lock, load, ticket, entries, table.renumberings)
            return fl.GeneratorStream(table.schema.with_metadata(facts), pieces)
        if keys is None:
            rows, after = copies.of_due(slots, ticket.limits, version, run)
            facts[AFTER] = codec.encode(after)
        else:
            rows, unknown = copies.of_keys(keys, version, run)
            facts[UNKNOWN] = unknown.astype(np.int64).tobytes()
    return fl.RecordBatchStream(rows.replace_schema_metadata(facts))


def _check(ticket: CopyTicket, table: StepTable) -> None:
    """Refuse a ticket that does not fit this step."""
    must_be_slots(ticket.slots, table.slot_map.count)
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
            f"another host's request for {ticket.kind!r} does not fit this step",
            hint="use the same flow and the same release of Penstock everywhere",
        )


def _pieces(
    holdings: Holdings,
    lock: threading.Condition,
    load: Load,
    ticket: CopyTicket,
    entries: Array,
    renumberings: int,
) -> Iterator[pa.RecordBatch]:
    start, count = 0, _FIRST
    while start < len(entries):
        began = time.monotonic()
        with lock:
            slot = np.array(ticket.slots)
            held = holdings.residence.holds(slot, ticket.version, ticket.run).all()
            if not held or holdings.operator.table.renumberings != renumberings:
                raise StaleRunError("the copy of this slot was dropped while it was read")
            piece = holdings.operator.table.export(entries[start : start + count])
        start += count
        count = max(1, int(_PIECE * count / max(1, piece.get_total_buffer_size())))
        count = min(count, _MOST)
        yield from piece.to_batches()
        if ticket.at_leisure and start < len(entries):
            time.sleep(load.rest_s(time.monotonic() - began))
