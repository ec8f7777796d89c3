"""The traffic of a run: all rows of one live courier on their way from sources through steps to the sink.

Rows that were polled go through stateless steps and junctions to the outlets of keyed steps; what hosts
answer goes on the same way to the next step, or leaves. One thread uses it: it hands in what came, and
lets it `act` when something is due.
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
"""Seconds of work for hosts that a courier reads ahead, at most."""
_FEW_ROWS = 16
"""Rows that a source may always bring."""
_QUIET_S = 1.0
"""Seconds after which the driver is told of counts again that have not changed."""

Connect = Callable[[str, str, StreamHeader, Lane], HostStream]
"""Opens a stream, given the host, its location, the header, and the lane of what comes by it."""


class Asked(Protocol):
    """A source that brings rows when it may."""

    @property
    def behind(self) -> int:
        """Rows that are there and were not read, as far as is known."""

    def allow(self, most_rows: int) -> None:
        """Let it bring some, about so many at most."""

    def commit(self, positions: Mapping[str, Any]) -> None:
        """Nobody will ask again for what is before these positions."""


@dataclass
class _SourceState:
    """One source in this courier."""

    clock: SourceClock
    positions: dict[str, Any]
    """Partition -> where to go on after the rows that were taken."""
    asked: bool = False
    """Whether it was asked for rows, and has not brought them."""
    ended: bool = False
    mark: LaneMark | None = None
    """How far it is, as steps know."""


class Traffic:
    """All that moves in one run of one courier."""

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
        put: Callable[[Returned], None] = lambda told: None,
        busy_ms: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Opens all streams. `report` is called when an epoch has passed, and with counts that are due;
        `put` by other threads, with what `returned` is to be called with. `busy_ms` gives what the courier
        has worked since it was last called."""
        flow = as_couriers_see(flow)
        self._flow, self._order, self._settings = flow, order, settings
        self._pullers, self._access = pullers, access
        self._open, self._writer, self._report = connect, writer, report
        self._keep_late, self._put, self._busy_ms = keep_late, put, busy_ms
        self._where = {"run": order.run, "partition": order.courier}
        self._window = ByteWindow(int(settings.live_window_mb * (1 << 20)))
        self._notes: dict[int, EpochNotes] = {}
        self._epochs: dict[int, int] = {}
        """Number of a checkpoint message -> the epoch after it."""
        self._source_epoch = self._sink_epoch = order.epoch
        self._left = 0
        """Rows that left in the sink's epoch."""
        self._noted: dict[int, tuple[dict[int, dict[str, Any]], bool]] = {}
        """Epoch -> positions of the sources at its end, and whether they had ended."""
        self._last: int | None = None
        """The run's last epoch, once it has ended: nothing of later ones is read, or leaves."""
        self._closes = False
        """Whether windows that are open close, since all input has ended."""
        self._stirred = False
        """Whether outlets have something new."""
        self._timeless = timeless(flow)
        self._inlets = inlets(flow)
        self._maps: dict[int, list[tuple[int, MapStep]]] = {}
        """HostStream -> stateless steps that read it, each with the stream that it makes."""
        self._outputs: dict[str, int] = {}
        """Step -> the stream that it makes."""
        for number, step in enumerate(flow.steps):
            made = self._outputs[step.id] = len(flow.sources) + number
            if isinstance(step, MapStep):
                self._maps.setdefault(flow.reads(number)[0], []).append((made, step))
        self._count_at = NEVER if not order.count_ms else 0.0
        """When the driver is to be told of counts next."""
        self._counted: tuple[int, ...] = ()
        """What the newest counts add up to, and when they were told."""
        self._counted_at = -NEVER
        self._add_junctions()
        self._add_outlets()
        self._add_sources()

    def _add_junctions(self) -> None:
        self._readers: dict[int | str, list[Junction]] = {}
        """What reads a source, or a keyed step."""
        steps = {step.step: step for step in self._order.steps}
        self._junctions: dict[str | None, Junction] = {}
        self._ordered: dict[str, OrderedAnswers] = {}
        """Step -> where its answers are put in order, if the flow is ordered."""
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
        parts = {one.id: one for one in segments(flow)}
        self._outlets: dict[str, Outlet] = {}
        for step in reversed(flow.keyed):
            first = any(isinstance(read, int) for read in dict(flow.graph)[step.id])
            # Answers come as chunks already: to gather those of several hosts, one in flight is enough.
            pacer = Pacer(longest_s) if first else Pacer(longest_s, at_once=1, share=1.0)
            after = [o for o in self._outlets.values() if step.id in dict(flow.graph)[o.step.id]]
            behind = tuple(dict.fromkeys(one for o in after for one in (o, *o.behind)))
            name = f"{step.id}.{order.run}.{order.courier}"
            redirect = Redirect(
                *(flow, live_segment(parts[step.id]), self._access, name),
                *(order.courier, order.couriers, self._put),
            )
            meter = StepMeter(step.id, step.slots) if order.count_ms else None
            place = (order.epoch, self._junctions[step.id], pacer, behind, run, redirect, meter)
            self._outlets[step.id] = Outlet(step, steps[step.id], *place)
        leaving = self._junctions[None]
        self._last_outlets = [
            outlet
            for step, outlet in self._outlets.items()
            if leaving in self._readers.get(step, ())
        ]
        """That of the step whose output leaves."""
        self._sink_pacer, self._chunks = Pacer(longest_s), 0
        """Of flows without keyed steps: their chunks go to the sink."""
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
        # a host may leave and join again, and then has another lane
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
            self._notes[epoch] = EpochNotes(self._flow, self._keep_late)
        return self._notes[epoch]

    def _now_ms(self) -> int:
        return max(int(time.time() * 1000), self._order.time_ms)

    def act(self) -> float:
        """Do what is due, and ask sources for rows; gives when to look again, if nothing comes before."""
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
        """Rows that a source may bring next: no more than hosts can apply in a second, so that a checkpoint
        has no more before it, and others may read the rest; 0: there are enough."""
        rooms = [outlet.room(now, _AHEAD_S) for outlet in self._first_outlets[number]]
        most = min([*rooms, self._settings.chunk_rows])
        return max(int(most), min(_FEW_ROWS, self._settings.chunk_rows)) if most > 0 else 0

    def _tell_counts(self, now: float) -> None:
        """Tell the driver what was counted, unless it knows that already."""
        self._count_at = now + self._order.count_ms / 1000
        told = (outlet.counts(self._behind(step)) for step, outlet in self._outlets.items())
        steps = tuple(one for one in told if one is not None)
        sums = tuple(
            int(n)
            for one in steps
            for n in (one.arrived.sum(), one.completed.sum(), one.waiting, *one.busy_us.values())
        )
        if sums != self._counted or now >= self._counted_at + _QUIET_S:
            self._counted, self._counted_at = sums, now
            self._report(CourierCounts(self._order.run, self._order.courier, steps))

    def _behind(self, step: str) -> int:
        """Rows that sources of a step have, and that nobody has read."""
        return sum(
            self._pullers[number].behind
            for number in self._sources
            if number in self._pullers
            and any(junction.step == step for junction in self._readers.get(number, ()))
        )

    def _look_at_clocks(self, now: float) -> None:
        """Partitions may have become idle."""
        for number in self._sources:
            self._mark(number)
        idle = [source.clock.idle_ms for source in self._sources.values() if not source.ended]
        waits_s = [ms / 4000 for ms in idle if ms is not None]
        self._clocks_at = now + max(min(waits_s), 0.005) if waits_s else NEVER

    def pulled(self, number: int, polled: list[Polled], ended: bool) -> None:
        """Rows that a source was asked for."""
        if self._last is not None:
            return
        source, epoch = self._sources[number], self._source_epoch
        source.asked, source.ended = False, ended
        notes, now_ms = self._notes_of(epoch), self._now_ms()
        point("courier.polled", epoch=epoch, **self._where)
        batches = []
        for one in polled:
            source.positions[one.partition] = one.position
            if one.bad:
                self._set_aside(one.bad, notes)
            if one.batch.num_rows:
                notes.read(number, one.partition, one.batch.num_rows)
                newest = notes.witness.note(number, one.batch)
                if newest:
                    notes.note_times(number, source.clock.heard(one.partition, newest, now_ms))
                batches.append(one.batch)
        if batches:
            began, rows = time.monotonic(), one_batch(batches)
            arrival = self._flow.sources[number].arrival
            now_us = time.time() * 1e6
            arrived = arrivals_us(rows, arrival, now_us)
            notes.lag_ms = (
                (now_us - float(arrived.max(initial=0.0))) / 1000 if len(arrived) else 0.0
            )
            self._push(number, (number, ""), rows, notes, arrived)
            if not self._outlets:
                self._chunks += 1
                self._sink_pacer.cut(self._chunks, rows.num_rows, began)
                self._sink_pacer.done(self._chunks, time.monotonic())
                notes.left([arrived], time.time() * 1e6)
        self._mark(number)

    def _set_aside(self, bad: Sequence[DeadLetter], notes: EpochNotes) -> None:
        """What a source could not read."""
        if self._flow.on_error != "dead_letter":
            raise bad_input(bad)
        notes.aside.dead.extend(bad)

    def _mark(self, number: int) -> None:
        """Let the steps that read a source know how far its event time has come."""
        source = self._sources[number]
        mark = source.clock.mark(self._now_ms(), source.ended, self._closes)
        if mark != source.mark:
            source.mark, self._stirred = mark, True
            for junction in self._readers.get(number, ()):
                self._go_on(junction, junction.take((number, ""), mark))

    def answered(self, stream: HostStream, batch: pa.RecordBatch | None, back: Back | None) -> None:
        step = stream.step
        if batch is not None and batch.num_rows:
            self._take_in(stream, batch, None if back is None else back.watermark_ms)
        if back is None:
            return
        if back.error is not None:
            raise from_wire(back.error)
        if step not in self._ordered:
            # before a checkpoint goes on, so that it tells of these rows too
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
            # it may be what came to pass behind the message
            if back.watermark_ms is not None:
                stream.watermark_ms = back.watermark_ms
            stream.final = stream.final or back.final
            mark = self._host_mark(step, stream.watermark_ms, stream.final)
            for junction in readers:
                self._go_on(junction, junction.take(stream.lane, mark))

    def returned(self, told: Returned) -> None:
        """What has come of rows that burst workers were asked for."""
        self._outlets[told.step].returned(told)

    def close(self) -> None:
        """The run is over."""
        for outlet in self._outlets.values():
            outlet.close()

    def _take_in(self, stream: HostStream, batch: pa.RecordBatch, fired_ms: int | None) -> None:
        """Rows that a host has answered; what was due among them was so up to this watermark."""
        ordered = self._ordered.get(stream.step)
        if ordered is None:
            notes = self._notes_of(stream.epoch)
            self._push(self._outputs[stream.step], stream.lane, batch, notes)
        else:
            rows = InputRows(0, (batch, fired_ms))
            self._go_on(ordered, ordered.take(stream.lane, rows))

    def _applied(self, step: str, before: int) -> None:
        """All hosts of an ordered step have applied the records with lower numbers."""
        self._ordered[step].buffer.before = before
        self._go_on(self._ordered[step], ())

    def ended(self, stream: HostStream) -> None:
        """A host that left its step has answered everything."""
        self._outlets[stream.step].ended(stream)
        for junction in self._readers.get(stream.step, ()):
            self._go_on(junction, junction.gone(stream.lane))

    def tell(self, message: Message) -> None:
        """A control message of the driver: a point in the streams of all sources."""
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
        """What the driver wants done with rows of keyed steps from now on."""
        for step, outlet in self._outlets.items():
            outlet.guide(guides.of(step), guides.reach)

    def _commit(self, durable: int) -> None:
        """Let sources know that the rows of this epoch, and of those before it, are done with."""
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
        """Take rows of a stream through stateless steps to all that read it."""
        for step, input in self._inlets.get(stream, ()):
            junction = self._junctions[step]
            self._go_on(junction, junction.take(lane, InputRows(input, batch, arrived)))
            arrived = None
        for output, map_step in self._maps.get(stream, ()):
            for made in notes.work.mapped(map_step, [batch]):
                self._push(output, lane, made, notes, arrived)
                arrived = None

    def _go_on(self, junction: Junction, items: Iterable[Item]) -> None:
        """What a junction lets through goes to its outlet, or to the sink."""
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
        """What hosts of an ordered step have answered goes on to all that reads the step."""
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
            return  # a timer has fired behind the last checkpoint: it will fire again
        rows = as_schema(batch, self._flow.output, "output")
        order, epoch = self._order, self._sink_epoch
        run = (order.time_ms, order.epoch, order.earlier)
        ids = RowIds(order.courier, epoch, self._left, *run)
        self._writer.write(rows, ids)
        self._left += rows.num_rows

    def _pass(self, message: Message) -> None:
        """A checkpoint has come to the sink: all of its epoch is through."""
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
