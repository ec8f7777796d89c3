"""Flows with burst workers under control, over a data plane that only computes durations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.control.couriers import CourierControl
from penstock.control.elastic import Elastic
from penstock.control.money import FunctionPrice
from penstock.model import HostId, StepId
from penstock.offload.backends.local.backend import LocalFunctions
from penstock.offload.courier.stateless_road import wanted
from penstock.plan.epoch import EpochPlan, Offload
from penstock.plan.steps import FlowPlan, MapStep, SourcePlan
from penstock.wire.report import MapWork, Offloaded, Routed, Seen, Usage
from tests.driver.pretence import Pretence
from tests.trials.ledger import SLOTS, SUMS

STEP = StepId("sums")
SCHEMA = pa.schema([("v", pa.int64())])
SEGMENT = "map-2"
MAPS = FlowPlan(
    (SourcePlan(SCHEMA),),
    tuple(MapStep(name, lambda batch: batch, SCHEMA, SCHEMA) for name in ("map-1", SEGMENT)),
)
CAPACITY = 1_000.0
"""Records per second of a host, of a courier, and of a burst worker."""
COST_MS = 100.0
PARTIALS = 0.1
"""Partial states that a burst worker makes per row."""


class BurstTrial(Pretence):
    """Epochs of a flow at a rate that the test chooses."""

    def __init__(self, elastic: Elastic, reacts: bool = False, **kwargs: Any) -> None:
        """With `reacts`, couriers report the rows that they route, so that they get a reflex."""
        super().__init__(elastic=elastic, **kwargs)
        self.reacts, self.partitions, self.answers = reacts, 1, True
        self._since_ms = self.now_ms
        self.latency_ms: list[float] = []

    def rates(self, *rates: float) -> EpochPlan:
        """Run an epoch with the rows that arrived since the one before began, at these rows per second."""
        gap_ms = max(self.now_ms - self._since_ms, 1.0)
        self._since_ms = began = self.now_ms
        self._pass(rates, began, gap_ms)
        self.latency_ms.append(self.now_ms - began + gap_ms / 2)
        return self.plans[-1]

    def _pass(self, rates: Sequence[float], began: float, gap_ms: float) -> None:
        plan = self.begin()
        routes = plan.steps[0]
        load = np.full(SLOTS, round(rates[0] * gap_ms / 1000 / SLOTS))
        shares, workers = np.zeros(SLOTS), 0
        if routes.offload is not None:
            shares, workers = routes.offload.shares, routes.offload.workers
            reflex = routes.offload.reflex
            if reflex is not None:
                reflex = reflex.of(0, 1)
                shares = np.maximum(shares, reflex.share(load.sum()))
                workers = max(workers, reflex.at_once(int((load * shares).sum())))
        aside = np.rint(load * shares)
        partials = PARTIALS * aside if self.answers else aside
        rows = np.bincount(routes.routes.owner, load - aside + partials, len(routes.routes.hosts))
        offloaded, waited_ms = self._carry(
            STEP, int(aside.sum()), workers, int(partials.sum()), routes.offload
        )
        seconds = workers * waited_ms / 1000 if offloaded else 0.0
        money = FunctionPrice().money(workers, seconds) if offloaded else 0.0
        seen = Seen(
            int(load.sum()),
            *_arrivals(int(load.sum()), began, gap_ms, 20),
            loads={STEP: load},
            offloaded=offloaded,
            used=Usage(workers, seconds, money=money) if offloaded else Usage(),
            routed={STEP: Routed(int(load.sum()), False)} if self.reacts else {},
        )
        self.now_ms += COST_MS / 4
        self.report(seen=[seen])
        work_ms = 1000 * rows / CAPACITY
        work = {
            host: (int(n), float(ms))
            for host, n, ms in zip(routes.routes.hosts, rows, work_ms, strict=True)
        }
        self.end(plan, [seen], work, began + COST_MS + max(float(work_ms.max()), waited_ms))

    def _carry(
        self, segment: str, aside: int, workers: int, records: int, offload: Offload | None
    ) -> tuple[tuple[Offloaded, ...], float]:
        """A courier's report on rows for burst workers, and the milliseconds that it waited for them."""
        if offload is None or not aside:
            return (), 0.0
        if self.answers:
            waited_ms = 1000 * aside / (workers * CAPACITY)
            offloaded = Offloaded(
                segment, rows=aside, records=records, invocations=workers, wait_ms=int(waited_ms)
            )
            return (offloaded,), waited_ms
        failed = Offloaded(
            segment,
            rows=aside,
            invocations=workers,
            failures={"failed": workers},
            returned=aside,
            wait_ms=offload.deadline_ms,
        )
        return (failed,), float(offload.deadline_ms)

    def run(self, rates: float | Sequence[float], seconds: float) -> list[EpochPlan]:
        """Run epochs for a duration. Returns their plans."""
        until_ms, first = self.now_ms + 1000 * seconds, len(self.plans)
        while self.now_ms < until_ms:
            self.rates(*([rates] if isinstance(rates, float) else rates))
        return self.plans[first:]

    @property
    def offload(self) -> Offload | None:
        """The offload of the newest plan that was decided on, without reflexes of couriers."""
        return offload_of(self.plans[-1])


