"""A courier's connection to one keyed step: rows queue up, are cut into chunks, and go to the hosts.

An outlet does no alignment: it gets rows and control messages from a junction, and keeps their order. When
a message comes, all rows before it are sent at once.

Rows of a chunk may be redirected to burst workers. The partial states made of them go to the hosts that own
their slots by then, as a chunk of its own, in the same epoch: a checkpoint waits in the queue until nothing
is outstanding. Hosts never get a watermark that could make an outstanding row late. The courier judges late
rows by its own watermark.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from time import thread_time
from typing import Any

import numpy as np
import pyarrow as pa

from penstock import codec
from penstock.exchange.split import split
from penstock.exchange.tally import Tally
from penstock.faults import point
from penstock.live.backlog import Backlog, HostPace, WaitingRecords
from penstock.live.channels import HostStream
from penstock.live.flights import Flight, Flights
from penstock.live.junction import InputRows, Junction
from penstock.live.meter import StepMeter
from penstock.live.notes import EpochNotes
from penstock.live.pacing import ByteWindow, Pacer
from penstock.live.sinks.sink import NEVER
from penstock.model import HostId
from penstock.offload.courier.redirect import Parted, Redirect, Returned, Settled
from penstock.operators.operator import EpochTime, Outgoing, Sender
from penstock.operators.places import with_serial
from penstock.plan.epoch import RouteTable
from penstock.plan.reflex import Reflex
from penstock.plan.slots import must_be_slots
from penstock.plan.steps import KeyedStep
from penstock.state.arrays import Array
from penstock.wire.live import (
    Back,
    Chunk,
    Frame,
    LiveStep,
    Message,
    Part,
    Reroute,
    StepCounts,
    StepGuide,
    Time,
)
from penstock.wire.report import Counts

_TIME_S = 0.005
"""Least seconds between two watermarks sent to hosts: each costs nearly as much as a chunk."""
_GREETING_S = 0.1
"""Seconds to wait for the watermarks of hosts after the courier was idle."""
_BEHIND_S = 0.02
"""Seconds of work in flight from which on hosts count as behind."""
_ALWAYS = 256.0
"""Rows that may always be in flight to hosts."""
_PART_S = 0.0004
"""Seconds of work that Flight does for one part of a chunk, both ways, on both sides together."""


@dataclass(frozen=True)
class Surroundings:
    """The parts of a run that its outlets need."""

    connect: Callable[[str, str, str, int | None], HostStream]
    """Opens a stream, given step, host, location, and the number of the message with which the host joins the
    run; None if it was there from the start."""
    parted: Callable[[HostStream, int], None]
    """Called when a host leaves its step, with its stream and the number of the message."""
    notes: Callable[[int], EpochNotes]
    """Returns the notes of an epoch."""
    window: ByteWindow
    clock: Callable[[], float]
    """Monotonic clock, in seconds."""
    now_us: Callable[[], float]
    """Time of day, in microseconds since 1970."""
    where: dict[str, int]
    """Run and courier number, as passed to fault points."""
    own: Callable[[Reflex], Reflex]
    """Returns this courier's part of a reflex."""
    in_order: Callable[[str, int], None] | None = None
    """Called in ordered flows with a step and a serial number, when all hosts of the step have applied the
    records with lower numbers. None if the flow is not ordered."""


