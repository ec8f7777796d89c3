"""The interface between the control machine and the policy that decides what burst workers carry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from penstock.control.elastic import Elastic
from penstock.control.events import EpochSealed, KeysCounted
from penstock.control.examine.vitals import Floats, Vitals
from penstock.control.treat.decision import Bounds
from penstock.control.treat.offloading import Offloading
from penstock.model import SLA
from penstock.plan.epoch import Offload


@dataclass(frozen=True)
class Helped:
    """A segment of a flow that burst workers can help."""

    keyed: bool = True
    """Whether the segment ends in a keyed step. If not, couriers run it."""
    by_slot: bool = True
    """Whether the slots of rows are known where rows leave for burst workers."""
    every_ms: float | None = None
    """Milliseconds between the ends of two windows; None for a step without windows."""


@dataclass(frozen=True)
class Ahead:
    """The epoch that is about to be planned."""

    gap_ms: float
    """Milliseconds over which the epoch's rows have arrived."""
    partitions: int
    together: int | None
    """Number of couriers that work at the same time; None if unknown."""


class OffloadPolicy(Protocol):
    """Decides what burst workers carry, for all steps of a flow. Pure; used by one thread at a time."""

    def helps(self, step: str) -> bool:
        """Whether burst workers can help this step, or this segment without a keyed step."""
        ...

    def trouble(self, now_ms: float, reachable: bool) -> str:
        """The reason why burst workers cannot be used now; empty if they can."""
        ...

    def note(self, event: EpochSealed | KeysCounted, in_force: Mapping[str, Offload]) -> bool:
        """Process the results of an epoch or checkpoint that ran with the offloads `in_force`.

        Returns whether burst workers answer so badly that they should be replaced.
        """
        ...

    def decide(
        self, vitals: Vitals, bounds: Bounds, now_ms: float, spent: float | None
    ) -> Offloading:
        """Decide what burst workers carry for a step from the next epoch on.

        `spent` is the cost of burst workers so far in US dollars; None if it is unknown.
        """
        ...

    def let_go(self, step: str, now_ms: float) -> None:
        """Cancel the last decision: burst workers carry nothing for this step from now on."""
        ...

    def planned(
        self, offloading: Offloading, vitals: Vitals, bounds: Bounds, epoch: Ahead
    ) -> Offload | None:
        """A step's part of the next epoch's plan; None if nothing goes to burst workers."""
        ...

    def left(self, step: str, by_slot: Floats, offload: Offload, merge: float) -> Floats:
        """Records per slot that are left for hosts while this offload is in force.

        `by_slot` are all records per slot. `merge` is the work that an offloaded row leaves for its host.
        """
        ...

    def steer(self, elastic: Elastic, sla: SLA) -> None:
        """Use other settings from the next decision on."""
        ...
