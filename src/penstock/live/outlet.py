"""A courier's way to one keyed step: rows wait in line, are cut into chunks, and go to the hosts.

An outlet knows nothing of alignment: it gets what a junction lets through, rows and control messages, and
keeps that order. A message takes all rows before it along at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import thread_time

import numpy as np
import pyarrow as pa

from penstock import codec
from penstock.exchange.split import split
from penstock.faults import point
from penstock.live.channels import HostStream
from penstock.live.junction import InputRows, Junction
from penstock.live.meter import StepMeter
from penstock.live.notes import EpochNotes
from penstock.live.pacing import ByteWindow, Pacer
from penstock.live.sinks.sink import NEVER
from penstock.model import HostId
from penstock.operators.operator import EpochTime, Outgoing, Sender
from penstock.plan.epoch import RouteTable
from penstock.plan.steps import KeyedStep
from penstock.state.arrays import Array
from penstock.wire.live import Back, Chunk, Frame, LiveStep, Message, Part, Reroute, Time

_TIME_S = 0.005
"""Seconds from one word about event time to the next, at least: it costs nearly as much as a chunk."""
_GREETING_S = 0.1
"""Seconds to wait for the watermarks of hosts, after a time in which the courier was idle."""
_PART_S = 0.0004
"""Seconds of work in Flight for a part of a chunk, there and back, on both sides together."""


@dataclass
class _Flying:
    """A chunk that some of its hosts have not applied."""

    parts: int
    """Hosts that have not applied it."""
    sent: int
    """Hosts that it was sent to."""
    work_s: float
    """What it was to this courier."""
    bytes: int
    arrived_us: list[Array]
    notes: EpochNotes


@dataclass(frozen=True)
class Surroundings:
    """What an outlet needs of the run that it is part of."""

    connect: Callable[[str, str, str, int | None], HostStream]
    """Opens a stream, given step, host, location, and the message with which the host joins the run; None:
    it is there from the beginning."""
    parted: Callable[[HostStream, int], None]
    """Called when a host has left its step with a message."""
    notes: Callable[[int], EpochNotes]
    """The notes of an epoch."""
    window: ByteWindow
    clock: Callable[[], float]
    """Seconds, never back."""
    now_us: Callable[[], float]
    """The time of day."""
    where: dict[str, int]
    """What fault points tell of the courier."""


class Outlet:
    """One keyed step, as one courier sends to it. Used by one thread.

    `behind` are the outlets of the steps that rows pass after this one.
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
        meter: StepMeter | None = None,
    ) -> None:
        self.meter = meter
        """Counts records for control; None: nobody wants that."""
        self.step, self.junction, self.pacer, self.behind = step, junction, pacer, behind
        self.epoch, self._run = epoch, run
        self._routes = order.routes
        self.streams = {
            place.host: run.connect(step.id, place.host, place.location, None)
            for place in order.hosts
        }
        self._line: deque[InputRows | Message] = deque()
        self._messages = 0
        """How many there are in line."""
        self._bytes = 0
        """Of the rows in line."""
        self.rows = 0
        """Rows in line."""
        self._put_us: deque[float] = deque()
        """When each batch in line was put there, if records are counted."""
        self._told = Time(order.watermark_ms)
        """What hosts know of this courier's time."""
        self._told_at = -NEVER
        self._marks: dict[str, int] = {}
        """Host -> its watermark."""
        self._awaited: set[str] = set()
        """Hosts whose watermarks the courier must hear before it sends rows again."""
        self._awaited_until = 0.0
        self._waking = False
        self._sender: tuple[int | None, Sender] | None = None
        """The sender in use, and the watermark that it judges late rows by."""
        self._number = -1
        self._flying: dict[int, _Flying] = {}
        self._busy_s = 0.0
        """Work of hosts since a chunk was applied."""

    def put(self, item: InputRows | Message) -> None:
        """Rows, or a message, that come next."""
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
        """A host has answered."""
        self._busy_s += back.busy_us / 1e6
        if self.meter is not None and back.busy_us:
            self.meter.worked(stream.host, back.busy_us)
        for number in stream.unapplied.applied(back.took, back.done):
            self._applied(number, stream.host)
        if back.watermark_ms is not None:
            self._marks[stream.host] = back.watermark_ms
            self._awaited.discard(stream.host)

    @property
    def half_answered(self) -> bool:
        """Whether some hosts of a chunk have applied it, and others have not."""
        return any(chunk.parts < chunk.sent for chunk in self._flying.values())

    def ended(self, stream: HostStream) -> None:
        """The stream to a host that left has ended."""
        for number in stream.unapplied.applied(self._number):
            self._applied(number, stream.host)

    def work(self) -> float:
        """Do what is due. Gives the time at which to look again, if nothing happens before."""
        while True:
            now = self._run.clock()
            if not self._awake(now):
                return self._awaited_until
            if self._line and not self._messages and self.pacer.next_at() > now:
                return self.pacer.next_at()
            self._cut(now)
            if not self._line:
                return self._tell_time(now)
            message = self._line.popleft()
            assert isinstance(message, Message)
            self._messages -= 1
            self._pass(message)

    def _awake(self, now: float) -> bool:
        """Whether rows may be sent. After a time in which the courier was idle, hosts are told and heard
        first: they may have gone beyond what it knows of, and wait for it again from then on."""
        if self._awaited and now < self._awaited_until:
            return False
        if self._waking:
            self._waking = False
            self._awaited.clear()  # those that said nothing have nothing new to say
            self._told = Time(_newest(self._told.watermark_ms, *self._marks.values()))
        if self._told.idle and not self.junction.reach.idle:
            self._tell(Time(self._told.watermark_ms), now)
            self._waking, self._awaited = True, set(self.streams)
            self._awaited_until = now + _GREETING_S
            return False
        return True

    def _tell_time(self, now: float) -> float:
        """Tell hosts how far event time has come, if that is news."""
        reach = self.junction.reach
        newest = _newest(self._told.watermark_ms, reach.watermark_ms)
        time = Time(newest, reach.idle, reach.final)
        if time == self._told:
            return NEVER
        if now < self._told_at + _TIME_S and not time.final:
            return self._told_at + _TIME_S
        self._tell(time, now)
        return NEVER

    def _tell(self, time: Time, now: float) -> None:
        self._send(Frame(time=time))
        self._told, self._told_at = time, now

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
        began, notes = thread_time(), self._run.notes(self.epoch)
        tally = notes.tallies[self.step.id]
        before = tally.counts.copy()
        kind, parts = self._parts(inputs, notes)
        self._number += 1
        if self.meter is not None:
            came_us = np.concatenate(came)
            if not len(came_us):  # rows whose time of arrival is not known
                came_us = np.array([self._run.now_us()])
            times = float(came_us.mean()), float(came_us.min())
            self.meter.cut(self._number, tally.counts - before, self._routes, *times)
        metadata = codec.encode(Frame(chunk=Chunk(self._number, kind)))
        work_s = thread_time() - began + _PART_S * len(parts)
        self._flying[self._number] = _Flying(
            len(parts), len(parts), work_s, self._bytes, arrived, notes
        )
        self._bytes = 0
        self.pacer.cut(self._number, rows, now)
        for host, batches in parts.items():
            stream = self.streams[host]
            stream.unapplied.add(self._number)
            stream.send(metadata, one_batch(batches))
        point("courier.sent", step=self.step.id, epoch=self.epoch, attempt=0, **self._run.where)
        if not parts:
            self._arrive(self._number)

    def _parts(
        self, inputs: list[list[pa.RecordBatch]], notes: EpochNotes
    ) -> tuple[str, dict[str, list[pa.RecordBatch]]]:
        """What is to be sent to each host, and which kind of records that is."""
        work, tally = notes.work, notes.tallies[self.step.id]
        outgoing: list[Outgoing] = []
        fit = [
            work.fit(self.step, number, [one_batch(batches)] if batches else ())
            for number, batches in enumerate(inputs)
        ]
        kind = work.send(self.step, self._sender_now(), fit, outgoing.append)
        parts: dict[str, list[pa.RecordBatch]] = {}
        for one in outgoing:
            for host, part in split(one.batch, tally.note(*one), self._routes):
                parts.setdefault(self._routes.hosts[host], []).append(part)
        return kind, parts

    def _sender_now(self) -> Sender:
        watermark = self._told.watermark_ms
        if self._sender is None or self._sender[0] != watermark:
            now_ms = int(self._run.now_us() // 1000)
            made = self.step.plan.sender(EpochTime(self.epoch, now_ms, watermark))
            if made.combines:
                made.combines = False
            self._sender = watermark, made
        return self._sender[1]

    def _applied(self, number: int, host: str) -> None:
        chunk = self._flying[number]
        if self.meter is not None:
            self.meter.applied(number, host, self._run.now_us())
        chunk.parts -= 1
        if not chunk.parts:
            self._arrive(number)

    def _arrive(self, number: int) -> None:
        """All hosts of a chunk have applied it."""
        chunk = self._flying.pop(number)
        self._run.window.add(-chunk.bytes)
        self.pacer.done(number, self._run.clock(), chunk.work_s + self._busy_s)
        self._busy_s = 0.0
        behind_us = 1e6 * sum(outlet.pacer.cost_s for outlet in self.behind)
        chunk.notes.left(chunk.arrived_us, self._run.now_us() + behind_us)

    def _pass(self, message: Message) -> None:
        """Put a control message between chunks."""
        where = {"step": self.step.id, "epoch": self.epoch, **self._run.where}
        point("courier.message", **where)
        if message.checkpoint is not None:
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
            stream.send(codec.encode(Frame(time=self._told)))
        self._routes = rerouted(self._routes, reroute)

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
    """The routes once slots have changed hands, with those hosts that own any."""
    hosts = list(dict.fromkeys([*routes.hosts, *(h.target for h in reroute.handings)]))
    owner = routes.owner.copy()
    for handing in reroute.handings:
        owner[list(handing.slots)] = hosts.index(HostId(handing.target))
    used, places = np.unique(owner, return_inverse=True)
    return RouteTable(tuple(HostId(hosts[n]) for n in used), places.astype(np.int32))


def one_batch(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """All rows in one batch."""
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _newest(*times: int | None) -> int | None:
    return max((time for time in times if time is not None), default=None)
