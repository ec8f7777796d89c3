"""What goes over the wire: JSON headers around Arrow batches. Never a pickle."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa

from penstock import codec
from penstock.model import DeadLetter
from penstock.operators.operator import EpochTime
from penstock.plan.epoch import EpochPlan

CLOSE = b"close "
"""With the kind of the batches behind it, ends a channel's input. Without it the stream broke off, and
what it brought is dropped."""
ALONE = "alone "
"""Before the kind, in the first channel of a task whose second one would bring nothing."""


@dataclass(frozen=True)
class ChannelHeader:
    """Names one courier task attempt's conversation with one host about one epoch."""

    epoch: int
    run: int
    step: str
    partition: int
    """The task's partition. Where functions help, each task has a second channel to each host, numbered
    by this plus the number of tasks."""
    attempt: int
    """Spark's task attempt id: unique for each try of a task within an application."""
    partitions: int
    """How many channels of a run come to each host, from all tasks."""
    time: EpochTime
    alone: bool = False
    """Whether the task's second channel brings nothing, so that this one closes both. That is known
    when it closes; see `ALONE`."""

    @property
    def closes(self) -> tuple[int, ...]:
        """The channels that close when this one does; the first of them has what it brought."""
        second = self.partition + self.partitions // 2
        return (self.partition, second) if self.alone else (self.partition,)

    @property
    def where(self) -> dict[str, object]:
        """What fault points tell of a channel."""
        names = ("step", "epoch", "run", "partition", "attempt")
        return {name: getattr(self, name) for name in names}

    @staticmethod
    def of(
        plan: EpochPlan, step: int, partition: int, attempt: int, channel: int = 0
    ) -> ChannelHeader:
        """The header of the task's first channel to each host of a step, or of another one."""
        routes = plan.steps[step]
        return ChannelHeader(
            plan.epoch,
            plan.run,
            routes.step,
            channel * plan.partitions + partition,
            attempt,
            plan.partitions * routes.channels,
            routes.time,
        )


@dataclass(frozen=True)
class CopyTicket:
    """Asks a previous host for entries of its frozen copies: of some keys, of slots, or what is due."""

    kind: Literal["keys", "slot", "due"]
    version: int
    """The copy must be of this version."""
    slots: tuple[int, ...] = ()
    limits: dict[str, int] = field(default_factory=dict)
    """Column -> greatest value that is due, for "due"."""
    keys: pa.Array | None = None
    """The keys as they stand in a file, for "keys"."""


UNKNOWN, AFTER = b"unknown", b"after"
"""Metadata of an answer: places of keys that nothing is known of; what falls due next, as JSON."""


def dead_to_bytes(dead: list[DeadLetter]) -> bytes:
    return codec.encode(dead)


def dead_from_bytes(data: bytes) -> list[DeadLetter]:
    return codec.decode(data, list[DeadLetter])
