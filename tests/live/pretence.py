"""Fakes around a live courier: sources and sinks in memory, hosts and a driver behind Flight."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl

from penstock import codec
from penstock.errors import PenstockError, from_wire
from penstock.live.loop import CourierRun, CourierTask
from penstock.live.sinks.sink import LiveSink, LiveWriter, RowIds
from penstock.live.sources.source import LiveReader, LiveSource, Polled
from penstock.operators.operator import EpochTime
from penstock.plan.epoch import RouteTable
from penstock.plan.steps import FlowPlan, KeyedStep
from penstock.settings import Settings
from penstock.wire.access import Access
from penstock.wire.addresses import LOOPBACK
from penstock.wire.flight import Endpoint, Endpoints, TokenServer
from penstock.wire.live import (
    Back,
    CheckpointMessage,
    EpochPassed,
    Frame,
    HostPlace,
    LiveOrder,
    LiveStep,
    Message,
    StreamHeader,
    unpack,
)

ACCESS = Access("t")
WAIT_S = 20.0


def wait_for(condition: Callable[[], Any], what: str = "") -> Any:
    """Wait until a condition is true, and return its value."""
    until = time.monotonic() + WAIT_S
    while not (result := condition()):
        assert time.monotonic() < until, f"timed out waiting {what}"
        time.sleep(0.001)
    return result


class Tap:
    """Rows of one partition, filled by a test. All rows stay, for readers that start again."""

    def __init__(self, batches: Sequence[pa.RecordBatch] = ()) -> None:
        self.batches = list(batches)
        self.ended = False
        self.polls = self.committed = self.read = 0
        self.changed = threading.Condition()

    def give(self, *batches: pa.RecordBatch, end: bool = False) -> None:
        with self.changed:
            self.batches.extend(batches)
            self.ended = self.ended or end
            self.changed.notify_all()


@dataclass(frozen=True)
class TapSource(LiveSource):
    """A source whose partitions are taps in this process. A position is a number of batches."""

    taps: Mapping[str, Tap]
    columns: pa.Schema

    @property
    def schema(self) -> pa.Schema:
        return self.columns

    def partitions(self) -> list[str]:
        return list(self.taps)

    def first(self, partitions: Sequence[str]) -> dict[str, Any]:
        return dict.fromkeys(partitions, 0)

    def reader(self, positions: Mapping[str, Any]) -> LiveReader:
        return _TapReader(self.taps, dict(positions))


class _TapReader(LiveReader):
    def __init__(self, taps: Mapping[str, Tap], positions: dict[str, int]) -> None:
        self._taps, self._positions = taps, positions
        self._lock = next(iter(taps.values())).changed

    @property
    def ended(self) -> bool:
        return all(
            tap.ended and at == len(tap.batches)
            for tap, at in ((self._taps[name], at) for name, at in self._positions.items())
        )

    def commit(self, positions: Mapping[str, Any]) -> None:
        for name, position in positions.items():
            self._taps[name].committed = position

    def poll(self, wait_ms: float, most_rows: int) -> list[Polled]:
        with self._lock:
            self._lock.wait_for(self._ready, wait_ms / 1000)
            polled = []
            for name, at in self._positions.items():
                tap = self._taps[name]
                tap.polls += 1
                for place, batch in enumerate(tap.batches[at:], at + 1):
                    polled.append(Polled(batch, name, place))
                self._positions[name] = tap.read = len(tap.batches)
            return polled

    def _ready(self) -> bool:
        taps = [(self._taps[name], at) for name, at in self._positions.items()]
        return any(len(tap.batches) > at or tap.ended for tap, at in taps)

    def close(self) -> None:
        pass


def taps(*names: str) -> dict[str, Tap]:
    """Make taps that share a lock, as those of one source must."""
    made = {name: Tap() for name in names}
    for tap in made.values():
        tap.changed = made[names[0]].changed
    return made


@dataclass(frozen=True)
class Shelf(LiveSink):
    """A sink in memory: (ids, rows) as written, and the epochs that were flushed."""

    written: list[tuple[RowIds, list[dict[str, Any]]]] = field(default_factory=list)
    flushed: list[int] = field(default_factory=list)

    def writer(self, courier: int, schema: pa.Schema) -> LiveWriter:
        return _ShelfWriter(self)

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for _, rows in list(self.written) for row in rows]


class _ShelfWriter(LiveWriter):
    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    def write(self, batch: pa.RecordBatch, ids: RowIds) -> None:
        self._shelf.written.append((ids, batch.to_pylist()))

    def flush(self, epoch: int) -> None:
        self._shelf.flushed.append(epoch)

    def close(self) -> None:
        pass


class PretendDriver(TokenServer):
    """A driver that collects the reports of couriers."""

    def __init__(self) -> None:
        super().__init__(LOOPBACK, ACCESS)
        self.passed: list[EpochPassed] = []
        self.troubles: list[PenstockError] = []
        self.registered: list[dict[str, Any]] = []
        self.actions = {
            "passed": lambda facts: self.passed.append(codec.from_plain(facts, EpochPassed)),
            "stream_trouble": lambda facts: self.troubles.append(from_wire(facts["error"])),
            "register": lambda facts: self.registered.append(facts),
            "heartbeat": lambda facts: True,
        }


class PretendHost(TokenServer):
    """One host of one step, for one courier. It applies a real operator chunk by chunk, and replies at once.

    Frames wait while it is not `going`. `log` holds all frames, in order.
    """

    def __init__(self, name: str, step: KeyedStep) -> None:
        super().__init__(LOOPBACK, ACCESS)
        self.name, self.step = name, step
        self.operator = step.operator()
        self.log: list[Frame] = []
        self.rows: list[dict[str, Any]] = []
        self.rows_at: dict[int, int] = {}
        """Control message number -> rows that came before it."""
        self.headers: list[StreamHeader] = []
        self.going = threading.Event()
        self.going.set()
        self.broken = False
        self.watermark_ms: int | None = None
        self.final = False

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        self.headers.append(codec.decode(descriptor.command, StreamHeader))
        begun = False
        for chunk in reader:
            frame, packed = unpack(chunk.app_metadata)
            self.going.wait()
            if self.broken:
                raise fl.FlightUnavailableError("this host is dead")
            self.log.append(frame)
            if frame.leave:
                continue
            batches, back = self.act(frame, chunk.data if packed is None else packed)
            for batch in batches:
                if not begun:
                    writer.begin(batch.schema)
                    begun = True
                writer.write_batch(batch)
            writer.write_metadata(codec.encode(back))
            if back.final:  # as a host does that has fired all timers by then
                writer.write_metadata(codec.encode(Back(watermark_ms=self.watermark_ms)))

    def act(self, frame: Frame, batch: pa.RecordBatch | None) -> tuple[list[pa.RecordBatch], Back]:
        if frame.chunk is not None:
            assert batch is not None
            self.rows.extend(batch.to_pylist())
            return self.round(frame.chunk.kind, [batch]), Back(took=frame.chunk.number, busy_us=1)
        if frame.time is not None:
            self.watermark_ms, self.final = frame.time.watermark_ms, frame.time.final
            out = self.round("", [])
            return out, Back(watermark_ms=self.watermark_ms, final=self.final)
        assert frame.message is not None
        self.rows_at[frame.message.number] = len(self.rows)
        return [], Back(message=frame.message.number)

    def round(self, kind: str, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
        now = EpochTime(len(self.log), 0, self.watermark_ms, self.final)
        answers = [self.operator.open(now)]
        if batches:
            answers.append(self.operator.apply(kind, batches))
        answers.append(self.operator.close())
        self.operator.table.seal()
        return [batch for answer in answers for batch in answer.batches if batch.num_rows]


class Scene:
    """One courier, its hosts and its driver."""

    def __init__(
        self,
        flow: FlowPlan,
        sources: Sequence[TapSource],
        hosts: Mapping[str, int],
        settings: Settings | None = None,
        **order: Any,
    ) -> None:
        self.flow, self.shelf = flow, Shelf()
        self.driver = PretendDriver()
        self.hosts: dict[str, PretendHost] = {}
        steps = []
        for step in flow.keyed:
            names = [f"{step.id}/{n}" for n in range(hosts[step.id])]
            places = [HostPlace(name, self.host(name, step).location) for name in names]
            routes = RouteTable.even(names, step.slots)  # type: ignore[arg-type]
            steps.append(LiveStep(step.id, routes, tuple(places)))
        self.task = CourierTask(
            "courier/0",
            flow,
            tuple(sources),
            self.shelf,
            self.driver.location,
            ACCESS,
            True,
            settings or Settings(),
        )
        positions = {n: source.first(source.partitions()) for n, source in enumerate(sources)}
        self.order = LiveOrder(1, 0, 1, 5, tuple(steps), positions, **order)
        self._driver = Endpoint(self.driver.location, ACCESS)
        self._endpoints = Endpoints(ACCESS)
        self.deaths: list[bool] = []
        self.numbers = 0
        self.epoch = 5

    def host(self, name: str, step: KeyedStep) -> PretendHost:
        self.hosts[name] = PretendHost(name, step)
        return self.hosts[name]

    @contextmanager
    def running(self) -> Iterator[Scene]:
        self.run = CourierRun(
            self.task,
            self.order,
            self._driver,
            self._endpoints,
            lambda: self.deaths.append(True),
        )
        try:
            self.run.start()
            yield self
        finally:
            for host in self.hosts.values():
                host.broken = True
                host.going.set()
            self.run.halt()
            self._endpoints.close()
            self._driver.close()
            for server in (*self.hosts.values(), self.driver):
                server.shutdown()

    def source_read(self, source: TapSource) -> bool:
        """Whether the courier has read all rows of a source."""
        return all(tap.read == len(tap.batches) for tap in source.taps.values())

    def tell(self, **message: Any) -> Message:
        made = Message(**message)
        self.numbers += 1
        self.run.tell(made)
        return made

    def checkpoint(self, closes: bool = False) -> EpochPassed:
        """Send a checkpoint, and wait until it has passed. Returns the courier's report."""
        epoch = self.epoch
        self.epoch += 1
        self.tell(checkpoint=CheckpointMessage(self.numbers, epoch, epoch - 1, closes=closes))
        reports = wait_for(
            lambda: [p for p in self.driver.passed if p.epoch == epoch], "for an epoch"
        )
        return reports[0]


def by_key(rows: Sequence[Mapping[str, Any]], key: str, value: str) -> dict[Any, list[Any]]:
    """Key -> its values, in order."""
    values: dict[Any, list[Any]] = defaultdict(list)
    for row in rows:
        values[row[key]].append(row[value])
    return dict(values)
