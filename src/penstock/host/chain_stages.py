"""What a chain of steps is made of: the work that couriers do elsewhere, chunk by chunk, and the
keyed steps themselves, with what they give when an epoch ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.courier.trouble import Trouble
from penstock.host.chunks import Chunk, Parted
from penstock.host.machine import HostMachine
from penstock.model import DeadLetter
from penstock.operators.operator import Answer, EpochTime, OnError, Outgoing
from penstock.operators.places import Places, in_order
from penstock.plan.steps import KeyedStep, MapStep
from penstock.runtime.operators import ChainOperator as Stage
from penstock.runtime.operators import Kind, Mark

_NUMBER_BITS = 32
"""Of a record's serial number, those for its own number in its chunk; the chunk's is above them."""


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
    """Of the chunk that would have come next."""


@dataclass
class Beside:
    """What does not go on, of one channel. Workers only append."""

    dead: list[DeadLetter] = field(default_factory=list)
    late: list[tuple[KeyedStep, list[tuple[int, pa.RecordBatch]]]] = field(default_factory=list)


class _Stateless:
    """A stage whose chunks are independent of each other."""

    kind: Kind = "stateless"
    parts = 1

    def __init__(self, name: str) -> None:
        self.name = name
        self.beside = Beside()
        """Of the channel under way."""

    def split(self, item: Any) -> Sequence[tuple[int, Any]]:
        return [(0, item)]

    def join(self, item: Any, results: list[Any]) -> Sequence[Any]:
        [given] = results
        return [] if given is None else [given]

    def mark(self, mark: Mark) -> Sequence[Any]:
        return ()

    def size(self, item: Rows) -> int:
        return item.rows


class MapStage(_Stateless):
    """A `map_batches` step."""

    def __init__(self, step: MapStep, on_error: OnError) -> None:
        super().__init__(step.id)
        self._step, self._on_error = step, on_error

    def work(self, part: int, piece: Rows) -> Rows | None:
        trouble = Trouble(self._on_error)
        batches = list(trouble.mapped(self._step, piece.batches))
        self.beside.dead.extend(trouble.letters)
        return Rows(piece.number, batches) if batches else None


class SendStage(_Stateless):
    """What a courier does with rows before they go to the hosts of a step."""

    def __init__(self, step: KeyedStep, on_error: OnError) -> None:
        super().__init__(f"{step.id} in")
        self._step, self._on_error = step, on_error
        self.time = EpochTime(-1, 0)
        self.partition = 0

    def work(self, part: int, piece: Rows) -> Chunk | None:
        trouble = Trouble(self._on_error)
        sender = self._step.plan.sender(self.time)
        sent: list[Outgoing] = []
        for batch in piece.batches:
            sent += sender.add(0, trouble.without_unfit(self._step, 0, batch))
        kind, rest = sender.finish()
        sent += rest
        self.beside.dead.extend(trouble.letters)
        if sender.late:
            self.beside.late.append((self._step, sender.late))
        batches = [outgoing.batch for outgoing in sent if outgoing.batch.num_rows]
        if not batches:
            return None
        records = sum(batch.num_rows for batch in batches)
        serials = (piece.number << _NUMBER_BITS) + np.arange(records)
        return Chunk(kind, batches, Places.of_records(self.partition, serials))


class KeyedStage:
    """The keyed work of a step, and what the step gives when an epoch ends."""

    def __init__(self, place: int, work: Stage, machine: HostMachine) -> None:
        self._place, self._work, self._machine = place, work, machine
        self.name, self.kind, self.parts = work.name, work.kind, work.parts
        self.split, self.work, self.size = work.split, work.work, work.size
        self.beside = Beside()
        self.closed = False
        """Whether the channel under way has closed the epoch."""

    def join(self, item: Chunk | Parted, results: list[Any]) -> Sequence[Rows]:
        number = _number(item)
        given = self._work.join(item, results)
        return [rows for answer in given for rows in self.rows(number, answer)]

    def mark(self, mark: Mark) -> Sequence[Rows]:
        if not isinstance(mark, EpochEnd):
            return ()
        self.closed = True
        return self.rows(mark.number + self._place, self._machine.close_epoch())

    def rows(self, number: int, answer: Answer) -> list[Rows]:
        """What an answer brings to the next step."""
        self.beside.dead.extend(answer.dead)
        batches = in_order(answer.batches, answer.places)
        return [Rows(number, batches)] if batches else []


def _number(item: Chunk | Parted) -> int:
    """The number of the chunk that became this."""
    chunk = item.pieces[0][1] if isinstance(item, Parted) else item
    assert isinstance(chunk, Chunk) and chunk.places is not None
    return int(chunk.places.minor[0]) >> _NUMBER_BITS