class MapTrial(BurstTrial):
    """Epochs of a flow of stateless steps, with a rate for each partition."""

    def __init__(self, elastic: Elastic, together: int | None = None) -> None:
        super().__init__(elastic, flow=MAPS, together=together)
        self._together = together
        self.busy_ms: list[float] = []
        """Milliseconds of work of the busiest courier in each epoch."""

    def _pass(self, rates: Sequence[float], began: float, gap_ms: float) -> None:
        self.partitions = len(rates)
        plan = self.begin()
        offload = dict(plan.map_offloads).get(SEGMENT)
        tasks = [
            self._courier(plan, offload, n, round(rate * gap_ms / 1000), began, gap_ms)
            for n, rate in enumerate(rates)
        ]
        useful = [seen.maps[SEGMENT].useful_ms for seen, _ in tasks]
        longest = self._taken_by_all(
            [max(ms, int(waited)) for ms, (_, waited) in zip(useful, tasks, strict=True)]
        )
        self.busy_ms.append(self._taken_by_all(useful))
        seen = [one for one, _ in tasks]
        self.report(seen=seen)
        self.end(plan, seen, {}, began + COST_MS + longest)

    def _taken_by_all(self, times_ms: Sequence[float]) -> float:
        """Milliseconds that all couriers take together, with as many at work as Spark has task slots."""
        room = self._together or len(times_ms)
        return max(sum(times_ms[first::room]) for first in range(min(room, len(times_ms))))

    def _courier(
        self,
        plan: EpochPlan,
        offload: Offload | None,
        n: int,
        rows: int,
        began: float,
        gap_ms: float,
    ) -> tuple[Seen, float]:
        share, at_once = (0.0, 0) if offload is None else wanted(offload, n, plan.partitions, rows)
        aside = round(share * rows)
        offloaded, waited_ms = self._carry(SEGMENT, aside, at_once, aside, offload)
        done = rows - aside if self.answers else rows
        seen = Seen(
            rows,
            *_arrivals(rows, began, gap_ms, 10),
            offloaded=offloaded,
            used=Usage(len(offloaded), waited_ms / 1000, money=1e-5 * len(offloaded)),
            maps={SEGMENT: MapWork(rows, done, 1000 * done / CAPACITY)},
        )
        return seen, waited_ms

    @property
    def control(self) -> CourierControl:
        return self.loop.machine.couriers[SEGMENT]

    @property
    def couriers(self) -> tuple[HostId, ...]:
        return self.control.placement.hosts


def _arrivals(
    rows: int, began: float, gap_ms: float, parts: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Evenly spaced arrival times, and the number of rows at each."""
    times = tuple(int(began - gap_ms * (part + 0.5) / parts) for part in range(parts))
    return times, (max(1, rows // parts),) * parts


def offload_of(plan: EpochPlan) -> Offload | None:
    """The offload of an epoch that was decided on, without reflexes; None if there is none."""
    offload = plan.steps[0].offload if plan.steps else dict(plan.map_offloads).get(SEGMENT)
    return offload if offload is not None and offload.shares.any() else None


@contextmanager
def bursting(
    flow: FlowPlan = SUMS,
    start_ms: float = 5_000.0,
    starts: bool = True,
    reacts: bool = False,
    **elastic: Any,
) -> Iterator[BurstTrial]:
    settings: dict[str, Any] = {"functions": LocalFunctions(at_most=20), "at_most": 8}
    trial = BurstTrial(Elastic(**settings | elastic), reacts, flow=flow, start_ms=start_ms)
    if starts:
        trial.start()
    try:
        yield trial
    finally:
        trial.stop()


@contextmanager
def mapping(together: int | None = None, **elastic: Any) -> Iterator[MapTrial]:
    trial = MapTrial(Elastic(**{"functions": LocalFunctions(at_most=20)} | elastic), together)
    trial.start()
    try:
        yield trial
    finally:
        trial.stop()
