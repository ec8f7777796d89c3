"""Messages of micro-batches: JSON headers around Arrow batches, and never a pickle."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import pyarrow as pa

from penstock.operators.operator import EpochTime
from penstock.plan.epoch import EpochPlan, StepRoutes


@dataclass(frozen=True)
class ChannelHeader:
    """The header of a channel: one task attempt's stream to one host in one epoch."""

    epoch: int
    run: int
    step: str
    partition: int
    """Number of the channel: the task's partition, or, for its second channel, that plus the number of tasks.

    A task has a second channel to each host where burst workers help.
    """
    attempt: int
    """Spark's task attempt id, unique for each attempt within an application."""
    partitions: int
    """Number of channels that each host gets in a run, from all tasks."""
    time: EpochTime
    chained: tuple[tuple[str, EpochTime], ...] = ()
    """Later steps, with their times, that the same host runs."""
    keep_late: bool = False
    """Whether a chain's answer has the late rows, or only their number."""
    alone: bool = False
    """Whether the task's second channel has no records, so that this one closes both.

    This and `rows` are known when the channel closes; see `Close`.
    """
    rows: int = 0
    """Number of rows of the task's whole input."""
    task: int = 0
    """Number of the task, the same in all its channels. When hosts let tasks wait, the lowest goes first."""

    def closed_by(self, close: Close) -> ChannelHeader:
        """Return the header with what is known when the channel closes."""
        return replace(self, alone=close.alone, rows=close.rows)

    @property
    def closes(self) -> tuple[int, ...]:
        """Numbers of the channels that close with this one. The first one gets the answer."""
        second = self.partition + self.partitions // 2
        return (self.partition, second) if self.alone else (self.partition,)

    @property
    def steps(self) -> list[ChannelHeader]:
        """One header for each step of the channel, in order."""
        first = (self.step, self.time)
        return [
            replace(self, step=step, time=time, chained=()) for step, time in (first, *self.chained)
        ]

    @property
    def where(self) -> dict[str, object]:
        """Facts about a channel for fault points."""
        names = ("step", "epoch", "run", "partition", "attempt")
        return {name: getattr(self, name) for name in names}

    @staticmethod
    def of(
        plan: EpochPlan, routes: StepRoutes, partition: int, attempt: int, channel: int = 0
    ) -> ChannelHeader:
        """Return the header of a task's first (0) or second (1) channel to each host of a step."""
        return ChannelHeader(
            plan.epoch,
            plan.run,
            routes.step,
            channel * plan.partitions + partition,
            attempt,
            plan.partitions * routes.channels,
            routes.time,
            task=partition,
        )

    @staticmethod
    def of_chain(plan: EpochPlan, partition: int, attempt: int, keep_late: bool) -> ChannelHeader:
        """Return the header of a task's only channel to the host that runs all steps."""
        chained = tuple((routes.step, routes.time) for routes in plan.steps[1:])
        first = ChannelHeader.of(plan, plan.steps[0], partition, attempt)
        return replace(first, chained=chained, keep_late=keep_late)


@dataclass(frozen=True)
class Close:
    """The end of a channel's input. A stream without it broke off, and its records are dropped."""

    kind: str
    """Kind of its batches, from `Sender.finish`."""
    records: int
    """Number of records that were sent, all of which must have arrived."""
    rows: int
    """Number of rows of the task's whole input, which must be the same in each attempt of the task."""
    alone: bool = False
    """Whether the task's second channel has no records; set in its first channel."""


@dataclass(frozen=True)
class CopyTicket:
    """A request to a previous host for entries of its frozen copies: by keys, by slot, or due entries."""

    kind: Literal["keys", "slot", "due"]
    version: int
    """Version of the copy; in a live run, the number of the reroute."""
    slots: tuple[int, ...] = ()
    limits: dict[str, int] = field(default_factory=dict)
    """Column -> greatest value that is due, for "due"."""
    keys: pa.Array | None = None
    """Keys in storage format, for "keys"."""
    run: int = -1
    """Number of the live run, in which the answer waits for the reroute; -1 in micro-batches."""
    at_leisure: bool = False
    """Whether no row waits for this slot, so that the rows of the previous host come first."""


UNKNOWN, AFTER, LACKING = b"unknown", b"after", b"lacking"
"""Names of an answer's metadata.

UNKNOWN has the indices of keys that the copy does not know. AFTER has the next due times, as JSON. LACKING
has, as JSON, the store version that has the rest, if the copy is not complete.
"""
