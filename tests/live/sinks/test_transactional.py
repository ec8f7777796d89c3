"""Rows that become visible when their epoch is durable: kept, delivered once, recovered after a failure."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.errors import SettingError
from penstock.faults import Fault, InjectedFault, armed
from penstock.live.sinks.files import FileSink
from penstock.live.sinks.function import FunctionSink
from penstock.live.sinks.sink import Delivery, LiveSink, LiveWriter, RowIds
from penstock.live.sinks.transactional import OUTBOX, TransactionalSink
from penstock.state.store.manifest import Manifest
from penstock.state.store.places import Place
from penstock.state.store.store import Store

SCHEMA = pa.schema([("n", pa.int64())])
OLD, NEW = 1_000, 2_000
"""Start times of two runs, in milliseconds."""


@dataclass(frozen=True)
class Deliveries(LiveSink, Delivery):
    """Records all deliveries, including repeated ones."""

    noted: list[tuple[int, list[int]]] = field(default_factory=list)

    def writer(self, courier: int, schema: pa.Schema) -> LiveWriter:
        raise NotImplementedError

    def delivery(self, courier: int, schema: pa.Schema, flow_id: str) -> Delivery:
        return self

    def deliver(self, rows: pa.RecordBatch, ids: RowIds) -> None:
        self.noted.append((ids.epoch, rows.column("n").to_pylist()))


def rows(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(numbers, pa.int64())], schema=SCHEMA)


def commit(place: Place, epoch: int, *runs: tuple[int, int]) -> None:
    Store(place).write_manifest(
        Manifest(epoch, 0, -1, "", (), {}, {}, 0, 0, positions={}, runs=list(runs))
    )


def outbox(place: Place) -> list[str]:
    return [file.name for file in Store(place).files.below(OUTBOX)]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(str(tmp_path / "checkpoint"))


@pytest.fixture
def sink(place: Place) -> TransactionalSink:
    return TransactionalSink(Deliveries(), place, "flow")


def noted(sink: TransactionalSink) -> list[tuple[int, list[int]]]:
    assert isinstance(sink.sink, Deliveries)
    return sink.sink.noted


def test_rows_are_visible_when_their_epoch_is_durable(
    sink: TransactionalSink, place: Place
) -> None:
    writer = sink.writer(0, SCHEMA)
    writer.write(rows(1, 2), RowIds(0, 5, 0, NEW, 5))
    writer.write(rows(3), RowIds(0, 5, 2, NEW, 5))
    writer.flush(5)
    writer.write(rows(4), RowIds(0, 6, 0, NEW, 5))
    writer.flush(6)
    writer.flush(7)
    assert noted(sink) == []
    assert len(outbox(place)) == 2, "an epoch without rows has no parcel"
    writer.release(5)
    assert noted(sink) == [(5, [1, 2, 3])]
    writer.release(7)
    assert noted(sink) == [(5, [1, 2, 3]), (6, [4])]
    assert outbox(place) == []


@pytest.mark.parametrize("point", ["courier.release", "courier.released"])
def test_the_driver_delivers_what_a_courier_could_not(
    sink: TransactionalSink, place: Place, point: str
) -> None:
    writer = sink.writer(0, SCHEMA)
    for epoch in (5, 6):
        writer.write(rows(epoch), RowIds(0, epoch, 0, NEW, 5))
        writer.flush(epoch)
    commit(place, 5, (NEW, 5))
    with armed(Fault(point)), pytest.raises(InjectedFault):
        writer.release(5)
    sink.rewind(5)
    again = point == "courier.released"
    assert noted(sink) == [(5, [5])] * (1 + again), (
        "an epoch whose delivery is unknown is delivered again"
    )
    assert outbox(place) == [], "epoch 6 is not durable: it will be run again"


def test_parcels_of_another_run_are_dropped(sink: TransactionalSink, place: Place) -> None:
    old, new = sink.writer(0, SCHEMA), sink.writer(0, SCHEMA)
    for writer, run, since, number in ((old, OLD, 0, 1), (new, NEW, 5, 2)):
        writer.write(rows(number), RowIds(0, 5, 0, run, since))
        writer.flush(5)
    commit(place, 5, (NEW, 5), (OLD, 0))
    sink.rewind(5)
    assert noted(sink) == [(5, [2])]
    assert outbox(place) == []


def test_nothing_is_durable_yet(sink: TransactionalSink, place: Place) -> None:
    writer = sink.writer(0, SCHEMA)
    writer.write(rows(1), RowIds(0, 0, 0, NEW, 0))
    writer.flush(0)
    sink.rewind(-1)
    assert (noted(sink), outbox(place)) == ([], [])


def test_files_appear_when_they_are_durable(tmp_path: Path, place: Place) -> None:
    sink = TransactionalSink(FileSink("parquet", str(tmp_path / "out")), place, "flow")
    sink.check(SCHEMA)
    writer = sink.writer(1, SCHEMA)
    writer.write(rows(1, 2), RowIds(1, 0, 0, NEW, 0))
    writer.flush(0)
    assert not list(tmp_path.glob("out/*/*"))
    for _ in range(2):
        writer.release(0)
        (file,) = tmp_path.glob("out/*/*")
        assert file.parts[-2:] == ("epoch=0", "courier-1.parquet")
        assert pq.read_table(file).column("n").to_pylist() == [1, 2]


def test_a_function_cannot_be_transactional(place: Place) -> None:
    with pytest.raises(SettingError, match="exactly-once"):
        TransactionalSink(FunctionSink(print), place, "flow").check(SCHEMA)
