"""The memory budget for a host's open channels, and which of them may be read when it is used up.

A channel is applied when it closes, and it closes when its task has sent all its rows to all hosts.
So a host that is over its budget cannot make every task wait: no channel would ever close. Instead it
reads only the channels of one task, the lowest one of the newest run. Flight's flow control stops the
others, like full pipes. All hosts choose the same task, and that task depends on no other. So one task
always makes progress, and no two tasks can wait for each other.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import FEWER_ROWS, MemoryLimitError, StaleRunError
from penstock.wire.messages import ChannelHeader


@dataclass(eq=False)
class Held:
    """An open channel, and the bytes that are staged for it."""

    header: ChannelHeader
    bytes: int = 0

    @property
    def run(self) -> tuple[int, int]:
        return self.header.epoch, self.header.run


class Staging:
    """The open channels of one host. Pure; calls must not overlap.

    >>> from dataclasses import replace
    >>> from penstock.operators.operator import EpochTime
    >>> header = ChannelHeader(0, 0, "sum", 0, 0, 2, EpochTime(0, 0))
    >>> staging = Staging(budget=100)
    >>> first, second = (staging.open(replace(header, partition=p, task=p)) for p in (0, 1))
    >>> staging.add(second, 90), staging.may_read(second), staging.add(first, 20)
    (True, True, True)
    >>> staging.may_read(first), staging.may_read(second)
    (True, False)
    >>> staging.close(first)
    >>> staging.may_read(second)
    True
    """

    def __init__(self, budget: int) -> None:
        """Set the budget in bytes. Beyond it only one task's channels are read; no channel may exceed it."""
        self._budget = budget
        self._open: set[Held] = set()
        self._total = 0
        self._run = (-1, -1)
        """Newest (epoch, run) of which a channel was opened."""
        self._closed: set[int] = set()
        """Partitions whose channel was applied in that run."""

    def open(self, header: ChannelHeader) -> Held:
        """Open a channel."""
        held = Held(header)
        if held.run > self._run:
            self._run, self._closed = held.run, set()
            for stale in self._open:
                # Its courier may be cut off and never close it. It must not keep others waiting.
                self._total -= stale.bytes
                stale.bytes = 0
        self._open.add(held)
        return held

    def add(self, held: Held, bytes: int) -> bool:
        """Add bytes that a channel has received, and return whether they must be kept.

        They need not be kept if another attempt of its task has closed the channel: its answer is known.
        """
        _must_be_newest(held, self._run)
        if self._is_closed(held):
            self._total -= held.bytes
            held.bytes = 0
            return False
        held.bytes += bytes
        self._total += bytes
        if held.bytes > self._budget:
            header = held.header
            raise MemoryLimitError(
                f"partition {header.partition} of epoch {header.epoch} sends a host of step "
                f"{header.step} more than the {self._budget / (1 << 20):,.1f} MB that it may stage",
                hint=f"{FEWER_ROWS}; or raise Settings.host_staged_mb if there is memory for more",
            )
        return True

    def may_read(self, held: Held) -> bool:
        """Tell whether more of a channel may be read now."""
        _must_be_newest(held, self._run)
        if self._total < self._budget or self._is_closed(held):
            return True
        waiting = (h for h in self._open if h.run == self._run and not self._is_closed(h))
        return held.header.task == min(h.header.task for h in waiting)

    def is_open(self, run: tuple[int, int], channel: int) -> bool:
        """Tell whether a channel of a run, given as (epoch, run), is open."""
        return any(held.run == run and held.header.partition == channel for held in self._open)

    def tasks(self) -> set[tuple[int, int, int]]:
        """Return (epoch, run, task) of each courier that has an open channel."""
        return {(*held.run, held.header.task) for held in self._open}

    def close(self, held: Held, applied: bool = True) -> None:
        """Close a channel that was applied or broke off, and free its bytes."""
        if applied and held.run == self._run:
            self._closed.update(held.header.closes)
        self._total -= held.bytes
        self._open.discard(held)

    def _is_closed(self, held: Held) -> bool:
        return held.run == self._run and held.header.partition in self._closed


def _must_be_newest(held: Held, newest: tuple[int, int]) -> None:
    if held.run < newest:
        raise StaleRunError(f"run {held.run[1]} of epoch {held.run[0]} was given up")
