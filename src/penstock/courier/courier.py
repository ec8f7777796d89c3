"""The courier: takes one source partition's batches through all steps of a flow.

It runs inside a Spark task, as the function of `mapInArrow`. It reads all input and closes every channel
before the first output row leaves. So a sink that stops reading early loses no state.
"""

from __future__ import annotations

import gc
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace

import pyarrow as pa

from penstock import codec
from penstock.courier.delivery import Delivery, Input, Task
from penstock.courier.roads import Road, direct_roads
from penstock.courier.witness import Witness
from penstock.errors import (
    FEWER_ROWS,
    CutInputError,
    MemoryLimitError,
    PenstockError,
    to_wire,
)
from penstock.exchange.aside import Aside, bad_input
from penstock.exchange.step_work import as_schema
from penstock.faults import Fault, arm
from penstock.logs import LogStyle, take_on
from penstock.plan.epoch import EpochPlan
from penstock.plan.steps import FlowPlan
from penstock.spans import Laps, Span, now_ms
from penstock.wire.access import Access
from penstock.wire.flight import in_own_thread

_log = logging.getLogger("penstock.epochs")

_tails: deque[Span] = deque(maxlen=1_000)
"""Spans of this worker that its reports came too early for. They go with its next report."""
_settled = False
"""Whether this worker has called `settle`."""


def settle() -> None:
    """Exclude all objects that exist now from garbage collection, once per worker.

    Spark's worker collects garbage after every task. With the objects that Arrow, numba and pandas load,
    that takes tens of milliseconds of a core each time.
    """
    global _settled
    if not _settled:
        gc.freeze()
        _settled = True


