"""The courier: takes one source partition's batches through all steps of a flow.

It runs inside a Spark task, as the function of `mapInArrow`. All input is consumed, and every
channel closed, before the first output row leaves: a sink that stops reading early loses no state.
"""

from __future__ import annotations

import gc
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from penstock.wire.access import Access

_log = logging.getLogger("penstock.epochs")

_settled = False


def _settle() -> None:
    """Take everything that is loaded by now out of the garbage collector's sight, once per worker.

    Spark's worker collects garbage after every task; over all that Arrow, numba and pandas load
    that is tens of milliseconds of a core, each time.
    """
    global _settled
    if not _settled:
        gc.freeze()
        _settled = True


@dataclass(frozen=True)
class Courier:
    """What is shipped to Spark tasks. `context` is how a task learns its plan and its place."""

    flow: FlowPlan
    context: Callable[[], tuple[EpochPlan, Task]]
    access: Access
    """What hosts and the driver ask for. It is not in the plan, which Spark shows to others."""
    timeout_ms: int
    """Timeout of a call to the driver."""
    exchange_ms: int
    """Timeout of a conversation with a host, which lasts as long as the source brings rows."""
    keep_late: bool = False
    """Whether somebody wants to have the rows that came too late."""
    roads: Callable[[Delivery], list[Road]] = direct_roads
    """Makes the roads of a task, in the order of the flow's steps."""
    faults: tuple[Fault, ...] = ()
    """For tests: see `Settings`."""
    check_end: Callable[[], None] = lambda: None
    """Called in the task when no more batches come: raises `CutInputError` if that was not all."""
    lost_ms: int = 5_000
    """Milliseconds without an answer after which a courier complains of a host."""
    log: LogStyle | None = None
    """Level and format of log lines; None: Python's defaults."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        take_on(self.log)
        pa.set_cpu_count(1)
        arm(self.faults)
        plan, task = self.context()
        where = {"epoch": plan.epoch, "run": plan.run, **vars(task)}
        delivery = Delivery(
            self.flow,
            plan,
            task,
            self.access,
            self.timeout_ms,
            self.exchange_ms,
            self.keep_late,
            self.lost_ms,
            input=Input(batches, self.check_end, **where),
        )
        try:
            done = self._deliver(delivery)
        except CutInputError as cut:
            # The driver hears from Spark why that was.
            _log.warning(
                "Partition %d of epoch %d is left to another try of its task: %s",
                task.partition,
                plan.epoch,
                cut,
                extra={"partition": task.partition, "epoch": plan.epoch, "reason": str(cut)},
            )
            raise
        except Exception as failed:
            # The driver gets the error itself, not only Spark's account of it.
            with suppress(PenstockError):
                delivery.tell_driver("trouble", error=to_wire(_as_penstock_error(failed)))
            raise
        _settle()
        yield from done

    def _deliver(self, delivery: Delivery) -> list[pa.RecordBatch]:
        flow, witness = self.flow, Witness(self.flow.sources)
        streams = Streams(flow, iter(delivery.input), witness, delivery.aside)
        roads = self.roads(delivery)
        # The last road to hosts has read all input and sent all records: what was seen and counted
        # can be told already, while the hosts work.
        early = max((n for n, road in enumerate(roads) if road.told == "sent"), default=-1)
        for number, road in enumerate(roads):
            with road:
                road.send([streams.read(stream) for stream in road.reads])
                if number == early:
                    _report(delivery, witness, roads)
                streams.add(road.answer())
        done = [as_schema(batch, flow.output, "output") for batch in streams.last()]
        if early < 0 or any(road.told == "answered" for road in roads[early + 1 :]):
            _report(delivery, witness, roads)  # the last report of a task is the one that counts
        aside = delivery.aside
        if aside.dead or (aside.late and self.keep_late):
            delivery.tell_driver("set_aside", aside=codec.to_plain(aside))
        return done


class Streams:
    """The streams of one task, by number: the sources', then what each step gives.

    Rows are read once from Spark, as they are asked for.
    """

    def __init__(
        self,
        flow: FlowPlan,
        batches: Iterator[pa.RecordBatch],
        witness: Witness,
        aside: Aside,
    ) -> None:
        self._flow, self._tagged, self._aside = flow, flow.tagged, aside
        # Sources that are not DataFrames have times in UTC, Spark brings them in the session's zone.
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
        """All batches of a stream; each reader gets them all."""
        found = self._streams[stream]
        self._readers[stream] -= 1
        if self._readers[stream]:
            found = self._streams[stream] = found if isinstance(found, list) else list(found)
            return found
        self._streams[stream] = ()
        return _let_go(found) if isinstance(found, list) else found

    def add(self, batches: Iterable[pa.RecordBatch]) -> None:
        """The next step's output."""
        self._streams.append(batches)

    def last(self) -> Iterable[pa.RecordBatch]:
        """What leaves the flow."""
        return self._streams[-1]

    def _decoded(self, number: int) -> Iterator[pa.RecordBatch]:
        """The rows of one source, made of what Spark read."""
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
        """The batches of one source; those of others that come in between wait."""
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
    """The batches, each of which is let go before the next is asked for."""
    left = deque(batches)
    while left:
        yield left.popleft()


def _report(delivery: Delivery, witness: Witness, roads: Sequence[Road]) -> None:
    """Tell the driver what the task has seen and counted so far."""
    seen = replace(witness.seen(), late=delivery.aside.late_counts())
    for road in roads:
        seen = road.tell(seen)
    delivery.tell_driver("report", seen=codec.to_plain(seen))


def _as_penstock_error(error: Exception) -> PenstockError:
    if isinstance(error, PenstockError):
        return error
    if isinstance(error, MemoryError):
        return MemoryLimitError(f"a courier has not the memory: {error}", hint=FEWER_ROWS)
    return PenstockError(f"{type(error).__name__}: {error}")
