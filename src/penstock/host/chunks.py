"""Units of work in a host's runtime: chunks of a channel, the opening and closing of an epoch, live rounds.

Each of these is applied to an operator and returns an answer. In a step that is cut into parts, a chunk
becomes pieces, one for each part that has rows in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from penstock.operators.operator import Answer, EpochTime, Operator
from penstock.operators.places import Places
from penstock.runtime.operators import Mark

_FEW = 1 << 16
"""Rows up to which several batches are copied into one."""
NOBODY = -1
"""Courier number of a round without rows."""
_MOST_BYTES = 1 << 30
"""Bytes up to which larger chunks are copied into one batch. Arrow's string arrays hold twice as much."""


@dataclass(frozen=True)
class Round:
    """A round of a live run."""

    courier: int
    """Number of the courier that sent the rows, or NOBODY."""
    time: EpochTime


@dataclass(frozen=True)
class Rounded:
    """The result of a round."""

    round: Round
    answer: Answer
    rows = 0


def a_round(operator: Operator, time: EpochTime, work: Callable[[Operator], Answer]) -> Answer:
    """Run one whole round of an operator, or of one of its parts, with this work in it."""
    table = operator.table
    operator.begin(time)
    answers = [work(operator), operator.close()]
    due = {}
    for name in operator.due_columns:
        least = table.least(name, 0, table.touched())
        if least is not None:
            due[name] = least
    table.step()
    return joined([*answers, Answer(due=due)])


@dataclass(frozen=True)
class ChannelChunk:
    """Some records of a channel, in their order: the input of `Operator.apply`.

    >>> word = pa.RecordBatch.from_pydict({"word": ["a", "b", "c"]})
    >>> [chunk.rows for chunk in ChannelChunk("rows", [word, word]).cut(4)]
    [4, 2]
    """

    kind: str
    batches: list[pa.RecordBatch]
    places: Places | None = None
    """Places of all records; None unless the step is ordered."""
    round: Round | None = None
    """Round of this chunk in a live run; None in micro-batches."""

    @property
    def rows(self) -> int:
        return sum(batch.num_rows for batch in self.batches)

    def on(self, operator: Operator) -> Answer:
        """Apply the chunk to an operator and return the answer."""
        if self.round is None:
            return self._applied(operator)
        return a_round(operator, self.round.time, self._applied)

    def _applied(self, operator: Operator) -> Answer:
        return operator.apply(self.kind, self.batches, self.places)

    def together(self) -> ChannelChunk:
        """Return the same records in one batch, unless they are too many for one."""
        if len(self.batches) < 2:
            return self
        if self.rows > _FEW and sum(batch.nbytes for batch in self.batches) > _MOST_BYTES:
            return self
        return replace(self, batches=[pa.concat_batches(self.batches)])

    def cut(self, rows: int) -> Iterator[ChannelChunk]:
        """Cut the records into chunks of at most this many rows, without empty chunks and without copying."""
        taken: list[pa.RecordBatch] = []
        begin = held = 0
        for batch in self.batches:
            at = 0
            while at < batch.num_rows:
                section = batch.slice(at, rows - held)
                taken.append(section)
                at, held = at + section.num_rows, held + section.num_rows
                if held == rows:
                    yield self.section(taken, begin, held)
                    begin, held, taken = begin + held, 0, []
        if held:
            yield self.section(taken, begin, held)

    def section(self, batches: list[pa.RecordBatch], begin: int, rows: int) -> ChannelChunk:
        """Return a chunk of the `rows` records from `begin` on, which are in these batches."""
        places = None if self.places is None else self.places.slice(begin, rows)
        return replace(self, batches=batches, places=places)


@dataclass(frozen=True)
class ForAllParts:
    """Work on a whole step rather than on rows: opening an epoch, firing timers, or closing the epoch."""

    do: Callable[[Operator], Answer]
    round: Round | None = None
    rows = 0

    def on(self, operator: Operator) -> Answer:
        return self.do(operator)


Work = ChannelChunk | ForAllParts
"""Work that can be applied to an operator, or to each of its parts."""


@dataclass(frozen=True)
class Parted:
    """Work cut by part: (part, its work), each part at most once."""

    rows: int
    pieces: list[tuple[int, Work]]

    @property
    def round(self) -> Round | None:
        """The round that all pieces belong to; None in micro-batches."""
        return self.pieces[0][1].round


class ChannelEnd(Mark):
    """A mark behind the last chunk of a channel."""


def joined(answers: Iterable[Answer]) -> Answer:
    """Join answers into one, in this order. Few rows are copied into one batch, which costs less later."""
    whole = Answer.joined(answers)
    batches = whole.batches
    if len(batches) < 2 or sum(batch.num_rows for batch in batches) > _FEW:
        return whole
    places = [Places.joined(whole.places)] if whole.places else []
    return replace(whole, batches=[pa.concat_batches(batches)], places=places)
