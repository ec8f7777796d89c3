"""What goes over the wire: JSON headers around Arrow batches. Never a pickle."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import pyarrow as pa

from penstock.operators.operator import EpochTime
from penstock.plan.epoch import EpochPlan, StepRoutes


@dataclass(frozen=True)
class ChannelHeader:
    """Names one courier task attempt's conversation with one host about one epoch."""

    epoch: int
    run: int
    step: str
    partition: int
    """The task's partition. Where burst workers help, each task has a second channel to each host, numbered
    by this plus the number of tasks."""
    attempt: int
    """Spark's task attempt id: unique for each try of a task within an application."""
    partitions: int
    """How many channels of a run come to each host, from all tasks."""
    time: EpochTime
    chained: tuple[tuple[str, EpochTime], ...] = ()
    """Steps, with their times, that follow in the same host, which takes the rows through all of them."""
    keep_late: bool = False
    """Whether a chain's answer has the rows that came too late for its steps, or only their number."""
    alone: bool = False
    """Whether the task's second channel brings nothing, so that this one closes both. Known when it
    closes, as is `rows`; see `Close`."""
    rows: int = 0
    """Rows of the task's whole input."""
    task: int = 0
    """The task's number, in all its channels: of those that a host lets wait, the lowest comes first."""

    def closed_by(self, close: Close) -> ChannelHeader:
        """The same channel, with what is known when it closes."""
        return replace(self, alone=close.alone, rows=close.rows)

    @property
    def closes(self) -> tuple[int, ...]:
        """The channels that close when this one does; the first of them has what it brought."""
        second = self.partition + self.partitions // 2
        return (self.partition, second) if self.alone else (self.partition,)

    @property
    def steps(self) -> list[ChannelHeader]:
        """One header for each step that the channel is for, in their order."""
        first = (self.step, self.time)
        return [
            replace(self, step=step, time=time, chained=()) for step, time in (first, *self.chained)
        ]

    @property
    def where(self) -> dict[str, object]:
        """What fault points tell of a channel."""
        names = ("step", "epoch", "run", "partition", "attempt")
        return {name: getattr(self, name) for name in names}

    @staticmethod
    def of(
        plan: EpochPlan, routes: StepRoutes, partition: int, attempt: int, channel: int = 0
    ) -> ChannelHeader:
        """The header of a task's first channel to each host of a step, or of another one."""
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
        """The header of a task's only channel to the host that runs all steps."""
        chained = tuple((routes.step, routes.time) for routes in plan.steps[1:])
        first = ChannelHeader.of(plan, plan.steps[0], partition, attempt)
        return replace(first, chained=chained, keep_late=keep_late)


@dataclass(frozen=True)
class Close:
    """Ends a channel's input. Without it the stream broke off, and what it brought is dropped."""

    kind: str
    """What its batches are, as `Sender.finish` says."""
    records: int
    """Records in the channel: as many must have come."""
    rows: int
    """Rows of the task's whole input: as many in each try of the task, or it is not the same input."""
    alone: bool = False
    """In the first channel of a task: its second one would bring nothing."""


@dataclass(frozen=True)
class CopyTicket:
    """Asks a previous host for entries of its frozen copies: of some keys, of slots, or what is due."""

    kind: Literal["keys", "slot", "due"]
    version: int
    """The copy must be of this version; in a live run, of the reroute with this number."""
    slots: tuple[int, ...] = ()
    limits: dict[str, int] = field(default_factory=dict)
    """Column -> greatest value that is due, for "due"."""
    keys: pa.Array | None = None
    """The keys as they stand in a file, for "keys"."""
    run: int = -1
    """The live run; -1: none. In one that is under way, the answer waits for the reroute."""


UNKNOWN, AFTER, LACKING = b"unknown", b"after", b"lacking"
"""Metadata of an answer: places of keys that nothing is known of; what falls due next; and, if the copy
is not complete, the version that the store must have to be asked for the rest. The latter two as JSON."""