class Outlet:
    """Sends one courier's rows to one keyed step. Used by one thread.

    `behind` holds the outlets of the steps that rows pass after this one.
    """

    def __init__(
        self,
        step: KeyedStep,
        order: LiveStep,
        epoch: int,
        junction: Junction,
        pacer: Pacer,
        behind: tuple[Outlet, ...],
        run: Surroundings,
        redirect: Redirect,
        meter: StepMeter | None = None,
    ) -> None:
        self.meter = meter
        """Counts records for control; None if counting is off."""
        self.step, self.junction, self.pacer, self.behind = step, junction, pacer, behind
        self.epoch, self._run = epoch, run
        self._routes = order.routes
        self.streams = {
            place.host: run.connect(step.id, place.host, place.location, None)
            for place in order.hosts
        }
        self._line: deque[InputRows | Message] = deque()
        self._messages = 0
        """Number of messages in the queue."""
        self._bytes = 0
        """Size of the rows in the queue, in bytes."""
        self.rows = 0
        """Number of rows in the queue."""
        self._put_us: deque[float] = deque()
        """Time at which each batch was queued, in microseconds, if records are counted."""
        self._own = self._sent_time = Time(order.watermark_ms)
        """This courier's event time, and the one that hosts know."""
        self._sent_at = -NEVER
        self._marks: dict[str, int] = {}
        """Host -> its watermark."""
        self._awaited: set[str] = set()
        """Hosts that must report their watermarks before the courier sends rows again."""
        self._awaited_until = 0.0
        self._waking = False
        self._sender: tuple[int | None, Sender] | None = None
        """Watermark by which rows are judged late, and the sender that uses it."""
        self._guide = StepGuide(step.id)
        self._number = -1
        self._serial = 0
        """Serial number of the next record, if the flow is ordered."""
        self._flights = Flights(
            *(pacer, run.window, meter, run.clock, run.now_us),
            lambda: sum(outlet.pacer.cost_s for outlet in behind),
            None if run.in_order is None else self._released,
        )
        self._backlog = Backlog()
        self._paces: dict[str, HostPace] = {}
        self._redirect = redirect
        self._reflex: Reflex | None = None

    def guide(self, guide: StepGuide, reach: str | None) -> None:
        """Apply new guidance, from the next chunk on."""
        must_be_slots(guide.watched, self._routes.slots.count)
        self._guide, self._sender = guide, None
        self._redirect.guide(guide.offload, reach)
        reflex = None if guide.offload is None else guide.offload.reflex
        self._reflex = None if reflex is None else self._run.own(reflex)

    def put(self, item: InputRows | Message) -> None:
        """Queue rows or a message."""
        if isinstance(item, Message):
            self._messages += 1
        else:
            bytes = item.batch.nbytes
            self._bytes += bytes
            self._run.window.add(bytes)
            self.rows += item.batch.num_rows
            if self.meter is not None:
                self._put_us.append(self._run.now_us())
        self._line.append(item)

    def heard(self, stream: HostStream, back: Back) -> None:
        """Handle a host's reply."""
        self._flights.worked(stream.host, back.busy_us)
        self._applied(stream.unapplied.applied(back.took, back.done), stream.host)
        self._feed(stream.host)
        if back.watermark_ms is not None:
            self._marks[stream.host] = back.watermark_ms
            self._awaited.discard(stream.host)

    def ended(self, stream: HostStream) -> None:
        """Handle the end of the stream to a host that left."""
        self._applied(stream.unapplied.applied(self._number), stream.host)

    def _applied(self, numbers: Iterable[int], host: str) -> None:
        """Record that a host has applied its parts of these chunks."""
        flights, pace, now = self._flights, self._pace(host), self._run.clock()
        for number in numbers:
            records = pace.applied(number, now)
            flights.hosts.applied(records, now)
            flights.peak.note(records, now)
            flights.applied((number,), host)

    def room(self, now: float, within_s: float) -> float:
        """Rows that hosts can apply within `within_s` seconds, beyond those queued or in flight. Infinite if
        burst workers take the excess."""
        if self._guide.offload is not None:
            return float("inf")
        flights = self._flights
        return max(flights.peak.of(now) * within_s, _ALWAYS) - flights.hosts.ahead - self.rows

    def counts(self, behind: int) -> StepCounts | None:
        """Counts of the step so far; `behind` rows are still in sources. None if counting is off."""
        if self.meter is None:
            return None
        now_us = self._run.now_us()
        return self.meter.counts(now_us, self.rows + behind, self._backlog.oldest_us())

    def work(self) -> float:
        """Send what is due. Returns the time at which to call again, if nothing happens before."""
        while True:
            look_at, now = self._work_line(), self._run.clock()
            if not self._bring(self._redirect.overdue(now, self._notes.work)):
                hurry, behind = self._messages > 0, self._flights.hosts.waits_s(now) > _BEHIND_S
                return min(look_at, self._redirect.ask(now, hurry, behind))

    def returned(self, reply: Returned) -> None:
        """Handle the reply of a burst worker, or its failure."""
        self._bring(self._redirect.returned(reply, self._notes.work))

    def close(self) -> None:
        """Release resources at the end of the run."""
        self._redirect.close()

    def _work_line(self) -> float:
        while True:
            now = self._run.clock()
            if not self._awake(now):
                return self._awaited_until
            if self._line and not self._messages and self.pacer.next_at() > now:
                return self.pacer.next_at()
            self._cut(now)
            if not self._line:
                return self._tell_time(now)
            message = self._line[0]
            assert isinstance(message, Message)
            if message.checkpoint is not None and self._redirect.outstanding:
                return NEVER
            self._line.popleft()
            self._messages -= 1
            self._pass(message)

    def _awake(self, now: float) -> bool:
        """Whether rows may be sent. A courier that was idle first tells hosts that it is back, and waits for
        their watermarks: they may have advanced meanwhile, and only wait for it again from then on."""
        if self._awaited and now < self._awaited_until:
            return False
        if self._waking:
            self._waking = False
            self._awaited.clear()  # hosts that did not answer have no newer watermark
            self._own = self._sent_time = Time(
                _newest(self._sent_time.watermark_ms, *self._marks.values())
            )
        if self._sent_time.idle and not self.junction.reach.idle:
            self._tell(Time(self._sent_time.watermark_ms), now)
            self._waking, self._awaited = True, set(self.streams)
            self._awaited_until = now + _GREETING_S
            return False
        return True

    def _tell_time(self, now: float) -> float:
        """Send hosts the courier's event time, if it has changed. Returns the time at which to call again."""
        reach = self.junction.reach
        own = Time(_newest(self._own.watermark_ms, reach.watermark_ms), reach.idle, reach.final)
        sent = own
        before = [self._redirect.watermark_ms] if self._redirect.outstanding else []
        before += [self._backlog.watermark_ms] if self._backlog else []
        if before:
            known = [time for time in before if time is not None]
            least = min(known) if len(known) == len(before) else None
            sent = Time(_newest(self._sent_time.watermark_ms, least))
        if (own, sent) == (self._own, self._sent_time):
            return NEVER
        if now < self._sent_at + _TIME_S and not sent.final:
            return self._sent_at + _TIME_S
        self._own, self._sent_at = own, now
        if sent != self._sent_time:
            self._tell(sent, now)
        return NEVER

    def _tell(self, time: Time, now: float) -> None:
        self._send(Frame(time=time))
        self._sent_time, self._sent_at = time, now

    def _send(self, frame: Frame) -> None:
        metadata = codec.encode(frame)
        for stream in self.streams.values():
            stream.send(metadata)

    def _cut(self, now: float) -> None:
        """Send all rows up to the next message, as one chunk."""
        inputs: list[list[pa.RecordBatch]] = [[] for _ in self.step.plan.inputs]
        arrived, came, rows = list[Array](), list[Array](), 0
        while self._line and isinstance(item := self._line[0], InputRows):
            self._line.popleft()
            inputs[item.input].append(item.batch)
            rows += item.batch.num_rows
            if item.arrived_us is not None:
                arrived.append(item.arrived_us)
            if self.meter is not None:
                put_us = self._put_us.popleft()
                came.append(np.array([put_us]) if item.arrived_us is None else item.arrived_us)
        if not rows:
            return
        self.rows = 0
        began, notes, first = thread_time(), self._notes, self._serial
        self._number += 1
        tally = notes.tallies[self.step.id]
        tally.watch(self._guide.watched)
        fit = [
            list(notes.work.fit(self.step, number, [one_batch(batches)] if batches else ()))
            for number, batches in enumerate(inputs)
        ]
        parted = self._redirected(fit, arrived, now, notes)
        before, outgoing = tally.counts.copy(), list[Outgoing]()
        kind = notes.work.send(self.step, self._sender_now(), fit, outgoing.append)
        parts = self._parts(outgoing, tally)
        times = self._came(came)
        if self.meter is not None:
            self.meter.cut(self._number, tally.counts - before, self._routes, *times)
        if parted.by_slot is not None:
            self._count(parted.by_slot, tally)
        work_s = thread_time() - began + _PART_S * len(parts)
        self.pacer.cut(self._number, rows, now)
        number, kept = self._number, self._send_chunk(kind, parts, times[1])
        point("courier.sent", step=self.step.id, epoch=self.epoch, attempt=0, **self._run.where)
        flight = Flight(
            *(kept, work_s, self._bytes, arrived, times[0], notes, first, parted.carried > 0)
        )
        self._bytes = 0
        self._flights.sent(number, flight)
        for host in parts:
            self._feed(host)

    def _redirected(
        self,
        fit: list[list[pa.RecordBatch]],
        arrived_us: list[Array],
        now: float,
        notes: EpochNotes,
    ) -> Parted:
        """Remove the rows that burst workers get from a chunk."""
        rows = sum(batch.num_rows for batches in fit for batch in batches)
        if self._guide.offload is None or not rows:
            return Parted()
        surplus = 0.0
        if self._reflex is not None:
            oldest_us = min((times.min() for times in arrived_us if len(times)), default=None)
            waited_s = 0.0 if oldest_us is None else (self._run.now_us() - oldest_us) / 1e6
            hosts = self._flights.hosts
            surplus = self._reflex.surplus(rows, hosts.ahead, hosts.rate(now), waited_s)
            notes.route(self.step.id, rows, combined=self._combines)
        parted = self._redirect.part(self._number, fit, self._time, surplus, now)
        if parted.carried:
            fit[:] = parted.stays
            point("courier.offload", **self._offload_where)
        return parted

    def _bring(self, settled: Iterable[Settled]) -> bool:
        """Send hosts the partial states of redirected rows. Returns whether there were any."""
        brought, notes = False, self._notes
        tally, slots = notes.tallies[self.step.id], self._routes.slots
        for of, rows, made in settled:
            brought = True
            point("courier.offloaded", **self._offload_where)
            notes.work.late(self.step, made.late)
            if not self._redirect.by_slot and made.sent:
                # Rows are attributed to records evenly.
                record_slots = slots.of(np.concatenate([sent.hashes for sent in made.sent]))
                each = rows / max(len(record_slots), 1)
                counts = np.rint(np.bincount(record_slots, minlength=slots.count) * each).astype(
                    np.int64
                )
                of.counts += counts
                self._count(counts, tally)
            self._number += 1
            parts = self._parts(made.sent, None)
            if self.meter is not None:
                records = {host: sum(b.num_rows for b, _ in some) for host, some in parts.items()}
                self.meter.brought(self._number, records)
            number, came_us = self._number, self._flights.came_us(of)
            # It must not wait: its rows are older than those that wait, and time must not pass them.
            kept = self._send_chunk(self._redirect.kind, parts, came_us, waits=False)
            self._flights.brought(number, of, kept)
        return brought

    def _came(self, times_us: list[Array]) -> tuple[float, float]:
        """Mean and earliest arrival time of rows, in microseconds; the current time if unknown."""
        known = [some for some in times_us if len(some)]
        if not known:
            return self._run.now_us(), self._run.now_us()
        came_us = np.concatenate(known)
        return float(came_us.mean()), float(came_us.min())

    def _count(self, carried: Counts, tally: Tally) -> None:
        """Count rows that go to burst workers as records that hosts would have got."""
        tally.counts += carried
        if self.meter is not None:
            self.meter.carried(carried)

    def _parts(
        self, outgoing: Iterable[Outgoing], tally: Tally | None
    ) -> dict[str, list[tuple[pa.RecordBatch, Array]]]:
        """Host -> the batches to send to it, each with the slots of all records that it was split from.
        Counts the records if there is a tally."""
        parts: dict[str, list[tuple[pa.RecordBatch, Array]]] = {}
        for sent in outgoing:
            slots = self._routes.slots.of(sent.hashes) if tally is None else tally.note(*sent)
            batch = sent.batch
            if self._run.in_order is not None:
                batch = with_serial(batch, self._serial)
                self._serial += batch.num_rows
            for host, part in split(batch, slots, self._routes):
                parts.setdefault(self._routes.hosts[host], []).append((part, slots))
        return parts

    def _send_chunk(
        self,
        kind: str,
        parts: Mapping[str, list[tuple[pa.RecordBatch, Array]]],
        came_us: float,
        waits: bool = True,
    ) -> int:
        """Send each host its part of the newest chunk. If the host is busy and `waits` is true, the part
        waits in the backlog. Returns the number of parts; each waiting record counts as one."""
        metadata, count = codec.encode(Frame(chunk=Chunk(self._number, kind))), 0
        for host, batches in parts.items():
            batch, pace = one_batch([batch for batch, _ in batches]), self._pace(host)
            self._flights.hosts.sent(batch.num_rows)
            room = pace.room and batch.num_rows <= 2 * pace.most and not self._backlog.of(host)
            if room or not waits or self._run.in_order is not None:
                self._send_to(host, metadata, batch)
                count += 1
                continue
            number, owner = self._routes.hosts.index(HostId(host)), self._routes.owner
            slots = np.concatenate([slots[owner[slots] == number] for _, slots in batches])
            time = self._own.watermark_ms
            self._backlog.put(host, WaitingRecords(self._number, kind, batch, slots, time, came_us))
            count += batch.num_rows
            if self.meter is not None:
                self.meter.kept(self._number, host)
        return count

    def _send_to(self, host: str, metadata: bytes, batch: pa.RecordBatch) -> None:
        """Send a host its part of the newest chunk."""
        stream = self.streams[host]
        stream.unapplied.add(self._number)
        self._pace(host).sent(self._number, batch.num_rows, self._run.clock())
        stream.send(metadata, batch)

    def _feed(self, host: str, all: bool = False) -> None:
        """Send a host the records that wait for it, as many as it can take, or all of them."""
        pace = self._pace(host)
        while self._backlog.of(host) and (all or pace.room):
            records = self._backlog.take(host, float("inf") if all else pace.most)
            self._number += 1
            self._flights.followed(self._number, records)
            metadata = codec.encode(Frame(chunk=Chunk(self._number, records[0].kind)))
            self._send_to(host, metadata, one_batch([some.batch for some in records]))

    def _pace(self, host: str) -> HostPace:
        if host not in self._paces:
            self._paces[host] = HostPace(2 * self.pacer.longest_s)
        return self._paces[host]

    @property
    def _notes(self) -> EpochNotes:
        return self._run.notes(self.epoch)

    @property
    def _time(self) -> EpochTime:
        return EpochTime(self.epoch, int(self._run.now_us() // 1000), self._own.watermark_ms)

    @property
    def _combines(self) -> bool:
        ordered = self._run.in_order is not None
        return self._guide.two_stage and self.step.plan.merges and not ordered

    @property
    def _offload_where(self) -> dict[str, Any]:
        return {"step": self.step.id, "epoch": self.epoch, "attempt": 0, **self._run.where}

    def _sender_now(self) -> Sender:
        watermark = self._own.watermark_ms
        if self._sender is not None and self._sender[0] == watermark:
            return self._sender[1]
        if self._combines:
            # One sender per chunk: keys that it has seen in earlier chunks must not make it skip rows.
            return self.step.plan.sender(self._time, two_stage=True)
        made = self.step.plan.sender(self._time)
        if made.combines:
            made.combines = False
        self._sender = watermark, made
        return made

    def _released(self, before: int | None) -> None:
        """Report the serial number below which hosts have applied all records; None for all records sent."""
        assert self._run.in_order is not None
        self._run.in_order(self.step.id, self._serial if before is None else before)

    def _pass(self, message: Message) -> None:
        """Send a control message to the hosts, between chunks."""
        where = {"step": self.step.id, "epoch": self.epoch, **self._run.where}
        point("courier.message", **where)
        if message.checkpoint is not None:
            self._notes.offload(*self._redirect.report())
            for host in self._backlog.hosts:
                self._feed(host, all=True)
            self._send(Frame(message=message))
            self.epoch = message.checkpoint.epoch + 1
        elif message.reroute is not None:
            self._reroute(message, message.reroute)
        elif message.part is not None:
            self._part(message, message.part)
        point("courier.messaged", **where)

    def _reroute(self, message: Message, reroute: Reroute) -> None:
        places = {handing.target: handing.target_location for handing in reroute.handings}
        joined = {
            host: self._run.connect(self.step.id, host, location, message.number)
            for host, location in places.items()
            if host not in self.streams
        }
        self.streams |= joined
        self._send(Frame(message=message))
        for stream in joined.values():
            stream.send(codec.encode(Frame(time=self._sent_time)))
        self._routes = rerouted(self._routes, reroute)
        sources = dict.fromkeys(handing.source for handing in reroute.handings)
        self._backlog.route([host for host in sources if self._backlog.of(host)], self._routes)
        for host in self._backlog.hosts:
            self._feed(host)

    def _part(self, message: Message, part: Part) -> None:
        self._send(Frame(message=message))
        stream = self.streams.pop(part.host, None)
        if stream is not None:
            self._awaited.discard(part.host)
            self._marks.pop(part.host, None)
            stream.send(codec.encode(Frame(leave=True)))
            stream.finish()
            self._run.parted(stream, message.number)


def rerouted(routes: RouteTable, reroute: Reroute) -> RouteTable:
    """The routes after slots have moved, with only the hosts that own slots."""
    hosts = list(dict.fromkeys([*routes.hosts, *(h.target for h in reroute.handings)]))
    owner = routes.owner.copy()
    for handing in reroute.handings:
        owner[list(handing.slots)] = hosts.index(HostId(handing.target))
    used, places = np.unique(owner, return_inverse=True)
    return RouteTable(tuple(HostId(hosts[n]) for n in used), places.astype(np.int32), routes.splits)


def one_batch(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """The rows of all batches, as one batch."""
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _newest(*times: int | None) -> int | None:
    return max((time for time in times if time is not None), default=None)
