"""Events: the only input of the control machine. Each carries its time in milliseconds.

An epoch causes four events: `EpochDue` before it, `EpochBegan` when it is planned, `EpochRead` when its
couriers have reported the rows they read, and `EpochSealed` when it is durable. An engine without epochs
sends `TimeSlotEnded` for each step instead, and `KeysCounted` with each checkpoint. The data plane answers
a `Treat` instruction with `TreatmentBegun` or `TreatmentRefused`. All events are plain values, so a run can
be recorded and replayed on another machine.
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
from penstock.state.keys.slot_map import SlotMap, Split
from penstock.wire.report import HotKeyCount, Seen

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class StepPlacement:
    """The hosts of a step, and which of them owns which slot."""

    hosts: tuple[HostId, ...]
    """All hosts that can own slots, including those that own none."""
    owner: Ints
    """Index into `hosts` of each slot's owner."""
    pending: int = 0
    """Number of slots that have not arrived at their new host, or are not in service there yet."""
    coming: int = 0
    """Number of requested hosts that are not in `hosts` yet."""
    splits: tuple[Split, ...] = ()
    """Slots that were split. Their extra slots are the last ones in `owner`."""

    @property
    def slots(self) -> SlotMap:
        """The slots of the step, by hash."""
        return SlotMap(len(self.owner) - len(self.splits), self.splits)

    def names(self) -> list[HostId]:
        """The owner of each slot, by name."""
        return [self.hosts[n] for n in self.owner.tolist()]


@dataclass(frozen=True)
class Aid:
    """The state of burst workers and costs at one moment."""

    reachable: bool = False
    """Whether couriers can reach burst workers."""
    money: Money | None = None
    """Costs of the run so far; None if they are not tracked."""
    together: int | None = None
    """Number of couriers that work at the same time; None if unknown."""


@dataclass(frozen=True)
class EpochDue:
    """The next epoch could begin now."""

    now_ms: float


@dataclass(frozen=True)
class EpochBegan:
    """A run of an epoch, over rows of `partitions` partitions, is about to be planned."""

    now_ms: float
    epoch: int
    partitions: int = 1
    aid: Aid = field(default_factory=Aid)


@dataclass(frozen=True, eq=False)
class StepRead:
    """The arrivals of an epoch for one step."""

    arrivals: Arrivals
    placement: StepPlacement
    records: Floats | None = None
    """Records of the epoch for each host, if the data plane knows them. None: computed from `arrivals`."""


@dataclass(frozen=True, eq=False)
class EpochRead:
    """All couriers of an epoch have reported the rows they read."""

    now_ms: float
    epoch: int
    steps: Mapping[str, StepRead]
    look: bool = True
    """Whether hosts still work on the epoch, so that an early decision can help."""
    aid: Aid = field(default_factory=Aid)


@dataclass(frozen=True, eq=False)
class StepSealed:
    """The work of one step's hosts in an epoch."""

    hosts: tuple[HostId, ...]
    owner: Ints
    """Index into `hosts` of each slot's owner in the epoch."""
    work: Mapping[HostId, Work]
    """Work done by each host."""
    spent_ms: float
    """Milliseconds that the step took: the time of its slowest host, or the wait for burst workers."""
    placement: StepPlacement
    """Owners of the slots from now on."""
    applied_ms: Floats | None = None
    """Sum over records, by slot, of the milliseconds from the epoch's start until hosts had applied them.
    None if hosts have not measured it."""
    helped_rows: int = 0
    """Records that other hosts applied for their owners, in the middle of the epoch. `work` does not have
    them."""
    workers: Mapping[HostId, int] = field(default_factory=dict)
    """Number of worker threads of each host at the end of the epoch."""
    late: Floats | None = None
    """Records, by slot, that took longer from arrival until applied than the bound on the step's 99th
    percentile. None if it has no such bound, or if that was not measured."""