@dataclass(frozen=True)
class Courier:
    """The function that Spark ships to its tasks. A task calls `context` for its plan and its partition."""

    flow: FlowPlan
    context: Callable[[], tuple[EpochPlan, Task]]
    access: Access
    """Credentials for hosts and the driver. They are not in the plan, which Spark writes to its logs."""
    timeout_ms: int
    """Timeout of a call to the driver, in milliseconds."""
    exchange_ms: int
    """Timeout of a channel to a host, in milliseconds. A channel is open as long as the source has rows."""
    keep_late: bool = False
    """Whether late rows are sent to the driver, or only counted."""
    roads: Callable[[Delivery], list[Road]] = direct_roads
    """Function that makes the roads of a task, in the order of the flow's steps."""
    faults: tuple[Fault, ...] = ()
    """Faults to inject in tests; see `Settings`."""
    check_end: Callable[[], None] = lambda: None
    """Function called at the end of the input. It raises `CutInputError` if rows are missing."""
    lost_ms: int = 5_000
    """Milliseconds without an answer after which a courier reports a host as lost."""
    log: LogStyle | None = None
    """Level and format of log lines; None: Python's defaults."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        began_ms = now_ms()
        take_on(self.log)
        pa.set_cpu_count(1)
        arm(self.faults)
        plan, task = self.context()
        where = {"epoch": plan.epoch, "run": plan.run, **vars(task)}
        laps = Laps(plan.epoch, f"courier {task.partition}", since_ms=began_ms)
        delivery = Delivery(
            self.flow,
            plan,
            task,
            self.access,
            self.timeout_ms,
            self.exchange_ms,
            self.keep_late,
            self.lost_ms,
            input=Input(batches, self.check_end, laps, **where),
            laps=laps,
        )
        try:
            done = self._deliver(delivery)
        except CutInputError as cut:
            # Spark tells the driver why the input broke off.
            _log.warning(
                "Partition %d of epoch %d failed, and Spark will retry its task: %s",
                task.partition,
                plan.epoch,
                cut,
                extra={"partition": task.partition, "epoch": plan.epoch, "reason": str(cut)},
            )
            raise
        except Exception as failed:
            # The driver gets the error itself, not only Spark's report of it.
            with suppress(PenstockError):
                delivery.tell_driver("trouble", error=to_wire(as_penstock_error(failed)))
            raise
        settle()
        laps.lap("output")
        yield from done
        laps.lap("hand over")
        _tails.extend(laps.take())

    def _deliver(self, delivery: Delivery) -> list[pa.RecordBatch]:
        flow, witness = self.flow, Witness(self.flow.sources)
        streams = Streams(flow, iter(delivery.input), witness, delivery.aside)
        roads, laps = self.roads(delivery), delivery.laps
        laps.lap("start")
        # When the last road to hosts has sent all records, all input was read. So the driver can have
        # the report while the hosts still work.
        early = max((n for n, road in enumerate(roads) if road.report_when == "sent"), default=-1)
        reported: Future[None] = Future()
        reported.set_result(None)
        for number, road in enumerate(roads):
            with road:
                road.send([streams.read(stream) for stream in road.reads])
                if number == early:
                    reported = _report(delivery, witness, roads)
                streams.add(road.answer())
        done = [as_schema(batch, flow.output, "output") for batch in streams.last()]
        reported.result()  # before the task ends, so that the driver has it by then
        if early < 0 or any(road.report_when == "answered" for road in roads[early + 1 :]):
            _report(delivery, witness, roads).result()  # the last one replaces earlier ones
        aside = delivery.aside
        if aside.dead or (aside.late and self.keep_late):
            delivery.tell_driver("set_aside", aside=codec.to_plain(aside))
        return done


class Streams:
    """The streams of one task, by number: those of the sources, then the output of each step.

    Rows are read once from Spark, on demand.
    """

    def __init__(
        self,
        flow: FlowPlan,
        batches: Iterator[pa.RecordBatch],
        witness: Witness,
        aside: Aside,
    ) -> None:
        self._flow, self._tagged, self._aside = flow, flow.tagged, aside
        # Sources that are not DataFrames have UTC times; Spark passes them in the session's time zone.
        self._zoned = any(source.decoder is not None for source in flow.sources)
        self._batches = batches
        self._waiting: list[deque[pa.RecordBatch]] = [deque() for _ in flow.sources]
        self._streams: list[Iterable[pa.RecordBatch]] = [
            witness.watch(number, self._decoded(number)) for number in range(len(flow.sources))
        ]
        reads = (stream for step in range(len(flow.steps)) for stream in flow.reads(step))
        self._readers = Counter(reads)
        if not flow.steps:
            self._readers[0] = 1

    def read(self, stream: int) -> Iterable[pa.RecordBatch]:
        """Return all batches of a stream. Each reader gets all of them."""
        batches = self._streams[stream]
        self._readers[stream] -= 1
        if self._readers[stream]:
            batches = self._streams[stream] = (
                batches if isinstance(batches, list) else list(batches)
            )
            return batches
        self._streams[stream] = ()
        return _let_go(batches) if isinstance(batches, list) else batches

    def add(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Add the next step's output as a stream."""
        self._streams.append(batches)

    def last(self) -> Iterable[pa.RecordBatch]:
        """Return the output of the flow."""
        return self._streams[-1]

    def _decoded(self, number: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one source, decoded where it has a decoder."""
        decoder = self._flow.sources[number].decoder
        if decoder is None:
            yield from self._source(number)
            return
        for batch in self._source(number):
            rows, bad = decoder.decode(batch)
            if bad and self._flow.on_error == "fail":
                raise bad_input(bad)
            self._aside.dead.extend(bad)
            yield rows

    def _source(self, number: int) -> Iterator[pa.RecordBatch]:
        """Yield the batches of one source, and keep those of other sources that come in between."""
        waiting = self._waiting[number]
        while True:
            while waiting:
                yield waiting.popleft()
            batch = next(self._batches, None)
            if batch is None:
                return
            if self._tagged is None:
                yield batch
                continue
            if self._zoned:
                batch = batch.cast(self._tagged.schema)
            for source, rows in self._tagged.unpack(batch):
                self._waiting[source].append(rows)


def _let_go(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches, and free each one before the next."""
    left = deque(batches)
    while left:
        yield left.popleft()


def _report(delivery: Delivery, witness: Witness, roads: Sequence[Road]) -> Future[None]:
    """Send the driver the task's report: what it has read and counted so far. Does not wait for it."""
    seen = replace(witness.seen(), late=delivery.aside.late_counts())
    for road in roads:
        seen = road.tell(seen)
    told = delivery.told
    told += [_tails.popleft() for _ in range(len(_tails))]
    told += delivery.laps.take()
    seen = replace(seen, spans=tuple(told))
    plain = codec.to_plain(seen)
    sent = in_own_thread(lambda: delivery.tell_driver("report", seen=plain), "report")
    delivery.laps.lap("report")
    return sent


def as_penstock_error(error: Exception) -> PenstockError:
    """The error of a task as one that can be sent to the driver."""
    if isinstance(error, PenstockError):
        return error
    if isinstance(error, MemoryError):
        return MemoryLimitError(f"a courier ran out of memory: {error}", hint=FEWER_ROWS)
    return PenstockError(f"{type(error).__name__}: {error}")
