"""What goes over the wire to a host that runs a whole chain of steps: one channel for all of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock import codec
from penstock.model import DeadLetter
from penstock.plan.epoch import EpochPlan
from penstock.wire.messages import ChannelHeader


@dataclass(frozen=True)
class ChainHeader:
    """Names one courier task attempt's conversation with the host of all steps."""

    steps: tuple[ChannelHeader, ...]
    """As each keyed step would get it, in order."""
    keep_late: bool
    """Whether somebody wants to have the rows that came too late."""

    def to_bytes(self) -> bytes:
        return codec.encode(self)

    @staticmethod
    def from_bytes(data: bytes) -> ChainHeader | None:
        """The header, or None if it is one of a single step."""
        return codec.decode(data, ChainHeader) if b'"steps":' in data else None

    @staticmethod
    def of(plan: EpochPlan, partition: int, attempt: int, keep_late: bool) -> ChainHeader:
        steps = (ChannelHeader.of(plan, n, partition, attempt) for n in range(len(plan.steps)))
        return ChainHeader(tuple(steps), keep_late)


@dataclass(frozen=True)
class Aside:
    """What a channel gives beside its rows: what was set aside, and what came too late.

    >>> Aside.from_bytes(Aside(counts={"window-1": 2}).to_bytes()).counts
    {'window-1': 2}
    """

    dead: list[DeadLetter] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    """step -> how many rows were too late."""
    late: list[list[object]] = field(default_factory=list)
    """[step, input, rows], as the driver is told of them."""

    def to_bytes(self) -> bytes:
        return codec.encode(self)

    @staticmethod
    def from_bytes(data: bytes) -> Aside:
        return codec.decode(data, Aside)
