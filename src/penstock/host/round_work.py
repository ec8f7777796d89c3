"""Executors for the rounds of a live run: one round after the other, or overlapped on all cores.

A round applies one chunk of rows to a step, or fires its due entries: `begin`, the work itself, `close`,
and the table's `step`. `Rounds` decides which rounds there are, and in which order. An executor may overlap
them where that makes no difference. `drain` returns their answers, in that order.
"""

from __future__ import annotations

from functools import partial
from typing import Protocol

from penstock.host.chunks import NOBODY, ChannelChunk, ForAllParts, Round, Rounded, a_round
from penstock.host.parted import PartedOperator
from penstock.operators.operator import Answer, EpochTime, Operator


class RoundWork(Protocol):
    """An executor of rounds. Used by one thread."""

    apart: bool
    """Whether rows of different couriers must be in different rounds."""
    answers_back: bool
    """Whether the output of a courier's rows goes back to that courier, without places that say so."""
    overlaps: bool
    """Whether chunks are worked on while others are submitted."""

    @property
    def due_columns(self) -> tuple[str, ...]:
        """Names of the columns that `due` may return."""
        ...

    def due(self, time: EpochTime) -> dict[str, int]:
        """Return, for each column of due times, the greatest value that is due at a time."""
        ...

    def least(self, name: str, above: int) -> int | None:
        """Return the least value above a limit in a column of due times; None if there is none."""
        ...

    def fire(self, time: EpochTime) -> Answer:
        """Fire the entries that are due at this time. Called only while no round is running."""
        ...

    def submit(self, chunk: ChannelChunk) -> None:
        """Begin the round of a chunk, whose `round` is set."""
        ...

    def drain(self) -> list[Rounded]:
        """Wait until all rounds are finished, and return their answers."""
        ...

    def abandon(self) -> None:
        """Drop all rounds that are not finished, after an error. State must then be rolled back."""
        ...

    def spent(self) -> list[tuple[int, float]] | None:
        """Return records and busy seconds of each step of a chain since the last call; None for one step."""
        ...


class SerialWork:
    """Runs one round after the other, in the calling thread."""

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
    """Runs the rounds of a step in parts, so that chunks of all couriers overlap.

    Each part does its own rounds one after the other. Parts do not wait for one another.
    """

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
    """Return the executor for a step's rounds: overlapped if it has parts and several workers."""
    if isinstance(operator, PartedOperator) and operator.workers > 1:
        return PartedWork(operator)
    return SerialWork(operator)
