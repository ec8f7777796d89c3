"""The port of the control machine to the policy that decides what burst workers carry."""

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
    """Whether it ends in a keyed step; else couriers run it."""
    by_slot: bool = True
    """Whether slots are known where rows leave."""
    every_ms: float | None = None
    """From one window's end to the next one's; None for a step without windows."""


@dataclass(frozen=True)
class Ahead:
    """The epoch that is about to be planned."""

    gap_ms: float
    """Time in which what it brings has arrived."""
    partitions: int
    together: int | None
    """Couriers that are at work at a time, if that is known."""


class OffloadPolicy(Protocol):
    """Decides what burst workers carry, for all steps of a flow. Pure; used by one thread at a time."""

    def helps(self, step: str) -> bool:
        """Whether burst workers can help a step, or a segment without a keyed one."""
        ...

    def trouble(self, now_ms: float, reachable: bool) -> str:
        """Why nothing can go to burst workers now; empty if it can."""
        ...

    def note(self, told: EpochSealed | KeysCounted, in_force: Mapping[str, Offload]) -> bool:
        """Take in what came of an epoch, or a checkpoint, with these offloads in force. Whether burst
        workers answer so badly that others should take their place."""
        ...

    def decide(
        self, vitals: Vitals, bounds: Bounds, now_ms: float, spent: float | None
    ) -> Offloading:
        """What burst workers shall carry of a step from the next epoch on."""
        ...

    def let_go(self, step: str, now_ms: float) -> None:
        """Burst workers carry nothing of a step from now on, whatever was decided."""
        ...

    def planned(
        self, found: Offloading, vitals: Vitals, bounds: Bounds, epoch: Ahead
    ) -> Offload | None:
        """A step's part of the plan of the next epoch; None: nothing goes to burst workers."""
        ...

    def left(self, step: str, by_slot: Floats, offload: Offload, merge: float) -> Floats:
        """What hosts have to do of so many records by slot, with this offload in force."""
        ...

    def steer(self, elastic: Elastic, sla: SLA) -> None:
        """Go by other settings from the next decision on."""
        ...
