"""The traffic of a run: all rows of one live courier, from sources through steps to the sink.

Polled rows go through stateless steps and junctions to the outlets of keyed steps. The output of hosts goes
the same way to the next step or the sink. One thread uses it: it passes in events, and calls `act` when
something is due.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import pyarrow as pa

from penstock import codec
from penstock.errors import from_wire
from penstock.exchange.aside import Aside, bad_input
from penstock.exchange.step_work import as_schema
from penstock.faults import point
from penstock.live.channels import HostStream
from penstock.live.clocks import SourceClock, known_partitions
from penstock.live.junction import (
    InputRows,
    Item,
    Junction,
    Lane,
    LaneMark,
    inlets,
    read_by,
    timeless,
)
from penstock.live.meter import StepMeter
from penstock.live.notes import EpochNotes, arrivals_us
from penstock.live.outlet import Outlet, Surroundings, one_batch
from penstock.live.pacing import ByteWindow, Pacer
from penstock.live.reorder import OrderedAnswers
from penstock.live.sinks.sink import NEVER, LiveWriter, RowIds
from penstock.live.sources.source import Polled
from penstock.model import DeadLetter
from penstock.offload.courier.redirect import Redirect, Returned
from penstock.offload.plan.segments import live_segment, segments
from penstock.plan.one_step import as_couriers_see
from penstock.plan.steps import FlowPlan, MapStep
from penstock.plan.watermarks import FREE
from penstock.settings import Settings
from penstock.wire.access import Access
from penstock.wire.live import (
    Back,
    CourierCounts,
    EpochPassed,
    Guides,
    LiveOrder,
    LiveStep,
    Message,
    StreamHeader,
)

_AHEAD_S = 1.0
"""Most seconds of host work that a courier reads ahead."""
_FEW_ROWS = 16
"""Least rows that a source is asked for, if hosts have any room."""
_QUIET_S = 1.0
"""Seconds after which counts are reported again even if they have not changed."""

Connect = Callable[[str, str, StreamHeader, Lane], HostStream]
"""Opens a stream, given the host, its location, the header, and the lane for its replies."""


class Asked(Protocol):
    """A source that delivers rows on request."""

    @property
    def behind(self) -> int:
        """Number of rows that the source has and that were not read, as far as is known."""

    def allow(self, most_rows: int) -> None:
        """Request rows, about `most_rows` at most."""

    def commit(self, positions: Mapping[str, Any]) -> None:
        """Tell the source that rows before these positions are not needed again."""


@dataclass
class _SourceState:
    """State of one source in this courier."""

    clock: SourceClock
    positions: dict[str, Any]
    """Partition -> position after the rows that were read."""
    asked: bool = False
    """Whether rows were requested and have not arrived yet."""
    ended: bool = False
    mark: LaneMark | None = None
    """Its event-time mark, as steps know it."""


class Traffic:
    """All rows and messages that move in one run of one courier."""

    def __init__(
        self,
        flow: FlowPlan,
        order: LiveOrder,
        settings: Settings,
        access: Access,
        pullers: Mapping[int, Asked],
        connect: Connect,
        writer: LiveWriter,
        report: Callable[[EpochPassed | CourierCounts], None],
        keep_late: bool = False,
        put: Callable[[Returned], None] = lambda reply: None,
        busy_ms: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Opens all streams. `report` is called when an epoch has passed, and with counts that are due. Other
        threads call `put` with replies of burst workers, which must then be passed to `returned`. `busy_ms`
        returns the milliseconds of work in the courier since its last call."""
        flow = as_couriers_see(flow)
        self._flow, self._order, self._settings = flow, order, settings
        self._pullers, self._access = pullers, access
        self._open, self._writer, self._report = connect, writer, report
        self._keep_late, self._put, self._busy_ms = keep_late, put, busy_ms
        self._where = {"run": order.run, "partition": order.courier}
        self._window = ByteWindow(int(settings.live_window_mb * (1 << 20)))
        self._notes: dict[int, EpochNotes] = {}
        self._epochs: dict[int, int] = {}
        """Number of a checkpoint message -> the epoch that begins behind it."""
        self._source_epoch = self._sink_epoch = order.epoch
        self._left = 0
        """Number of rows written in the sink's current epoch."""
        self._noted: dict[int, tuple[dict[int, dict[str, Any]], bool]] = {}
        """Epoch -> positions of the sources at its end, and whether all sources had ended."""
        self._last: int | None = None
        """The run's last epoch, once known: no rows of later epochs are read or written."""
        self._closes = False
        """Whether open windows close because all input has ended."""
        self._stirred = False
        """Whether outlets have got new items or marks."""
        self._timeless = timeless(flow)
        self._inlets = inlets(flow)
        self._maps: dict[int, list[tuple[int, MapStep]]] = {}
        """Stream number -> stateless steps that read it, each with the number of its output stream."""
        self._outputs: dict[str, int] = {}
        """Step -> the number of its output stream."""
        for number, step in enumerate(flow.steps):
            made = self._outputs[step.id] = len(flow.sources) + number
            if isinstance(step, MapStep):
                self._maps.setdefault(flow.reads(number)[0], []).append((made, step))
        self._count_at = NEVER if not order.count_ms else 0.0
        """Time of the next report of counts to the driver."""
        self._counted: tuple[int, ...] = ()
        """Totals of the last reported counts."""
        self._counted_at = -NEVER
        """Time of the last report of counts."""
        self._add_junctions()
        self._add_outlets()
        self._add_sources()

    def _add_junctions(self) -> None:
        self._readers: dict[int | str, list[Junction]] = {}
        """Source or keyed step -> the junctions that read it."""
        steps = {step.step: step for step in self._order.steps}
        self._junctions: dict[str | None, Junction] = {}
        self._ordered: dict[str, OrderedAnswers] = {}
        """Step -> the junction that puts its output in order, if the flow is ordered."""
        if self._flow.ordered:
            self._ordered = {step: self._ordered_answers(of) for step, of in steps.items()}
        for reader, reads in read_by(self._flow).items():
            lanes: dict[Lane, LaneMark] = {}
            for read in reads:
                if isinstance(read, int):
                    lanes[read, ""] = LaneMark(FREE if read in self._timeless else None)
                elif read in self._ordered:
                    lanes[self._ordered[read].lane] = self._ordered[read].mark
                else:
                    mark = self._host_mark(read, steps[read].watermark_ms)
                    lanes |= {(read, place.host): mark for place in steps[read].hosts}
            junction = self._junctions[reader] = Junction(reader, lanes)
            for read in reads:
                if isinstance(read, str) and read in self._ordered:
                    self._ordered[read].readers.append(junction)
                    self._readers[read] = [self._ordered[read]]
                else:
                    self._readers.setdefault(read, []).append(junction)

    def _ordered_answers(self, step: LiveStep) -> OrderedAnswers:
        mark = self._host_mark(step.step, step.watermark_ms)
        lanes: dict[Lane, LaneMark] = {(step.step, place.host): mark for place in step.hosts}
        return OrderedAnswers(step.step, lanes, mark, self._order.epoch)

    def _add_outlets(self) -> None:
        flow, order, longest_s = self._flow, self._order, self._settings.live_pause_ms / 1000
        steps = {step.step: step for step in order.steps}
        self._slots = {step.step: step.routes.slots for step in order.steps}
        """Step -> its slots, which are the same in the whole run."""
        run = Surroundings(
            self._connect,
            self._parted,
            self._notes_of,
            self._window,
            time.monotonic,
            lambda: time.time() * 1e6,
            self._where,
            lambda reflex: reflex.of(order.courier, order.couriers),
            self._applied if self._ordered else None,
        )
        parts = {segment.id: segment for segment in segments(flow)}
        self._outlets: dict[str, Outlet] = {}
        for step in reversed(flow.keyed):
            first = any(isinstance(read, int) for read in dict(flow.graph)[step.id])
            # Output of hosts comes in chunks already: one in flight is enough to merge several hosts'.
            pacer = Pacer(longest_s) if first else Pacer(longest_s, at_once=1, share=1.0)
            after = [o for o in self._outlets.values() if step.id in dict(flow.graph)[o.step.id]]
            behind = tuple(dict.fromkeys(outlet for o in after for outlet in (o, *o.behind)))
            name = f"{step.id}.{order.run}.{order.courier}"
            slots = self._slots[step.id]
            redirect = Redirect(
                *(flow, live_segment(parts[step.id]), self._access, name),
                *(order.courier, order.couriers, self._put, slots),
            )
            meter = StepMeter(step.id, slots.count) if order.count_ms else None
            place = (order.epoch, self._junctions[step.id], pacer, behind, run, redirect, meter)
            self._outlets[step.id] = Outlet(step, steps[step.id], *place)
        leaving = self._junctions[None]
        self._last_outlets = [
            outlet
            for step, outlet in self._outlets.items()
            if leaving in self._readers.get(step, ())
        ]
        """Outlets of the step whose output goes to the sink."""
        self._sink_pacer, self._chunks = Pacer(longest_s), 0
        """Pacer and number of chunks that go straight to the sink, in flows without keyed steps."""
        self._pacers: dict[int, list[Pacer]] = {}
        self._first_outlets: dict[int, list[Outlet]] = {}
        """Source -> the outlets of steps that read it."""
        for number in range(len(flow.sources)):
            steps_behind = [j.step for j in self._readers.get(number, ()) if j.step is not None]
            self._first_outlets[number] = [self._outlets[step] for step in steps_behind]
            pacers = [outlet.pacer for outlet in self._first_outlets[number]]
            self._pacers[number] = pacers or [self._sink_pacer]

    def _add_sources(self) -> None:
        flow, order = self._flow, self._order
        self._sources: dict[int, _SourceState] = {}
        started_ms = self._now_ms()
        for number, plan in enumerate(flow.sources):
            mine = dict(order.positions.get(number, {}))
            known = known_partitions(order.event_times, number, plan, mine)
            shared = order.couriers > 1 and not any(row[0] == number for row in order.event_times)
            clock = SourceClock(plan, mine, known, started_ms, shared)
            self._sources[number] = _SourceState(clock, mine)
            self._mark(number)
        self._clocks_at = time.monotonic()

    def _connect(self, step: str, host: str, location: str, joins: int | None) -> HostStream:
        order = self._order
        after = -1 if joins is None else joins - 1
        header = StreamHeader(step, order.run, order.courier, order.couriers, after)
        # a host may leave and join again: then it gets another lane
        lane = (step, host if joins is None else f"{host}@{joins}")
        stream = self._open(host, location, header, lane)
        stream.epoch = order.epoch
        if joins is not None:
            stream.epoch = self._outlets[step].epoch
            for junction in self._readers.get(step, ()):
                junction.join(lane, self._host_mark(step, None), after)
        return stream

    def _parted(self, stream: HostStream, number: int) -> None:
        for junction in self._readers.get(stream.step, ()):
            self._go_on(junction, junction.part(stream.lane, number))

    def _host_mark(self, step: str, watermark_ms: int | None, final: bool = False) -> LaneMark:
        return LaneMark(FREE if step in self._timeless else watermark_ms, final)

    def _notes_of(self, epoch: int) -> EpochNotes:
        if epoch not in self._notes:
            self._notes[epoch] = EpochNotes(self._flow, self._keep_late, self._slots)
        return self._notes[epoch]

    def _now_ms(self) -> int:
        return max(int(time.time() * 1000), self._order.time_ms)

    def act(self) -> float:
        """Do what is due, and request rows from sources. Returns the time of the next call, at the latest."""
        self._stirred = False
        look_at = min(
            self._writer.work(), *(outlet.work() for outlet in self._outlets.values()), NEVER
        )
        now = time.monotonic()
        if now >= self._clocks_at:
            self._look_at_clocks(now)
        if now >= self._count_at:
            self._tell_counts(now)
        look_at = now if self._stirred else min(look_at, self._clocks_at, self._count_at)
        if not self._window.full and self._last is None:
            for number, source in self._sources.items():
                if number in self._pullers and not source.asked and not source.ended:
                    at = max([pacer.next_at() for pacer in self._pacers[number]])
                    most = self._most_rows(number, now)
                    if at <= now and most:
                        source.asked = True
                        self._pullers[number].allow(most)
                    elif most:
                        look_at = min(look_at, at)
        return look_at

    def _most_rows(self, number: int, now: float) -> int:
        """Most rows to request from a source; 0 if hosts have enough. It is no more than hosts can apply in a
        second, so that a checkpoint does not wait longer, and other couriers can read the rest."""
        rooms = [outlet.room(now, _AHEAD_S) for outlet in self._first_outlets[number]]
        most = min([*rooms, self._settings.chunk_rows])
        return max(int(most), min(_FEW_ROWS, self._settings.chunk_rows)) if most > 0 else 0

    def _tell_counts(self, now: float) -> None:
        """Report counts to the driver, unless they have not changed."""
        self._count_at = now + self._order.count_ms / 1000
        counted = (outlet.counts(self._behind(step)) for step, outlet in self._outlets.items())
        steps = tuple(counts for counts in counted if counts is not None)
        sums = tuple(
            int(n)
            for step in steps
            for n in (
                step.arrived.sum(),
                step.completed.sum(),
                step.waiting,
                *step.busy_us.values(),
            )
        )
        if sums != self._counted or now >= self._counted_at + _QUIET_S:
            self._counted, self._counted_at = sums, now
            self._report(CourierCounts(self._order.run, self._order.courier, steps))

    def _behind(self, step: str) -> int:
        """Number of rows that a step's sources have and that were not read."""
        return sum(
            self._pullers[number].behind
            for number in self._sources
            if number in self._pullers
            and any(junction.step == step for junction in self._readers.get(number, ()))
        )

    def _look_at_clocks(self, now: float) -> None:
        """Update the marks of sources: partitions may have become idle."""
        for number in self._sources:
            self._mark(number)
        idle = [source.clock.idle_ms for source in self._sources.values() if not source.ended]
        waits_s = [ms / 4000 for ms in idle if ms is not None]
        self._clocks_at = now + max(min(waits_s), 0.005) if waits_s else NEVER

    def pulled(self, number: int, polled: list[Polled], ended: bool) -> None:
        """Take in the rows of a poll."""
        if self._last is not None:
            return
        source, epoch = self._sources[number], self._source_epoch
        source.asked, source.ended = False, ended
        notes, now_ms = self._notes_of(epoch), self._now_ms()
        point("courier.polled", epoch=epoch, **self._where)
        batches = []
        for rows in polled:
            source.positions[rows.partition] = rows.position
            if rows.bad:
                self._set_aside(rows.bad, notes)
            if rows.batch.num_rows:
                notes.read(number, rows.partition, rows.batch.num_rows)
                newest = notes.witness.note(number, rows.batch)
                if newest:
                    notes.note_times(number, source.clock.heard(rows.partition, newest, now_ms))
                batches.append(rows.batch)
        if batches:
            began, batch = time.monotonic(), one_batch(batches)
            arrival = self._flow.sources[number].arrival
            now_us = time.time() * 1e6
            arrived = arrivals_us(batch, arrival, now_us)
            notes.lag_ms = (
                (now_us - float(arrived.max(initial=0.0))) / 1000 if len(arrived) else 0.0
            )
            self._push(number, (number, ""), batch, notes, arrived)
            if not self._outlets:
                self._chunks += 1
                self._sink_pacer.cut(self._chunks, batch.num_rows, began)
                self._sink_pacer.done(self._chunks, time.monotonic())
                notes.left([arrived], time.time() * 1e6)
        self._mark(number)

    def _set_aside(self, bad: Sequence[DeadLetter], notes: EpochNotes) -> None:
        """Set unreadable rows aside as dead letters, or raise an error if the flow keeps none."""
        if self._flow.on_error != "dead_letter":
            raise bad_input(bad)
        notes.aside.dead.extend(bad)

    def _mark(self, number: int) -> None:
        """Pass the event time of a source on to the steps that read it, if it has changed."""
        source = self._sources[number]
        mark = source.clock.mark(self._now_ms(), source.ended, self._closes)
        if mark != source.mark:
            source.mark, self._stirred = mark, True
            for junction in self._readers.get(number, ()):
                self._go_on(junction, junction.take((number, ""), mark))

    def answered(self, stream: HostStream, batch: pa.RecordBatch | None, back: Back | None) -> None:
        """Handle a host's reply: its output rows, and what it says about progress."""
        step = stream.step
        if batch is not None and batch.num_rows:
            self._take_in(stream, batch, None if back is None else back.watermark_ms)
        if back is None:
            return
        if back.error is not None:
            raise from_wire(back.error)
        if step not in self._ordered:
            # before a checkpoint passes, so that its report includes these rows
            self._outlets[step].heard(stream, back)
        if back.aside is not None:
            aside = codec.from_plain(back.aside, Aside)
            if not self._keep_late:
                aside.late = [replace(late, stream=b"") for late in aside.late]
            self._notes_of(stream.epoch).aside.add(aside)
        readers = self._readers.get(step, ())
        if back.message is not None:
            echoed = [epoch for number, epoch in self._epochs.items() if number <= back.message]
            stream.epoch = max(echoed, default=stream.epoch)
            for junction in readers:
                self._go_on(junction, junction.echo(stream.lane, back.message))
        if step in self._ordered:
            self._outlets[step].heard(stream, back)
        if back.caught_up is not None:
            for junction in readers:
                junction.caught_up(stream.lane, back.caught_up)
                self._go_on(junction, ())
        if back.watermark_ms is not None or back.final:
            # last: the mark may apply behind the message in the same reply
            if back.watermark_ms is not None:
                stream.watermark_ms = back.watermark_ms
            stream.final = stream.final or back.final
            mark = self._host_mark(step, stream.watermark_ms, stream.final)
            for junction in readers:
                self._go_on(junction, junction.take(stream.lane, mark))

    def returned(self, reply: Returned) -> None:
        """Handle the reply of a burst worker, or its failure."""
        self._outlets[reply.step].returned(reply)

    def close(self) -> None:
        """Release resources at the end of the run."""
        for outlet in self._outlets.values():
            outlet.close()

    def _take_in(self, stream: HostStream, batch: pa.RecordBatch, fired_ms: int | None) -> None:
        """Pass on output rows of a host. `fired_ms` is the watermark up to which timers among them fired."""
        ordered = self._ordered.get(stream.step)
        if ordered is None:
            notes = self._notes_of(stream.epoch)
            self._push(self._outputs[stream.step], stream.lane, batch, notes)
        else:
            rows = InputRows(0, (batch, fired_ms))
            self._go_on(ordered, ordered.take(stream.lane, rows))

    def _applied(self, step: str, before: int) -> None:
        """Release output of an ordered step: all hosts have applied the records below this serial number."""
        self._ordered[step].buffer.before = before
        self._go_on(self._ordered[step], ())

    def ended(self, stream: HostStream) -> None:
        """Handle the end of the stream to a host that left its step."""
        self._outlets[stream.step].ended(stream)
        for junction in self._readers.get(stream.step, ()):
            self._go_on(junction, junction.gone(stream.lane))

    def tell(self, message: Message) -> None:
        """Insert a control message from the driver into the streams of all sources."""
        checkpoint = message.checkpoint
        if checkpoint is not None:
            sources = self._sources.items()
            positions = {number: dict(source.positions) for number, source in sources}
            ended = all(source.ended or not source.positions for _, source in sources)
            self._noted[checkpoint.epoch] = positions, ended
            self._commit(checkpoint.durable)
            self._source_epoch = self._epochs[message.number] = checkpoint.epoch + 1
            self._last = checkpoint.epoch if checkpoint.last else None
        for junction in (*self._ordered.values(), *self._junctions.values()):
            self._go_on(junction, junction.tell(message))
        for number in range(len(self._flow.sources)):
            for junction in self._readers.get(number, ()):
                self._go_on(junction, junction.echo((number, ""), message.number))
        if checkpoint is not None and checkpoint.closes:
            self._closes = True
            for number in self._sources:
                self._mark(number)

    def guide(self, guides: Guides) -> None:
        """Apply new guidance from the driver to all keyed steps."""
        for step, outlet in self._outlets.items():
            outlet.guide(guides.of(step), guides.reach)

    def _commit(self, durable: int) -> None:
        """Tell sources that the rows of epochs up to this one are not needed again."""
        epochs = [epoch for epoch in self._noted if epoch <= durable]
        if epochs:
            for number, positions in self._noted[max(epochs)][0].items():
                if number in self._pullers:
                    self._pullers[number].commit(positions)
        for epoch in epochs:
            del self._noted[epoch]

    def _push(
        self,
        stream: int,
        lane: Lane,
        batch: pa.RecordBatch,
        notes: EpochNotes,
        arrived: Any = None,
    ) -> None:
        """Pass rows of a stream through stateless steps to the junctions that read it."""
        for step, input in self._inlets.get(stream, ()):
            junction = self._junctions[step]
            self._go_on(junction, junction.take(lane, InputRows(input, batch, arrived)))
            arrived = None
        for output, map_step in self._maps.get(stream, ()):
            for made in notes.work.mapped(map_step, [batch]):
                self._push(output, lane, made, notes, arrived)
                arrived = None

    def _go_on(self, junction: Junction, items: Iterable[Item]) -> None:
        """Pass items that left a junction to its outlet or the sink."""
        if isinstance(junction, OrderedAnswers):
            self._go_on_in_order(junction, items)
            return
        for item in items:
            if junction.step is not None:
                self._outlets[junction.step].put(item)
                self._stirred = True
            elif isinstance(item, InputRows):
                self._write(item.batch)
            else:
                self._pass(item)

    def _go_on_in_order(self, answers: OrderedAnswers, items: Iterable[Item]) -> None:
        """Pass output of an ordered step's hosts, in order, to the readers of the step."""
        step, lane = answers.answers_of, answers.lane
        for item in answers.in_order(items):
            if isinstance(item, Message):
                answers.epoch = self._epochs[item.number]
                for junction in answers.readers:
                    self._go_on(junction, junction.echo(lane, item.number))
            else:
                self._push(self._outputs[step], lane, item, self._notes_of(answers.epoch))
        mark = self._host_mark(step, answers.reach.watermark_ms, answers.reach.final)
        if mark != answers.mark:
            answers.mark = mark
            for junction in answers.readers:
                self._go_on(junction, junction.take(lane, mark))

    def _write(self, batch: pa.RecordBatch) -> None:
        if self._last is not None and self._sink_epoch > self._last:
            return  # a timer fired behind the last checkpoint: it will fire again in the next run
        rows = as_schema(batch, self._flow.output, "output")
        order, epoch = self._order, self._sink_epoch
        run = (order.time_ms, order.epoch, order.earlier)
        ids = RowIds(order.courier, epoch, self._left, *run)
        self._writer.write(rows, ids)
        self._left += rows.num_rows

    def _pass(self, message: Message) -> None:
        """Handle a checkpoint at the sink: all rows of its epoch have left. Reports the epoch."""
        assert message.checkpoint is not None
        epoch = message.checkpoint.epoch
        self._writer.flush(epoch)
        point("courier.flushed", epoch=epoch, **self._where)
        notes = self._notes_of(epoch)
        positions, ended = self._noted[epoch]
        ended_at = self._junctions[None].ended_at
        closed = ended_at is not None and ended_at <= message.number
        self._report(
            EpochPassed(
                self._order.run,
                epoch,
                self._order.courier,
                positions,
                codec.to_plain(notes.seen()),
                codec.to_plain(notes.aside) if notes.aside else None,
                ended,
                closed,
                self._busy_ms(),
                notes.rows_read,
                notes.lag_ms,
            )
        )
        del self._notes[epoch]
        self._epochs = {n: after for n, after in self._epochs.items() if after > epoch}
        self._sink_epoch, self._left = epoch + 1, 0
