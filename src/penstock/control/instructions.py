"""Instructions: the output of the control machine. A driver, a simulator or a test carries them out."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from penstock.control.journal.entry import Entry
from penstock.model import HostId, StepId
from penstock.plan.epoch import Offload
from penstock.state.keys.slot_map import Range

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.control.treat.decision import Treatment


@dataclass(frozen=True)
class Treat:
    """Move slots to other hosts. Answer at once with a `TreatmentBegun` or `TreatmentRefused` event."""

    step: StepId
    epoch: int | None
    treatments: tuple[Treatment, ...]


@dataclass(frozen=True)
class Stay:
    """Cancel the pending moves of a step: its slots stay where they are."""

    step: StepId


@dataclass(frozen=True)
class Lend:
    """Have hosts help others with the rest of a running epoch, once they have done their own work."""

    step: StepId
    epoch: int
    helpers: Mapping[HostId, tuple[HostId, ...]]
    """Host -> the hosts that help it."""


@dataclass(frozen=True)
class SplitSlot:
    """Split parts off a slot. Each is a slot of its own. Answer with `TreatmentRefused` if that fails."""

    step: StepId
    epoch: int | None
    slot: int
    parts: tuple[tuple[Range, ...], ...]
    """Hashes of each part."""


@dataclass(frozen=True)
class UniteSlots:
    """Put split hash slots together again."""

    step: StepId
    slots: tuple[int, ...]


@dataclass(frozen=True)
class WaitFor:
    """Delay the next epoch until a step's new hosts are up, by `most_ms` milliseconds at most."""

    step: StepId
    most_ms: float


@dataclass(frozen=True)
class KeepWarm:
    """Keep `count` burst workers warm for a step."""

    step: StepId
    count: int


@dataclass(frozen=True)
class RenewWorkers:
    """Replace burst workers that do not answer."""


@dataclass(frozen=True)
class Tell:
    """Write an entry to the journal."""

    entry: Entry


Instruction = (
    Treat | Stay | SplitSlot | UniteSlots | Lend | WaitFor | KeepWarm | RenewWorkers | Tell
)


@dataclass(frozen=True)
class StepOrders:
    """Control's part of an epoch's plan for one keyed step. Routes are not in it."""

    watched: tuple[int, ...] = ()
    """Slots in which couriers count the rows of each key."""
    two_stage: bool = False
    """Whether couriers combine the rows of each key even where that costs them more time."""


@dataclass(frozen=True)
class Orders:
    """Control's part of an epoch's plan."""

    steps: Mapping[str, StepOrders] = field(default_factory=lambda: MappingProxyType({}))
    offloads: Mapping[str, Offload] = field(default_factory=lambda: MappingProxyType({}))
    """Work for burst workers, by step or by segment without a keyed step. All others keep their rows."""
    timed: tuple[str, ...] = ()
    """Segments without a keyed step whose working time couriers report."""
