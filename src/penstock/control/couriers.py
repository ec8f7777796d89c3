"""Control of stateless steps, which couriers run and burst workers can help.

Control treats each courier as a host with a single slot, its source partition, so that the same rules
apply to burst workers. There is one courier per source partition if Spark can run all of them at the same
time. If it cannot, couriers that run one after the other count as one host. Spark decides how many couriers
there are, so only burst workers can help them, however long a burst lasts.
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
from penstock.wire.report import MapWork, Seen


@dataclass(frozen=True)
class Onlooker:
    """A policy that reports the health of couriers and never changes anything.

    >>> from penstock.model import SLA
    >>> vitals = Vitals.even(StepId("map-1"), [300.0, 9.0], hosts=2, service_rate=100.0)
    >>> decision = Onlooker().decide(vitals, Bounds(SLA(1000, 1000)))
    >>> [host.projected_ms < 1000 for host in decision.hosts], decision.treatments
    ([False, True], ())
    """

    def decide(self, vitals: Vitals, bounds: Bounds) -> Decision:
        # A courier has only one slot, so a hot slot means nothing.
        return replace(observed(vitals, bounds), hot_slots=())


class CourierControl(StepControl):
    """Control of one segment without a keyed step. See `StepControl`.

    The segment has no share of the bound, which keyed steps divide among them. Instead, couriers may take
    `part` of an epoch's time.

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
        """Set the limits, from those of a step that has the whole bound to itself."""
        count, alert = self._count, whole.alert_ms / self._part
        self.bounds = replace(whole, share=self._part, alert=alert, at_least=count, at_most=count)

    @property
    def placement(self) -> StepPlacement:
        """The couriers that work at the same time, and the partitions of each."""
        couriers = tuple(HostId(f"{self.step}/{n}") for n in range(self._count))
        return StepPlacement(couriers, np.arange(self.examiner.slots) % self._count)

    def resize(self, partitions: int, together: int | None = None) -> None:
        """Set the number of partitions, and of couriers that work at the same time (None: all of them).

        If the number of partitions changes, they are new partitions: earlier measurements are dropped.
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
        """Process the couriers' reports on an epoch. Returns how long its couriers took, in milliseconds.

        The epoch began at `started_ms` and the one before it at `since_ms`. Its output reached the sink
        at `written_ms`.
        """
        place, work = self.placement, [task.maps[self.step] for task in seen]
        delta_ms = self.examiner.delta_ms
        arrivals = segment_arrivals(self.step, seen, delta_ms, since_ms, started_ms)
        done = np.bincount(place.owner, [task.done for task in work]).tolist()
        useful_ms = np.bincount(place.owner, [task.useful_ms for task in work]).tolist()
        cpu = self._cpu_loads(work, place, started_ms - since_ms)
        self.examiner.arriving(arrivals.horizon_ms, arrivals.counts, arrivals.first_m)
        self.examiner.epoch(
            written_ms,
            arrivals.by_slot,
            place.owner,
            place.hosts,
            dict(zip(place.hosts, map(Work, map(int, done), useful_ms, cpu), strict=True)),
            arrivals.latency_ms(written_ms - started_ms),
        )
        waited = [o.wait_ms for task in seen for o in task.offloaded if o.segment == self.step]
        return float(max([*useful_ms, *waited]))

    @staticmethod
    def _cpu_loads(
        work: Sequence[MapWork], place: StepPlacement, gap_ms: float
    ) -> list[float] | list[None]:
        """CPU load of each courier over the time in which the epoch's rows have arrived."""
        spent = [task.cpu_ms for task in work if task.cpu_ms is not None]
        if len(spent) < len(work) or gap_ms <= 0:
            return [None] * len(place.hosts)
        loads: list[float] = (np.bincount(place.owner, spent) / gap_ms).tolist()
        return loads
