"""Couriers in the part of hosts: stateless steps that no host runs, and that functions can help.

There is one courier for each partition of the source, if Spark has room for all of them at a time. It
stands for a host with a single slot, its partition, so that functions help it by the same rules. Where
there is room for fewer, some come one after the other: these are one host then. How many there are is
up to Spark: nothing but functions can be of help to them, however long a burst lasts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from penstock.control.examine.examiner import Examiner
from penstock.control.examine.vitals import Ints, Vitals
from penstock.control.journal.journal import Journal
from penstock.control.money import Costs, HostPrice
from penstock.control.policies.health import observed
from penstock.control.step_control import StepControl
from penstock.control.treat.decision import Bounds, Decision
from penstock.model import HostId, StepId
from penstock.offload.policy.values import OffloadSettings

_NEVER = float("inf")


@dataclass(frozen=True)
class Onlooker:
    """Tells how couriers do, and leaves them as they are.

    >>> from penstock.model import SLA
    >>> vitals = Vitals.even(StepId("map-1"), [300.0, 9.0], hosts=2, service_rate=100.0)
    >>> decision = Onlooker().decide(vitals, Bounds(SLA(1000, 1000)))
    >>> [one.projected_ms < 1000 for one in decision.hosts], decision.treatments
    ([False, True], ())
    """

    def decide(self, vitals: Vitals, bounds: Bounds) -> Decision:
        # One slot is all that a courier has: whether that is hot says nothing.
        return replace(observed(vitals, bounds), hot_slots=())


class CourierControl(StepControl):
    """Examines and decides for one segment without a keyed step. See `StepControl`.

    >>> from penstock.model import SLA
    >>> control = CourierControl(StepId("map-1"), Bounds(SLA(1000, 1000)), journal=Journal())
    >>> control.resize(3)
    >>> control.couriers, control.owner.tolist()
    (('map-1/0', 'map-1/1', 'map-1/2'), [0, 1, 2])
    >>> control.resize(3, together=2)
    >>> control.couriers, control.owner.tolist()
    (('map-1/0', 'map-1/1'), [0, 1, 0])
    """

    def __init__(
        self,
        segment: StepId,
        bounds: Bounds,
        *,
        journal: Journal,
        delta_ms: float = 100.0,
        dry_run: bool = False,
    ) -> None:
        super().__init__(
            segment, 1, Onlooker(), bounds, journal=journal, delta_ms=delta_ms, dry_run=dry_run
        )
        self._count = 1

    @property
    def couriers(self) -> tuple[HostId, ...]:
        """Those that are at work at a time."""
        return tuple(HostId(f"{self.step}/{n}") for n in range(self._count))

    @property
    def owner(self) -> Ints:
        """Of each partition: which of them has its rows."""
        return np.arange(self.examiner.slots) % self._count

    def resize(self, partitions: int, together: int | None = None) -> None:
        """There are so many couriers now, of which so many are at work together; None: all of them.

        Partitions of another number are other ones: nothing is known of them.
        """
        before, count = self.examiner, min(partitions, together or partitions)
        if partitions != before.slots:
            self.examiner = Examiner(self.step, partitions, before.window_ms, before.delta_ms)
        if count != self._count:
            self._count = count
            self.bounds = replace(self.bounds, at_least=count, at_most=count)


def courier_settings(settings: OffloadSettings) -> OffloadSettings:
    """When functions help couriers, by what holds for hosts.

    Rows that come back are handed on, at no cost to speak of; and there are no hosts that could take
    over, so that no burst is too long, or too dear, for functions.

    >>> of_hosts = OffloadSettings(patience_ms=10_000.0)
    >>> of_couriers = courier_settings(of_hosts)
    >>> of_couriers.merge_cost, of_couriers.patience_ms, of_couriers.at_most == of_hosts.at_most
    (0.0, inf, True)
    """
    costs = Costs(HostPrice(_NEVER), settings.costs.function, settings.costs.least_host_ms)
    return replace(settings, merge_cost=0.0, patience_ms=_NEVER, costs=costs)
