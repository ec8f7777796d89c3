"""What a chain of steps is made of: the work that couriers do elsewhere, chunk by chunk, and the
keyed steps themselves, with what they give when an epoch ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.exchange.aside import Aside
from penstock.exchange.step_work import StepWork
from penstock.host.chunks import ChannelChunk, Parted
from penstock.host.machine import HostMachine
from penstock.host.part_stages import HostStage
from penstock.operators.operator import Answer, OnError, Outgoing
from penstock.operators.places import Places, in_order
from penstock.plan.steps import KeyedStep, MapStep
from penstock.runtime.operators import ChainOperator as Stage
from penstock.runtime.operators import Mark
from penstock.wire.messages import ChannelHeader

_NUMBER_BITS = 32
"""Low bits of a record's serial number: its own number in its chunk. The chunk's is above them."""


@dataclass(frozen=True)
class Rows:
    """A chunk of rows between two steps."""

    number: int
    """Its place in the channel's order, from end to end: what a step makes of a chunk keeps it."""
    batches: list[pa.RecordBatch]

    @property
    def rows(self) -> int:
        return sum(batch.num_rows for batch in self.batches)


@dataclass(frozen=True)
class EpochEnd(Mark):
    """Passes behind the rows of an epoch's last channel."""

    number: int
    """The number of the chunk that would have come next."""


class UnderWay:
    """The channel that a chain works on, as all its stages know it."""

    steps: list[ChannelHeader]
    """One for each keyed step."""

    def __init__(self, on_error: OnError) -> None:
        self._on_error = on_error

    def begin(self, header: ChannelHeader) -> None:
        """From now on it is this channel."""
        self.steps, self.aside = header.steps, Aside()
        self.work = StepWork(self._on_error, header.keep_late, self.aside)
        self.closed = False
        """Whether a step has closed the epoch."""


class MapStage(HostStage):
    """A `map_batches` step."""

    def __init__(self, step: MapStep, channel: UnderWay) -> None:
        super().__init__(step.id)
        self._step, self._channel = step, channel

    def work(self, part: int, piece: Rows) -> Sequence[Rows]:
        batches = list(self._channel.work.mapped(self._step, piece.batches))
        return [Rows(piece.number, batches)] if batches else ()


class SendStage(HostStage):
    """What a courier does with rows before they go to the hosts of a step."""

    def __init__(self, step: KeyedStep, place: int, channel: UnderWay) -> None:
        super().__init__(f"{step.id} in")
        self._step, self._place, self._channel = step, place, channel

    def work(self, part: int, piece: Rows) -> Sequence[ChannelChunk]:
        step, work, header = self._step, self._channel.work, self._channel.steps[self._place]
        sent: list[Outgoing] = []
        rows = work.fit(step, 0, piece.batches)
        kind = work.send(step, step.plan.sender(header.time), [rows], sent.append)
        batches = [outgoing.batch for outgoing in sent if outgoing.batch.num_rows]
        if not batches:
            return ()
        records = sum(batch.num_rows for batch in batches)
        serials = (piece.number << _NUMBER_BITS) + np.arange(records)
        return [ChannelChunk(kind, batches, Places.of_records(header.partition, serials))]


class KeyedStage:
    """The keyed work of a step, and what the step gives when an epoch ends."""

    def __init__(self, work: Stage, machine: HostMachine, place: int, channel: UnderWay) -> None:
        self._work, self._machine, self._place, self._channel = work, machine, place, channel
        self.name, self.kind, self.parts = work.name, work.kind, work.parts
        self.split, self.work, self.size = work.split, work.work, work.size

    def join(self, item: ChannelChunk | Parted, results: list[Any]) -> Sequence[Rows]:
        number = _number(item)
        given = self._work.join(item, results)
        return [rows for answer in given for rows in self.rows(number, answer)]

    def mark(self, mark: Mark) -> Sequence[Rows]:
        if not isinstance(mark, EpochEnd):
            return ()
        self._channel.closed = True
        return self.rows(mark.number + self._place, self._machine.close_epoch())

    def rows(self, number: int, answer: Answer) -> list[Rows]:
        """What an answer brings to the next step."""
        self._channel.aside.dead.extend(answer.dead)
        batches = in_order(answer.batches, answer.places)
        return [Rows(number, batches)] if batches else []


def _number(item: ChannelChunk | Parted) -> int:
    """The number of the chunk that became this."""
    chunk = item.pieces[0][1] if isinstance(item, Parted) else item
    assert isinstance(chunk, ChannelChunk) and chunk.places is not None
    return int(chunk.places.minor[0]) >> _NUMBER_BITS
