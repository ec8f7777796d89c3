"""What the control machine is told: all that it ever learns, each with its time in milliseconds.

An epoch comes as four events: `EpochDue` before it, `EpochBegan` when it is planned, `EpochRead` when its
couriers have told what they read, `EpochSealed` when it is durable. An engine without epochs tells
`TimeSlotEnded` instead, for each step, and `KeysCounted` now and then. What was asked of the data plane is
answered by `TreatmentBegun` or `TreatmentRefused`. All are values that can be recorded, and handed to
another machine later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from penstock.control.elastic import Steering
from penstock.control.examine.arrivals import Arrivals
from penstock.control.examine.vitals import Floats, Work
from penstock.control.money import Money
from penstock.control.treat.decision import Treatment
from penstock.model import HostId, StepId
from penstock.wire.report import HotKeyCount, Seen

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class StepPlacement:
    """The hosts of a step, and which of them owns which slot."""

    hosts: tuple[HostId, ...]
    """All that slots can be given to, also those that own none."""
    owner: Ints
    """Per slot: which of the hosts."""
    pending: int = 0
    """Slots that are not where they should be, or not in service there."""
    coming: int = 0
    """Hosts that were asked for and are not among `hosts` yet."""

    def names(self) -> list[HostId]:
        """Per slot: the host that owns it."""
        return [self.hosts[n] for n in self.owner.tolist()]


@dataclass(frozen=True)
class Aid:
    """What is known of burst workers and money at one moment."""

    reachable: bool = False
    """Whether there are burst workers that couriers can reach."""
    money: Money | None = None
    """Spent so far; None if nobody counts it."""
    together: int | None = None
    """Couriers that are at work at a time; None if that is not known."""


@dataclass(frozen=True)
class EpochDue:
    """The next epoch could begin now."""

    now_ms: float


@dataclass(frozen=True)
class EpochBegan:
    """A run of an epoch is about to be planned, of rows in so many partitions."""

    now_ms: float
    epoch: int
    partitions: int = 1
    aid: Aid = field(default_factory=Aid)


@dataclass(frozen=True, eq=False)
class StepRead:
    """What an epoch brings for one step."""

    arrivals: Arrivals
    placement: StepPlacement
    records: Floats | None = None
    """Per host: what it has to do of it, where the data plane knows that. None: to be reckoned."""


@dataclass(frozen=True, eq=False)
class EpochRead:
    """All couriers of an epoch have told what they read."""

    now_ms: float
    epoch: int
    steps: Mapping[str, StepRead]
    look: bool = True
    """Whether hosts still work on it, so that there is something to be decided early."""
    aid: Aid = field(default_factory=Aid)


@dataclass(frozen=True, eq=False)
class StepSealed:
    """What the hosts of one step did in an epoch."""

    hosts: tuple[HostId, ...]
    owner: Ints
    """Who owned which slot in it."""
    work: Mapping[HostId, Work]
    """By host."""
    spent_ms: float
    """Time that the step took: of its slowest host, or waiting for burst workers."""
    placement: StepPlacement
    """Where slots are from now on."""


@dataclass(frozen=True, eq=False)
class EpochSealed:
    """An epoch is durable, and in the sink since `written_ms`."""

    now_ms: float
    epoch: int
    written_ms: float
    done_ms: float
    steps: Mapping[str, StepSealed]
    seen: tuple[Seen, ...]
    """What its couriers told, by partition."""
    partitions: int = 1
    overlapped: bool = False
    """Whether burst workers worked beside hosts, so that its length is not the sum of its parts."""
    elsewhere_ms: Mapping[str, float] = field(default_factory=dict)
    """Time that steps took which are not under control."""
    aid: Aid = field(default_factory=Aid)
    unread: int = 0
    """Rows that wait in the sources because an epoch takes no more of them, as far as that is known."""


@dataclass(frozen=True)
class HostLost:
    """A host died; its slots go to others."""

    now_ms: float
    epoch: int
    step: str
    host: HostId
    slots: tuple[int, ...]
    returns: bool
    """Whether it is started again."""


@dataclass(frozen=True)
class HostLeaves:
    """A host will be gone soon, since its executor is being decommissioned, and another takes its place."""

    now_ms: float
    epoch: int
    step: str
    host: HostId
    slots: tuple[int, ...]
    by: HostId


@dataclass(frozen=True)
class TreatmentBegun:
    """The data plane has taken up treatments; new hosts have their names by now."""

    now_ms: float
    epoch: int | None
    step: str
    treatments: tuple[Treatment, ...]
    started: tuple[HostId, ...] = ()
    """Hosts that were started for them."""


@dataclass(frozen=True)
class TreatmentRefused:
    """The data plane does not take up treatments."""

    now_ms: float
    epoch: int | None
    step: str
    why: str
    wanted: str


@dataclass(frozen=True, eq=False)
class SlotsMoved:
    """Slots changed hands right after a treatment began."""

    now_ms: float
    epoch: int | None
    step: str
    placement: StepPlacement


@dataclass(frozen=True, eq=False)
class TimeSlotEnded:
    """Time slot `m` of an engine without epochs has ended: counts of one step since the beginning."""

    now_ms: float
    m: int
    step: str
    arrived: Floats
    """By slot; negative where a count is missing."""
    completed: Floats
    hosts: tuple[HostId, ...]
    owner: Ints
    """Who owned which slot in it."""
    work: Mapping[HostId, Work] | None
    """By host; None: nothing was counted."""
    measured_ms: Floats
    """By slot: sum of the latencies of what completed in it."""
    placement: StepPlacement
    """Where slots are from now on."""
    waiting_ms: Mapping[HostId, float] = field(default_factory=dict)
    """By host: age of the oldest record that it has not completed, where that is known."""
    aid: Aid = field(default_factory=Aid)


@dataclass(frozen=True, eq=False)
class KeysCounted:
    """Couriers of an engine without epochs have told what became of the rows of a checkpoint: keys of slots
    that are watched, and what went to burst workers."""

    now_ms: float
    epoch: int
    hot: tuple[HotKeyCount, ...]
    loads: Mapping[str, Ints]
    """Step -> all its records of that time, by slot."""
    seen: tuple[Seen, ...] = ()
    """By courier."""
    aid: Aid = field(default_factory=Aid)

    @property
    def steps(self) -> Mapping[str, Ints]:
        """The steps that it is about."""
        return self.loads

    @property
    def partitions(self) -> int:
        """How many couriers there are."""
        return len(self.seen)


@dataclass(frozen=True)
class SharesMoved:
    """Steps have other shares of an end-to-end bound."""

    now_ms: float
    shares: Mapping[StepId, float]


@dataclass(frozen=True)
class Steered:
    """A user changed what holds."""

    now_ms: float
    steering: Steering


Event = (
    EpochDue
    | EpochBegan
    | EpochRead
    | EpochSealed
    | HostLost
    | HostLeaves
    | TreatmentBegun
    | TreatmentRefused
    | SlotsMoved
    | TimeSlotEnded
    | KeysCounted
    | SharesMoved
    | Steered
)
