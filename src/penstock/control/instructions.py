"""What the control machine wants done, by whoever runs it: a driver, a simulator, a test."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from penstock.control.journal.entry import Entry
from penstock.model import StepId
from penstock.plan.epoch import Offload

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.control.treat.decision import Treatment


@dataclass(frozen=True)
class Treat:
    """Give slots other homes; to be answered by `TreatmentBegun` or `TreatmentRefused` at once."""

    step: StepId
    epoch: int | None
    treatments: tuple[Treatment, ...]


@dataclass(frozen=True)
class Stay:
    """Give up what is pending in a step: its slots stay where they are."""

    step: StepId


@dataclass(frozen=True)
class WaitFor:
    """Let the next epoch wait for the hosts that a step should have, for so long at most."""

    step: StepId
    most_ms: float


@dataclass(frozen=True)
class KeepWarm:
    """Keep so many burst workers ready for a step."""

    step: StepId
    count: int


@dataclass(frozen=True)
class RenewWorkers:
    """Let go of burst workers that do not answer, and bring up others."""


@dataclass(frozen=True)
class Tell:
    """Put an entry into the journal."""

    entry: Entry


Instruction = Treat | Stay | WaitFor | KeepWarm | RenewWorkers | Tell


@dataclass(frozen=True)
class StepOrders:
    """What the plan of an epoch says of one keyed step, beside its routes."""

    watched: tuple[int, ...] = ()
    """Slots whose keys couriers count."""
    two_stage: bool = False
    """Whether couriers combine the rows of each key, whatever that costs them."""


@dataclass(frozen=True)
class Orders:
    """What the plan of an epoch says because of control."""

    steps: Mapping[str, StepOrders] = field(default_factory=lambda: MappingProxyType({}))
    offloads: Mapping[str, Offload] = field(default_factory=lambda: MappingProxyType({}))
    """What goes to burst workers, of steps and of segments without one; of all others nothing does."""
    timed: tuple[str, ...] = ()
    """Segments without a keyed step of which couriers tell what they take."""
