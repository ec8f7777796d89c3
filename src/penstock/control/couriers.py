"""Couriers in the part of hosts: stateless steps that no host runs, and that burst workers can help.

There is one courier for each partition of the source, if Spark has room for all of them at a time. It
stands for a host with a single slot, its partition, so that burst workers help it by the same rules. Where
there is room for fewer, some come one after the other: these are one host then. How many there are is
up to Spark: nothing but burst workers can be of help to them, however long a burst lasts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from penstock.control.diagnose.diagnosis import observed
from penstock.control.events import StepPlacement
from penstock.control.examine.arrivals import segment_arrivals
from penstock.control.examine.examiner import Examiner
from penstock.control.examine.vitals import Vitals, Work
from penstock.control.journal.journal import Journal
from penstock.control.offload_policy import OffloadPolicy
from penstock.control.step_control import StepControl
from penstock.control.treat.decision import Bounds, Decision
from penstock.model import HostId, StepId
from penstock.wire.report import Seen


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

    It takes no part in how keyed steps share the bound: couriers are held to `part` of an epoch's time.

    >>> from penstock.model import SLA
    >>> control = CourierControl(StepId("map-1"), Bounds(SLA(1000, 1000)), journal=Journal())
    >>> control.resize(3)
    >>> control.placement.hosts, control.placement.owner.tolist()
    (('map-1/0', 'map-1/1', 'map-1/2'), [0, 1, 2])
    >>> control.resize(3, together=2)
    >>> control.placement.hosts, control.placement.owner.tolist()
    (('map-1/0', 'map-1/1'), [0, 1, 0])
    """

    def __init__(
        self,
        segment: StepId,
        bounds: Bounds,
        *,
        journal: Journal,
        part: float = 1.0,
        delta_ms: float = 100.0,
        dry_run: bool = False,
        offload: OffloadPolicy | None = None,
    ) -> None:
        super().__init__(
            *(segment, 1, Onlooker(), bounds),
            journal=journal,
            delta_ms=delta_ms,
            dry_run=dry_run,
            offload=offload,
        )
        self._count, self._part = 1, part
        self.set_bounds(bounds)

    def set_bounds(self, whole: Bounds) -> None:
        """What holds for a step that has the bound to itself."""
        count, alert = self._count, whole.alert_ms / self._part
        self.bounds = replace(whole, share=self._part, alert=alert, at_least=count, at_most=count)

    @property
    def placement(self) -> StepPlacement:
        """Couriers that are at work at a time, and which of them has the rows of each partition."""
        couriers = tuple(HostId(f"{self.step}/{n}") for n in range(self._count))
        return StepPlacement(couriers, np.arange(self.examiner.slots) % self._count)

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

    def take_in(
        self, seen: Sequence[Seen], since_ms: float, started_ms: float, written_ms: float
    ) -> float:
        """An epoch that began at `started_ms`, and the one before at `since_ms`, is in the sink. How
        long its couriers took, in ms."""
        place, work = self.placement, [task.maps[self.step] for task in seen]
        delta_ms = self.examiner.delta_ms
        arrivals = segment_arrivals(self.step, seen, delta_ms, since_ms, started_ms)
        done = np.bincount(place.owner, [one.done for one in work]).tolist()
        useful_ms = np.bincount(place.owner, [one.useful_ms for one in work]).tolist()
        self.examiner.arriving(arrivals.horizon_ms, arrivals.counts, arrivals.first_m)
        self.examiner.epoch(
            written_ms,
            arrivals.by_slot,
            place.owner,
            place.hosts,
            dict(zip(place.hosts, map(Work, map(int, done), useful_ms), strict=True)),
            arrivals.latency_ms(written_ms - started_ms),
        )
        waited = [o.wait_ms for task in seen for o in task.offloaded if o.segment == self.step]
        return float(max([*useful_ms, *waited]))
