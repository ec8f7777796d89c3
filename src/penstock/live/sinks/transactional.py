"""Exactly-once delivery for any sink that can deliver a batch once: rows become visible when their epoch is
durable, each exactly once.

A courier keeps the rows of an epoch in memory. When the epoch has passed, it writes them to the checkpoint's
*outbox*, one parcel per courier and epoch, and reports to the driver. When the epoch's manifest is written,
the courier delivers the rows and removes the parcel. After a failure, the driver first delivers the parcels
of durable epochs and removes all others. A parcel that was delivered but not removed is delivered again: the
sink recognizes it and does nothing.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa

from penstock.errors import StoreError
from penstock.faults import point
from penstock.live.sinks.sink import Delivery, LiveSink, LiveWriter, RowIds
from penstock.state.store.files import Files
from penstock.state.store.store import Place, Store

OUTBOX = "outbox"
_MOST_PARCELS = 4
"""Most epochs in the outbox that are not delivered yet. Beyond that, the next epoch waits."""
_WAIT_S = 60.0
"""Timeout of that wait, in seconds."""
_NAME = re.compile(rf"{OUTBOX}/epoch=(\d+)/courier-(\d+)-(\d+)\.arrow")


class Parcel(NamedTuple):
    """The rows of one courier and epoch in the outbox."""

    epoch: int
    courier: int
    run: int
    """Start of the run that wrote it, in milliseconds since 1970."""

    @property
    def name(self) -> str:
        """Name of its file.

        >>> Parcel(7, 0, 1794937274285).name
        'outbox/epoch=7/courier-0-1794937274285.arrow'
        """
        return f"{OUTBOX}/epoch={self.epoch}/courier-{self.courier}-{self.run}.arrow"

    @staticmethod
    def named(name: str) -> Parcel | None:
        """The parcel of a file name; None for any other file.

        >>> Parcel.named("outbox/epoch=7/courier-0-1794937274285.arrow")
        Parcel(epoch=7, courier=0, run=1794937274285)
        """
        match = _NAME.fullmatch(name)
        return None if match is None else Parcel(*map(int, match.groups()))

    def counts(self, version: int, runs: Sequence[tuple[int, int]]) -> bool:
        """Whether it is durable: its epoch is, and its run is the newest that began with that epoch or
        before.

        >>> Parcel(7, 0, 200).counts(version=7, runs=[(300, 8), (200, 5), (100, 0)])
        True
        >>> Parcel(7, 0, 100).counts(7, [(200, 5), (100, 0)]), Parcel(8, 0, 200).counts(7, [(200, 5)])
        (False, False)
        """
        began = (began for began, first in runs if first <= self.epoch)
        return self.epoch <= version and next(began, None) == self.run


@dataclass(frozen=True)
class TransactionalSink(LiveSink):
    """A sink with an outbox in the checkpoint."""

    keeps = True

    sink: LiveSink
    place: Place
    flow_id: str

    def writer(self, courier: int, schema: pa.Schema) -> LiveWriter:
        return OutboxWriter(self, courier, schema)

    def check(self, schema: pa.Schema) -> None:
        self.sink.check(schema)
        self.sink.delivery(0, schema, self.flow_id)

    def rewind(self, epoch: int) -> None:
        """Deliver parcels of durable epochs, and remove all others. The sink may hold output of an epoch that
        was interrupted in another mode: that is removed, too."""
        store = Store(self.place)
        store.must_own()
        self.sink.rewind(epoch)
        manifest = store.read_manifest(epoch) if epoch >= 0 else None
        runs = (manifest and manifest.runs) or ()
        for parcel in parcels_in(store.files):
            if parcel.counts(epoch, runs):
                self._deliver(store.files, parcel)
            store.files.remove(parcel.name)

    def _deliver(self, files: Files, parcel: Parcel) -> None:
        data = files.read(parcel.name)
        if data is None:
            return  # a courier has delivered it meanwhile
        rows, ids = unpacked(data)
        delivery = self.sink.delivery(parcel.courier, rows.schema, self.flow_id)
        try:
            delivery.deliver(rows, ids)
        finally:
            delivery.close()


def parcels_in(files: Files) -> list[Parcel]:
    """Parcels in the outbox of a checkpoint, in the order of epochs."""
    return sorted(filter(None, (Parcel.named(file.name) for file in files.below(OUTBOX))))


def packed(rows: pa.RecordBatch, ids: RowIds) -> pa.Buffer:
    """Encode a parcel."""
    facts = {
        b"courier": b"%d" % ids.courier,
        b"epoch": b"%d" % ids.epoch,
        b"run": ids.run_text.encode(),
    }
    buffer = pa.BufferOutputStream()
    with pa.ipc.new_file(buffer, rows.schema.with_metadata(facts)) as writer:
        writer.write_batch(rows)
    return buffer.getvalue()


def unpacked(data: bytes | pa.Buffer) -> tuple[pa.RecordBatch, RowIds]:
    """Decode a parcel: its rows and their ids.

    >>> unpacked(packed(pa.record_batch({"n": [1, 2]}), RowIds(0, 7, 0, 200, 5, ((100, 0),))))[1]
    RowIds(courier=0, epoch=7, first=0, run=200, since=5, earlier=((100, 0),))
    """
    table = pa.ipc.open_file(pa.py_buffer(data)).read_all().combine_chunks()
    facts = {name.decode(): value.decode() for name, value in table.schema.metadata.items()}
    runs = (run.split("-") for run in facts["run"].split(","))
    (run, since), *earlier = [(int(run), int(since)) for run, since in runs]
    ids = RowIds(int(facts["courier"]), int(facts["epoch"]), 0, run, since, tuple(earlier))
    (rows,) = table.replace_schema_metadata(None).to_batches()
    return rows, ids


@dataclass
class _Kept:
    """The rows of an epoch that has not passed."""

    ids: RowIds
    batches: list[pa.RecordBatch] = field(default_factory=list)


class OutboxWriter(LiveWriter):
    """Keeps rows in the outbox until their epoch is durable. `release` is called by another thread."""

    def __init__(self, sink: TransactionalSink, courier: int, schema: pa.Schema) -> None:
        self._sink, self._courier, self._schema = sink, courier, schema
        self._files = Files(sink.place)
        self._epoch: _Kept | None = None
        self._parcels: dict[int, tuple[Parcel, pa.RecordBatch, RowIds]] = {}
        """Epoch -> its parcel in the outbox, with the rows and their ids."""
        self._fewer = threading.Condition()
        self._delivery: Delivery | None = None

    def write(self, batch: pa.RecordBatch, ids: RowIds) -> None:
        if self._epoch is None:
            self._epoch = _Kept(ids)
        self._epoch.batches.append(batch)

    def flush(self, epoch: int) -> None:
        kept, self._epoch = self._epoch, None
        if kept is None:
            return
        with self._fewer:
            if not self._fewer.wait_for(lambda: len(self._parcels) < _MOST_PARCELS, _WAIT_S):
                raise StoreError(
                    f"the sink has not accepted {len(self._parcels)} epochs within {_WAIT_S:.0f} s",
                    hint="check the sink; the flow resumes from its checkpoint",
                )
        rows, ids = pa.concat_batches(kept.batches), kept.ids
        parcel = Parcel(epoch, self._courier, ids.run)
        self._files.write(parcel.name, packed(rows, ids))
        with self._fewer:
            self._parcels[epoch] = parcel, rows, ids

    def release(self, epoch: int) -> None:
        with self._fewer:
            due = [self._parcels[passed] for passed in sorted(self._parcels) if passed <= epoch]
        for parcel, rows, ids in due:
            where = {"epoch": parcel.epoch, "run": ids.run, "partition": self._courier}
            point("courier.release", **where)
            if self._delivery is None:
                made = self._sink.sink.delivery(self._courier, self._schema, self._sink.flow_id)
                self._delivery = made
            self._delivery.deliver(rows, ids)
            point("courier.released", **where)
            self._files.remove(parcel.name)
            with self._fewer:
                del self._parcels[parcel.epoch]
                self._fewer.notify_all()

    def close(self) -> None:
        if self._delivery is not None:
            self._delivery.close()
