"""The stages of a chain of steps: maps, the work that couriers otherwise do, and the keyed steps.

A keyed stage also emits the step's end-of-epoch rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.exchange.aside import Aside
from penstock.exchange.step_work import StepWork
from penstock.host.chunks import ChannelChunk, Parted, Round, Rounded
from penstock.host.machine import HostMachine
from penstock.host.part_stages import HostStage
from penstock.host.parted import PartedOperator
from penstock.operators.operator import Answer, EpochTime, OnError, Outgoing
from penstock.operators.places import Places, in_order
from penstock.plan.steps import FlowPlan, KeyedStep, MapStep
from penstock.runtime.operators import ChainOperator as Stage
from penstock.runtime.operators import Mark
from penstock.runtime.scheduler import Meter
from penstock.wire.messages import ChannelHeader

_NUMBER_BITS = 32
"""Bits of a serial number that hold the record's number in its chunk. The bits above hold the chunk's."""


@dataclass(frozen=True)
class Rows:
    """A chunk of rows between two steps."""

    number: int
    """Position in the channel's order. The output that a step makes of a chunk has the same number."""
    batches: list[pa.RecordBatch]

    @property
    def rows(self) -> int:
        return sum(batch.num_rows for batch in self.batches)


@dataclass(frozen=True)
class EpochEnd(Mark):
    """A mark behind the rows of an epoch's last channel."""

    number: int
    """Number that the next chunk would have had."""


class UnderWay:
    """The work that a chain's stages share at the moment: a channel, or chunks of a live run."""

    times: Sequence[EpochTime]
    """Time of the round or epoch, for each keyed step."""
    partition = 0
    live = False

    def __init__(self, on_error: OnError) -> None:
        self._on_error = on_error

    def begin(self, header: ChannelHeader) -> None:
        """Switch to this channel."""
        self.times, self.partition = [step.time for step in header.steps], header.partition
        self.closed = False
        """Whether a step has emitted its end-of-epoch rows."""
        self._begin(header.keep_late)

    def start(self, times: Sequence[EpochTime]) -> None:
        """Switch to chunks of a live run, at these times. Each chunk is a round of every step."""
        self.times, self.live = times, True
        self._begin(keep_late=True)

    def _begin(self, keep_late: bool) -> None:
        self.aside = Aside()
        self.work = StepWork(self._on_error, keep_late, self.aside)
        self.due: list[tuple[int, dict[str, int]]] = []
        """Due times of entries that rounds have touched: (number of the keyed step, column -> earliest)."""


class MapStage(HostStage):
    """A `map_batches` step."""

    def __init__(self, step: MapStep, channel: UnderWay) -> None:
        super().__init__(step.id)
        self._step, self._channel = step, channel

    def work(self, part: int, piece: Rows) -> Sequence[Rows]:
        batches = list(self._channel.work.mapped(self._step, piece.batches))
        return [Rows(piece.number, batches)] if batches else ()


class SendStage(HostStage):
    """The work that a courier does on rows before it sends them to the hosts of a step."""

    def __init__(self, step: KeyedStep, place: int, channel: UnderWay) -> None:
        super().__init__(f"{step.id} in")
        self._step, self._place, self._channel = step, place, channel

    def work(self, part: int, piece: Rows) -> Sequence[ChannelChunk]:
        step, channel, time = self._step, self._channel, self._channel.times[self._place]
        work = channel.work
        sent: list[Outgoing] = []
        rows = work.fit(step, 0, piece.batches)
        kind = work.send(step, step.plan.sender(time), [rows], sent.append)
        batches = [outgoing.batch for outgoing in sent if outgoing.batch.num_rows]
        if not batches:
            return ()
        records = sum(batch.num_rows for batch in batches)
        serials = (piece.number << _NUMBER_BITS) + np.arange(records)
        places = Places.of_records(channel.partition, serials)
        return [ChannelChunk(kind, batches, places, Round(0, time) if channel.live else None)]


class KeyedStage:
    """The keyed work of a step, and its end-of-epoch output."""

    def __init__(self, work: Stage, machine: HostMachine, place: int, channel: UnderWay) -> None:
        self._work, self._machine, self._place, self._channel = work, machine, place, channel
        self.name, self.kind, self.parts = work.name, work.kind, work.parts
        self.split, self.work, self.size = work.split, work.work, work.size

    def join(self, item: ChannelChunk | Parted, results: list[Any]) -> Sequence[Rows]:
        number = _number(item)
        outputs = self._work.join(item, results)
        answers = (out.answer if isinstance(out, Rounded) else out for out in outputs)
        return [rows for answer in answers for rows in self.rows(number, answer)]

    def mark(self, mark: Mark) -> Sequence[Rows]:
        if not isinstance(mark, EpochEnd):
            return ()
        self._channel.closed = True
        return self.rows(mark.number + self._place, self._machine.close_epoch())

    def rows(self, number: int, answer: Answer) -> list[Rows]:
        """Return an answer's rows for the next step; note its rejected rows and due times."""
        self._channel.aside.dead.extend(answer.dead)
        if answer.due:
            self._channel.due.append((self._place, answer.due))
        batches = in_order(answer.batches, answer.places)
        return [Rows(number, batches)] if batches else []


def _number(item: ChannelChunk | Parted) -> int:
    """Return the number of the chunk that this item was made from."""
    chunk = item.pieces[0][1] if isinstance(item, Parted) else item
    assert isinstance(chunk, ChannelChunk) and chunk.places is not None
    return int(chunk.places.minor[0]) >> _NUMBER_BITS


@dataclass(frozen=True)
class Chain:
    """The stages of all steps of a flow."""

    stages: list[Stage]
    keyed: list[KeyedStage]
    after: list[int]
    """Index of the stage that gets each keyed step's output."""

    def spent(self, before: Sequence[Meter], now: Sequence[Meter]) -> list[tuple[int, float]]:
        """Return each keyed step's records and busy seconds between two meter readings.

        A step's seconds include the stages before it.
        """
        spent, begin = [], 0
        for end in self.after:
            worked = sum(now[n].worked - before[n].worked for n in range(begin, end))
            records = now[end - 1].records_in - before[end - 1].records_in
            spent.append((records, worked))
            begin = end
        return spent


def chain_of(flow: FlowPlan, machines: Sequence[HostMachine], channel: UnderWay) -> Chain:
    """Build the stages of a flow's steps. `machines` are those of the keyed steps, in order."""
    chain = Chain([], [], [])
    for step in flow.steps:
        if isinstance(step, MapStep):
            chain.stages.append(MapStage(step, channel))
            continue
        place = len(chain.keyed)
        operator = machines[place].operator
        assert isinstance(operator, PartedOperator)
        *before, work = operator.stages()
        chain.keyed.append(KeyedStage(work, machines[place], place, channel))
        chain.stages.extend([SendStage(step, place, channel), *before, chain.keyed[-1]])
        chain.after.append(len(chain.stages))
    return chain
