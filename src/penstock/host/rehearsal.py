"""A warm-up: a host's first epochs, run in memory, so that the real ones do not load the kernels.

Compiled kernels are read from their cache when they are first called. That takes about a second of a
core for all kernels of a host. The warm-up runs before Spark's daemon forks its workers, so that each of
them starts with the kernels loaded.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.exchange.aside import Aside
from penstock.exchange.split import split
from penstock.exchange.step_work import StepWork
from penstock.exchange.tally import Tally
from penstock.host.holdings import Holdings
from penstock.host.machine import HostMachine
from penstock.host.residence import NeedKeys
from penstock.host.rounds import Rounds
from penstock.model import HostId
from penstock.operators.aggregate.aggregates import AggregatePlan, count, max, min, sum
from penstock.operators.operator import EpochTime, Operator, Outgoing
from penstock.operators.places import FirstPlaces, Places
from penstock.operators.process.processor import KeyedProcessor
from penstock.operators.process.step import ProcessPlan
from penstock.plan.assignment import Assignment, Incoming
from penstock.plan.epoch import RouteTable
from penstock.plan.steps import KeyedStep
from penstock.state.arrays import fixed_array
from penstock.state.store.compaction import compact
from penstock.state.store.manifest import Manifest
from penstock.state.store.reader import StateReader
from penstock.state.store.store import Store
from penstock.state.variables.handle import StateHandle, Timers
from penstock.state.variables.values import Row
from penstock.wire.live import CheckpointMessage, Chunk, Frame, Handing, Message, Reroute
from penstock.wire.messages import ChannelHeader

_SLOTS = 4
_ROWS = 64


def rehearse() -> None:
    """Call the compiled kernels that nearly every flow needs. Opens no threads, connections or files."""
    aggregates()
    _live(
        KeyedStep("rehearsal-process", _SLOTS, ProcessPlan(_rows().schema, ["key"], _Sum())),
        _rows(),
    )
    _order()


def aggregates() -> None:
    """Run aggregates, in micro-batches and live."""
    for rows in (_rows(), _rows(pa.string())):
        totals = {"n": count(), "s": sum("v"), "low": min("v"), "high": max("x")}
        plan = AggregatePlan(rows.schema, ["key"], totals)
        step = KeyedStep(f"rehearsal-{rows.schema.field('key').type}", _SLOTS, plan)
        _epochs(step, rows)
        _live(step, rows)


def _rows(key: pa.DataType | None = None) -> pa.RecordBatch:
    """Rows with a key of this type; int64 by default."""
    number = fixed_array(np.arange(_ROWS), pa.int64())
    keys = number.cast(key or pa.int64())
    return pa.record_batch({"key": keys, "v": number, "x": number.cast(pa.float64())})


class _Sum(KeyedProcessor):
    """User code with state. Arrow imports pandas with the first list that it converts, which takes 0.4 s of a
    core: better once here than in each new host, in the middle of a burst."""

    output_schema = "key long, total long"

    def init(self, handle: StateHandle) -> None:
        self._total = handle.get_value_state("total", "total long")

    def handle_input_rows(
        self, key: tuple[Any, ...], rows: Iterator[Row], timers: Timers
    ) -> list[tuple[Any, ...]]:
        (total,) = self._total.get() or (0,)
        for row in rows:
            total += row.v
        self._total.update((total,))
        return [(key[0], total)]


def _epochs(step: KeyedStep, rows: pa.RecordBatch) -> None:
    """Run two epochs, then move the slots to another host, which fetches their entries."""
    store = Store(f"memory://{secrets.token_hex(4)}")
    first, second = (HostMachine(step.operator()) for _ in range(2))
    every = tuple(range(_SLOTS))
    first.assign(Assignment(-1, every))
    for epoch in range(2):
        header, kind, sent = _sent(step, epoch, rows)
        first.needs(header, kind, sent)
        first.close_channel(header, kind, sent)
        delta, _ = first.seal(epoch, 0, 1)
        ref = store.write_delta(epoch, 0, step.id, "rehearsal/0", delta)
        store.write_manifest(Manifest(epoch, 0, -1, "", (ref,), {}, {}, 0, 0))
    first.assign(Assignment(1, ()))
    second.assign(Assignment(1, every, (Incoming(every, "nowhere"),)))
    header, kind, sent = _sent(step, 2, rows)
    need = second.needs(header, kind, sent)
    assert isinstance(need, NeedKeys)
    table = first.operator.table
    for _, keys in need.parts:
        entries, _ = first.copies.of_keys(keys, 1)
        second.install(need, keys, entries)
    second.close_channel(header, kind, sent)
    second.seal(2, 0, 1)
    compact(
        store, step.id, table.codec, table.schema, np.arange(_SLOTS), 1, "rehearsal", lambda: None
    )
    reader = StateReader(store, step.id, table.codec, table.schema, _SLOTS)
    reader.refresh(1)
    for _, keys in need.parts:
        reader.find(keys)
    _rounds(first.operator, kind, sent)


def _rounds(operator: Operator, kind: str, sent: list[pa.RecordBatch]) -> None:
    """Call what live flows also need: epochs of several rounds, and a rollback."""
    operator.rollback()
    for epoch in range(2):
        operator.open(EpochTime(epoch, 0))
        operator.apply(kind, sent)
        operator.table.least(operator.table.schema.names[4], 0, operator.table.touched())
        operator.close()
        operator.table.step()
        operator.table.delta(np.arange(_SLOTS))
        operator.table.cut()
    operator.table.settle()
    operator.rollback()


def _live(step: KeyedStep, rows: pa.RecordBatch) -> None:
    """Play a live run: rows as they come from the wire, a checkpoint, a reroute, and a rollback."""
    store = Store(f"memory://{secrets.token_hex(4)}")
    first, second = (Holdings(step.operator()) for _ in range(2))
    every = tuple(range(_SLOTS))
    first.assign(Assignment(-1, every))
    second.assign(Assignment(-1, ()))
    runs = [Rounds(held, host, 0, 1, lambda: 0) for held, host in ((first, "a"), (second, "b"))]
    sender = step.plan.sender(EpochTime(0, 0))
    sender.combines = False
    sent = [_received(outgoing.batch) for outgoing in sender.add(0, rows)]
    chunk = Frame(chunk=Chunk(0, sender.finish()[0]))
    handing = Handing(every, "a", "a", "b", "b")
    for epoch in range(2):
        for batch in (*sent, *sent):
            runs[0].receive(0, chunk, batch)
            runs[0].work()
        checkpoint = CheckpointMessage(epoch, epoch, epoch - 1)
        runs[0].receive(0, Frame(message=Message(checkpoint=checkpoint)))
        for gathered in runs[0].work().gathered:
            store.write_delta(epoch, 0, step.id, "rehearsal/0", gathered.deltas[0])
    moved = Frame(message=Message(reroute=Reroute(2, step.id, (handing,))))
    runs[0].receive(0, moved)
    runs[0].work()
    runs[1].receive(0, moved)
    runs[1].receive(0, chunk, sent[0])
    for need in runs[1].work().needs:
        assert isinstance(need, NeedKeys)
        for _, keys in need.parts:
            codec = first.operator.table.codec
            wire_keys = codec.from_storage(
                _received(pa.record_batch([codec.to_storage(keys)], ["k"])).column(0)
            )
            entries, unknown = first.copies.of_keys(wire_keys, 2, 0)
            keys.take(np.frombuffer(unknown.tobytes(), np.int64))
            second.install(need, keys, pa.Table.from_batches([_received(entries.to_batches()[0])]))
        runs[1].fetched(need)
        runs[1].work()
    for held in (first, second):
        held.return_to(0)


def _received(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch as it comes from the wire, in read-only memory."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return pa.ipc.open_stream(pa.py_buffer(sink.getvalue().to_pybytes())).read_next_batch()


def _sent(
    step: KeyedStep, epoch: int, rows: pa.RecordBatch
) -> tuple[ChannelHeader, str, list[pa.RecordBatch]]:
    """Return the header, kind and batches that a courier sends for these rows, split for two hosts."""
    time = EpochTime(epoch, 0)
    header = ChannelHeader(epoch, 0, step.id, 0, epoch, 1, time)
    routes, tally = RouteTable.even([HostId("a"), HostId("b")], _SLOTS), Tally(step)
    parts: list[pa.RecordBatch] = []

    def send(outgoing: Outgoing) -> None:
        parts.extend(part for _, part in split(outgoing.batch, tally.note(*outgoing), routes))

    kind = StepWork("fail", False, Aside()).send(step, step.plan.sender(time), [[rows]], send)
    return header, kind, parts


def _order() -> None:
    """Call what ordered flows also need."""
    entries = np.arange(2)
    places = Places.of_records(0, np.array([1, 0]))
    FirstPlaces().note(entries, entries.astype(np.uint64), places)
    places.order()


if __name__ == "__main__":
    rehearse()
