"""The contract of sinks that replace the rows of an epoch that is run again.

A test of such a sink calls all checks. `read` returns the values of column `n` of all visible rows.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from penstock.faults import Fault, InjectedFault, armed
from penstock.live.sinks.sink import LiveSink, RowIds
from penstock.live.sinks.transactional import TransactionalSink
from penstock.spark.sinks import Sink, replaces
from penstock.state.store.manifest import Manifest
from penstock.state.store.places import Place
from penstock.state.store.store import Store

SCHEMA = pa.schema([("n", pa.int64())])
Read = Callable[[], Iterable[int]]


def rows(*numbers: int) -> pa.RecordBatch:
    """A batch with these numbers."""
    return pa.record_batch([pa.array(numbers, pa.int64())], schema=SCHEMA)


def write(
    sink: LiveSink,
    courier: int,
    epochs: dict[int, list[pa.RecordBatch]],
    schema: pa.Schema = SCHEMA,
) -> None:
    """Write epochs as a courier does."""
    writer = sink.writer(courier, schema)
    for epoch, batches in epochs.items():
        first = 0
        for batch in batches:
            writer.write(batch, RowIds(courier, epoch, first))
            first += batch.num_rows
        writer.flush(epoch)
    writer.close()


def check_micro_batches(sink: Sink, read: Read) -> None:
    """An epoch of micro-batches that is run again replaces its rows.

    Only for sinks that call nothing but `toArrow` on a DataFrame: there is no Spark here.
    """
    assert replaces(sink), "the sink names the place where it replaces rows"
    for epoch, batch in ((0, rows(1, 2)), (1, rows(3)), (1, rows(3, 4))):
        df: Any = SimpleNamespace(toArrow=lambda batch=batch: pa.Table.from_batches([batch]))
        sink.write(df, epoch, "flow")
    assert sorted(read()) == [1, 2, 3, 4]


def check_replaces(sink: LiveSink, read: Read) -> None:
    """Each row is visible once, although couriers died and fewer of them ran the last epochs again."""
    sink = pickle.loads(pickle.dumps(sink))  # couriers get a copy
    sink.check(SCHEMA)
    write(sink, 0, {5: [rows(1), rows(2)], 6: [rows(3)]})
    write(sink, 1, {5: [rows(10)], 6: [rows(11, 12)], 7: []})
    assert sorted(read()) == [1, 2, 3, 10, 11, 12], "rows are visible when flush has returned"
    lost = sink.writer(0, SCHEMA)
    lost.write(rows(4), RowIds(0, 7, 0))
    lost.close()
    sink.rewind(5)
    assert sorted(read()) == [1, 2, 10], "a rewind removes all later epochs, of all couriers"
    again = {6: [rows(3, 11)], 7: [rows(12), rows(4)]}
    for _ in range(2):
        write(sink, 0, again)
        assert sorted(read()) == [1, 2, 3, 4, 10, 11, 12], "an epoch replaces its earlier rows"


def check_delivers_once(sink: LiveSink, read: Read, place: Place) -> None:
    """With `delivery="transactional"`, rows are visible once, and only when their epoch is durable."""
    outbox = TransactionalSink(sink, place, "flow")
    outbox.check(SCHEMA)
    writer = outbox.writer(0, SCHEMA)
    for epoch in (0, 1):
        writer.write(rows(epoch), RowIds(0, epoch, 0, run=1_000))
        writer.flush(epoch)
    assert not list(read())
    Store(place).write_manifest(
        Manifest(0, 0, -1, "", (), {}, {}, 0, 0, positions={}, runs=[(1_000, 0)])
    )
    with armed(Fault("courier.released")), pytest.raises(InjectedFault):
        writer.release(0)  # the courier dies before it has removed the parcel
    outbox.rewind(0)  # the driver delivers it again
    assert list(read()) == [0]
