"""A flow without hosts under control: its couriers only reckon how long their stateless steps take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import pyarrow as pa

from penstock.control.elastic import Elastic
from penstock.control.journal.entry import Entry
from penstock.driver.control_loop import ControlLoop
from penstock.driver.relocation import Relocation
from penstock.model import SLA
from penstock.offload.backends.local.backend import LocalFunctions
from penstock.offload.courier.stateless_road import wanted
from penstock.offload.driver.help import Offloads
from penstock.offload.driver.keeper import FunctionKeeper
from penstock.offload.policy.stateless import CourierControl
from penstock.plan.epoch import EpochPlan, Offload
from penstock.plan.steps import FlowPlan, MapStep, SourcePlan
from penstock.settings import Settings
from penstock.wire.report import MapWork, Offloaded, Seen, Usage
from tests.driver.pretence import PretendedRelocation
from tests.offload.driver.burst_trial import CAPACITY, COST_MS, PretendedStarted

SCHEMA = pa.schema([("v", pa.int64())])
SEGMENT = "map-2"
MAPS = FlowPlan(
    (SourcePlan(SCHEMA),),
    tuple(MapStep(name, lambda batch: batch, SCHEMA, SCHEMA) for name in ("map-1", SEGMENT)),
)


class MapTrial:
    """Epochs of a flow of stateless steps, with a rate for each partition."""

    def __init__(self, elastic: Elastic, together: int | None = None) -> None:
        self.now_ms, self.epoch, self._since_ms = 1e6, 0, 1e6
        self.answers, self._together = True, together
        self.plans: list[EpochPlan] = []
        self.busy_ms: list[float] = []
        """Of the busiest couriers, epoch by epoch."""
        self.keeper = FunctionKeeper(lambda: PretendedStarted())
        self.loop = ControlLoop(
            (),
            SLA(1000, 1000),
            elastic,
            cast("Relocation", PretendedRelocation({})),
            Settings(),
            lambda: self.now_ms,
            offloads=Offloads(MAPS, self.keeper, together=lambda: together),
        )
        self.keeper.start()
        self.keeper._worker.submit(lambda: None).result()

    def pass_epoch(self, *rates: float) -> EpochPlan:
        """An epoch with what has come since the one before began, at so many rows a second."""
        gap_ms = max(self.now_ms - self._since_ms, 1.0)
        self._since_ms = began = self.now_ms
        found = self.loop.offload(SEGMENT, began, len(rates))
        maps = () if found is None else ((SEGMENT, found),)
        plan = EpochPlan(self.epoch, 0, len(rates), (), "", "", self.loop.reach, maps, (SEGMENT,))
        self.plans.append(plan)
        self.loop.begin(plan, began)
        seen = [
            self._courier(plan, found, n, round(rate * gap_ms / 1000), began, gap_ms)
            for n, rate in enumerate(rates)
        ]
        longest = self._taken_by_all(
            [max(task.maps[SEGMENT].useful_ms, *_waited(task), 0) for task in seen]
        )
        self.busy_ms.append(self._taken_by_all([task.maps[SEGMENT].useful_ms for task in seen]))
        self.loop.reported(seen)
        self.loop._early.submit(lambda: None).result()
        self.now_ms = began + COST_MS + longest
        self.loop.sealed(plan, seen, [], self.now_ms, self.now_ms)
        self.epoch += 1
        return plan

    def _taken_by_all(self, times_ms: list[float]) -> float:
        """How long couriers take that are at work as Spark has room for them."""
        room = self._together or len(times_ms)
        return max(sum(times_ms[first::room]) for first in range(min(room, len(times_ms))))

    def _courier(
        self, plan: EpochPlan, found: Offload | None, n: int, rows: int, began: float, gap_ms: float
    ) -> Seen:
        share, at_once = (0.0, 0) if found is None else wanted(found, n, plan.partitions, rows)
        aside = round(share * rows)
        told: tuple[Offloaded, ...] = ()
        done, waited_ms = rows - aside, 0.0
        if found is not None and aside:
            waited_ms = 1000 * aside / (at_once * CAPACITY)
            returned = 0
            if not self.answers:
                returned, waited_ms, done = aside, float(found.deadline_ms), rows
            failures = {"timeout": at_once} if returned else {}
            told = (
                Offloaded(
                    SEGMENT, aside, aside - returned, at_once, failures, returned, int(waited_ms)
                ),
            )
        times = tuple(int(began - gap_ms * (part + 0.5) / 10) for part in range(10))
        return Seen(
            rows,
            times,
            (max(1, rows // 10),) * 10,
            offloaded=told,
            used=Usage(len(told), waited_ms / 1000, money=1e-5 * len(told)),
            maps={SEGMENT: MapWork(rows, done, 1000 * done / CAPACITY)},
        )

    def run(self, rates: Sequence[float], seconds: float) -> list[EpochPlan]:
        """Epoch after epoch for so long; their plans."""
        until_ms, first = self.now_ms + 1000 * seconds, len(self.plans)
        while self.now_ms < until_ms:
            self.pass_epoch(*rates)
        return self.plans[first:]

    @property
    def control(self) -> CourierControl:
        return self.loop._maps.controls[SEGMENT]

    @property
    def offload(self) -> Offload | None:
        """What the newest plan gives to functions by decision, whatever couriers do by themselves."""
        return carried(self.plans[-1])

    def told(self, event: str) -> list[Entry]:
        return [entry for entry in self.loop.journal.last(10_000) if entry.event == event]


def _waited(task: Seen) -> list[int]:
    return [one.wait_ms for one in task.offloaded]


def carried(plan: EpochPlan) -> Offload | None:
    found = dict(plan.map_offloads).get(SEGMENT)
    return found if found is not None and found.shares.any() else None


@contextmanager
def mapping(together: int | None = None, **elastic: Any) -> Iterator[MapTrial]:
    trial = MapTrial(Elastic(**{"functions": LocalFunctions(at_most=20)} | elastic), together)
    try:
        yield trial
    finally:
        trial.loop.stop()
        trial.keeper.stop()
