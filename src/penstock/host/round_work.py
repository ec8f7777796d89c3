"""How the rounds of a live run are done: one after the other, or overlapped on all cores.

A round is one chunk of rows that a step takes in, or what time makes due in it: `begin`, the work itself,
`close`, and the table's `step`. `Rounds` decides which rounds there are, and in which order; whoever does
them may overlap them where that makes no difference. `drain` gives their answers, in that order.
"""

from __future__ import annotations

from functools import partial
from typing import Protocol

from penstock.host.chunks import NOBODY, ChannelChunk, ForAllParts, Round, Rounded, a_round
from penstock.host.parted import PartedOperator
from penstock.operators.operator import Answer, EpochTime, Operator


class RoundWork(Protocol):
    """What does rounds. Used by one thread."""

    apart: bool
    """Whether each courier's rows must be in rounds of their own."""
    answers_back: bool
    """Whether what a courier's rows cause goes to that courier, without saying so by places."""
    overlaps: bool
    """Whether it works on chunks while others are submitted."""

    @property
    def due_columns(self) -> tuple[str, ...]:
        """The columns that `due` may name."""
        ...

    def due(self, time: EpochTime) -> dict[str, int]:
        """Column -> the greatest value that is due at a time."""
        ...

    def least(self, name: str, above: int) -> int | None:
        """The least value of a column of due times above a limit; None: there is none."""
        ...

    def fire(self, time: EpochTime) -> Answer:
        """Give what is due at this time, while nothing is under way."""
        ...

    def submit(self, chunk: ChannelChunk) -> None:
        """Begin a round of rows, which says so."""
        ...

    def drain(self) -> list[Rounded]:
        """Wait until all rounds are over; gives their answers."""
        ...

    def abandon(self) -> None:
        """Drop all rounds that are not over: something has gone wrong, and state must be rolled back."""
        ...

    def spent(self) -> list[tuple[int, float]] | None:
        """Records and seconds of each step of a chain since this was last asked; None: there is one step."""
        ...


class SerialWork:
    """One round after the other, in the thread that calls."""

    overlaps = answers_back = False

    def __init__(self, operator: Operator) -> None:
        self.operator = operator
        self.apart = operator.ordered
        self._rounded: list[Rounded] = []

    @property
    def due_columns(self) -> tuple[str, ...]:
        return self.operator.due_columns

    def due(self, time: EpochTime) -> dict[str, int]:
        return self.operator.due(time)

    def least(self, name: str, above: int) -> int | None:
        return self.operator.table.least(name, above)

    def fire(self, time: EpochTime) -> Answer:
        return a_round(self.operator, time, _fired)

    def submit(self, chunk: ChannelChunk) -> None:
        assert chunk.round is not None
        self._rounded.append(Rounded(chunk.round, chunk.on(self.operator)))

    def drain(self) -> list[Rounded]:
        rounded, self._rounded = self._rounded, []
        return rounded

    def abandon(self) -> None:
        self._rounded = []

    def spent(self) -> None:
        return None


class PartedWork(SerialWork):
    """A step in parts: each part does the rounds of its rows one after the other, and parts do not wait for
    one another. So chunks of all couriers overlap."""

    operator: PartedOperator
    overlaps = True

    def fire(self, time: EpochTime) -> Answer:
        fires = partial(a_round, time=time, work=_fired)
        self.operator.submit(ForAllParts(fires, Round(NOBODY, time)))
        (rounded,) = self.operator.drain()
        return rounded.answer

    def submit(self, chunk: ChannelChunk) -> None:
        self.operator.submit(chunk)

    def drain(self) -> list[Rounded]:
        return self.operator.drain()

    def abandon(self) -> None:
        self.operator.abandon()


def _fired(operator: Operator) -> Answer:
    return operator.fire()


def work_of(operator: Operator) -> RoundWork:
    """What does the rounds of a step on this host."""
    if isinstance(operator, PartedOperator) and operator.workers > 1:
        return PartedWork(operator)
    return SerialWork(operator)