@dataclass(frozen=True, eq=False)
class EpochSealed:
    """An epoch is durable. Its output reached the sink at `written_ms`."""

    now_ms: float
    epoch: int
    written_ms: float
    done_ms: float
    steps: Mapping[str, StepSealed]
    seen: tuple[Seen, ...]
    """Reports of the couriers, by partition."""
    partitions: int = 1
    overlapped: bool = False
    """Whether burst workers ran in parallel with hosts. If so, the epoch is shorter than its parts' sum."""
    elsewhere_ms: Mapping[str, float] = field(default_factory=dict)
    """Milliseconds spent in each step that is not under control."""
    aid: Aid = field(default_factory=Aid)
    unread: int = 0
    """Backlog in the sources beyond the size limit of the epoch, in rows, as far as it is known."""
    tail: float | None = None
    """The 99th percentile of its rows' latencies, as a multiple of their average; None if it had no rows."""


@dataclass(frozen=True)
class HostLost:
    """A host died. Its slots go to other hosts."""

    now_ms: float
    epoch: int
    step: str
    host: HostId
    slots: tuple[int, ...]
    returns: bool
    """Whether the host is restarted."""


@dataclass(frozen=True)
class HostLeaves:
    """A host will end soon because its executor is being decommissioned. Host `by` takes its place."""

    now_ms: float
    epoch: int
    step: str
    host: HostId
    slots: tuple[int, ...]
    by: HostId


@dataclass(frozen=True)
class TreatmentBegun:
    """The data plane has begun treatments. New hosts have their final names."""

    now_ms: float
    epoch: int | None
    step: str
    treatments: tuple[Treatment, ...]
    started: tuple[HostId, ...] = ()
    """Hosts that were started for the treatments."""


@dataclass(frozen=True)
class TreatmentRefused:
    """The data plane has refused treatments."""

    now_ms: float
    epoch: int | None
    step: str
    why: str
    wanted: str


@dataclass(frozen=True, eq=False)
class SlotsMoved:
    """Slots moved to other hosts right after a treatment began."""

    now_ms: float
    epoch: int | None
    step: str
    placement: StepPlacement


@dataclass(frozen=True, eq=False)
class TimeSlotEnded:
    """Time slot `m` of an engine without epochs has ended. Counts are those of one step since its start."""

    now_ms: float
    m: int
    step: str
    arrived: Floats
    """Records that arrived, by slot; negative where the count is missing."""
    completed: Floats
    """Records that were completed, by slot; negative where the count is missing."""
    hosts: tuple[HostId, ...]
    owner: Ints
    """Index into `hosts` of each slot's owner in the time slot."""
    work: Mapping[HostId, Work] | None
    """Work done by each host; None if nothing was counted."""
    measured_ms: Floats
    """Sum of the latencies of records completed in the time slot, in milliseconds, by slot."""
    placement: StepPlacement
    """Owners of the slots from now on."""
    waiting_ms: Mapping[HostId, float] = field(default_factory=dict)
    """Age of each host's oldest unfinished record in milliseconds, where known."""
    aid: Aid = field(default_factory=Aid)


@dataclass(frozen=True, eq=False)
class KeysCounted:
    """Couriers of an engine without epochs have reported on the rows of a checkpoint.

    They report the keys of watched slots, and the rows that went to burst workers.
    """

    now_ms: float
    epoch: int
    hot: tuple[HotKeyCount, ...]
    loads: Mapping[str, Ints]
    """Records of each step since the checkpoint before, by slot."""
    seen: tuple[Seen, ...] = ()
    """Reports of the couriers."""
    aid: Aid = field(default_factory=Aid)
    tail: float | None = None
    """See `EpochSealed.tail`."""

    @property
    def steps(self) -> Mapping[str, Ints]:
        """The steps of the report, the same as `loads`."""
        return self.loads

    @property
    def partitions(self) -> int:
        """Number of couriers."""
        return len(self.seen)


@dataclass(frozen=True)
class SharesMoved:
    """The steps' shares of an end-to-end bound have changed."""

    now_ms: float
    shares: Mapping[StepId, float]


@dataclass(frozen=True)
class Steered:
    """A user changed the settings of the running query."""

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
