"""What goes through a host's runtime: chunks of a channel, and the opening and closing of an epoch; or, in a
live run, rounds.

Each of these is done to an operator, and gives an answer. In a step that is cut into parts, a chunk
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
"""Rows that are rather copied into one batch than sent in several."""
NOBODY = -1
"""In place of a courier, where a round is of no rows."""
_MOST_BYTES = 1 << 30
"""Arrow's arrays of texts hold twice as much."""


@dataclass(frozen=True)
class Round:
    """A round of a live run."""

    courier: int
    """The courier whose rows it is of, or NOBODY."""
    time: EpochTime


@dataclass(frozen=True)
class Rounded:
    """What a round gave."""

    round: Round
    answer: Answer
    rows = 0


def a_round(operator: Operator, time: EpochTime, work: Callable[[Operator], Answer]) -> Answer:
    """One whole round of an operator, or of a part of it, with some work in it."""
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
    """Some records of a channel, in the order in which they came: what `Operator.apply` takes.

    >>> word = pa.RecordBatch.from_pydict({"word": ["a", "b", "c"]})
    >>> [chunk.rows for chunk in ChannelChunk("rows", [word, word]).cut(4)]
    [4, 2]
    """

    kind: str
    batches: list[pa.RecordBatch]
    places: Places | None = None
    """The places of all records, where the step is ordered."""
    round: Round | None = None
    """In a live run: a chunk is a round of its own."""

    @property
    def rows(self) -> int:
        return sum(batch.num_rows for batch in self.batches)

    def on(self, operator: Operator) -> Answer:
        """Let an operator take it in."""
        if self.round is None:
            return self._applied(operator)
        return a_round(operator, self.round.time, self._applied)

    def _applied(self, operator: Operator) -> Answer:
        return operator.apply(self.kind, self.batches, self.places)

    def together(self) -> ChannelChunk:
        """The same records in one batch, unless they are too many for one."""
        if len(self.batches) < 2:
            return self
        if self.rows > _FEW and sum(batch.nbytes for batch in self.batches) > _MOST_BYTES:
            return self
        return replace(self, batches=[pa.concat_batches(self.batches)])

    def cut(self, rows: int) -> Iterator[ChannelChunk]:
        """The same records in chunks of at most this many rows, none of them empty; nothing is copied."""
        taken: list[pa.RecordBatch] = []
        begin = held = 0
        for batch in self.batches:
            at = 0
            while at < batch.num_rows:
                some = batch.slice(at, rows - held)
                taken.append(some)
                at, held = at + some.num_rows, held + some.num_rows
                if held == rows:
                    yield self.some(taken, begin, held)
                    begin, held, taken = begin + held, 0, []
        if held:
            yield self.some(taken, begin, held)

    def some(self, batches: list[pa.RecordBatch], begin: int, rows: int) -> ChannelChunk:
        """Some of the records: the `rows` records from `begin` on, in these batches."""
        places = None if self.places is None else self.places.slice(begin, rows)
        return replace(self, batches=batches, places=places)


@dataclass(frozen=True)
class ForAllParts:
    """What is done to a whole step: an epoch opens, or its input is complete."""

    do: Callable[[Operator], Answer]
    round: Round | None = None
    rows = 0

    def on(self, operator: Operator) -> Answer:
        return self.do(operator)


Work = ChannelChunk | ForAllParts
"""What can be done to an operator, or to each of its parts."""


@dataclass(frozen=True)
class Parted:
    """Work as it is cut: (part, what is to be done to it), each part at most once."""

    rows: int
    pieces: list[tuple[int, Work]]

    @property
    def round(self) -> Round | None:
        """The round that all pieces are of."""
        return self.pieces[0][1].round


class ChannelEnd(Mark):
    """Passes behind the chunks of a channel."""


def joined(answers: Iterable[Answer]) -> Answer:
    """All answers in one, in this order; rows that are few go into one batch, to cost less each."""
    whole = Answer.joined(answers)
    batches = whole.batches
    if len(batches) < 2 or sum(batch.num_rows for batch in batches) > _FEW:
        return whole
    places = [Places.joined(whole.places)] if whole.places else []
    return replace(whole, batches=[pa.concat_batches(batches)], places=places)
