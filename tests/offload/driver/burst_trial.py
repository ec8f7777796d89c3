"""A flow with functions under control, over a data plane that only reckons how long things take."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from penstock.control.elastic import Elastic
from penstock.control.journal.entry import Entry
from penstock.control.money import FunctionPrice, HostPrice, Money
from penstock.control.treat.decision import Treatment, is_new
from penstock.driver.bill import Bill
from penstock.driver.control_loop import ControlLoop
from penstock.driver.fleet import SealedHost
from penstock.driver.relocation import Relocation
from penstock.host.vitals import HostVitals
from penstock.model import SLA, HostId, StepId
from penstock.offload.backends.local.backend import LocalFunctions
from penstock.offload.driver.help import Offloads
from penstock.offload.driver.keeper import FunctionKeeper
from penstock.operators.operator import EpochTime
from penstock.plan.epoch import EpochPlan, Offload, RouteTable, StepRoutes
from penstock.plan.steps import FlowPlan
from penstock.settings import Settings
from penstock.state.store.store import DeltaRef
from penstock.wire.report import Offloaded, Routed, Seen, Usage
from tests.trials.ledger import SLOTS, SUMS

STEP = StepId("sums")
CAPACITY = 1_000.0
"""Records a second of a host, and of a function."""
COST_MS = 100.0
PARTIALS = 0.1
"""That a function makes of a row."""


@dataclass
class PretendedStarted:
    """Functions that are there at once; they note what they are told."""

    number: int = 0
    warmed: list[int] = field(default_factory=list)
    noted: Usage = field(default_factory=Usage)
    stopped: int = 0

    @property
    def reach(self) -> str:
        return f"functions {self.number}"

    def warm(self, count: int) -> None:
        self.warmed.append(count)

    def note(self, usage: Usage) -> None:
        self.noted += usage

    def used(self) -> Usage:
        return self.noted

    def stop(self) -> None:
        self.stopped += 1


@dataclass
class MovingRelocation:
    """Hosts and slots as treatments want them, a while after they began."""

    clock_ms: Callable[[], float]
    start_ms: float
    hosts_now: list[HostId] = field(default_factory=lambda: [HostId("sums/0"), HostId("sums/1")])
    owner: list[HostId] = field(default_factory=list)
    treated: list[Treatment] = field(default_factory=list)
    waiting: tuple[float, list[Treatment]] | None = None
    waited_ms: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.owner = [self.hosts_now[n * 2 // SLOTS] for n in range(SLOTS)]

    def hosts(self, step: str) -> list[HostId]:
        return list(self.hosts_now)

    def pending_of(self, step: str) -> int:
        return 0 if self.waiting is None else sum(len(one.slots) for one in self.waiting[1])

    def treat(self, step: str, treatments: Sequence[Treatment]) -> dict[HostId, HostId]:
        taken = max(int(host.rpartition("/")[2]) for host in self.hosts_now)
        new = dict.fromkeys(t.target for t in treatments if is_new(t.target))
        names = {host: HostId(f"sums/{taken + n}") for n, host in enumerate(new, 1)}
        named = [
            Treatment(t.kind, t.slots, t.source, names.get(t.target, t.target), t.reason)
            for t in treatments
        ]
        self.treated += named
        self.hosts_now += names.values()
        delay_ms = self.start_ms if names else 0.0
        self.waiting = (self.clock_ms() + delay_ms, named)
        return names

    def settle(self) -> None:
        """Before an epoch: what is ready takes effect."""
        if self.waiting is None or self.waiting[0] > self.clock_ms():
            return
        for one in self.waiting[1]:
            for slot in one.slots:
                self.owner[slot] = one.target
            if one.kind == "scale_in":
                self.hosts_now.remove(one.source)
        self.waiting = None

    def wait_for_new(self, step: str, ms: float) -> None:
        self.waited_ms.append(ms)

    def stay(self, step: str) -> None:
        self.waiting = None


class BurstTrial:
    """Epochs of a flow whose rate one can choose."""

    def __init__(
        self,
        elastic: Elastic,
        flow: FlowPlan = SUMS,
        start_ms: float = 5_000.0,
        reacts: bool = False,
    ) -> None:
        """With `reacts`, couriers tell what comes by, so that they are told when it is too much."""
        self.reacts = reacts
        self.flow, self.now_ms, self.epoch, self._since_ms = flow, 1e6, 0, 1e6
        self.relocation = MovingRelocation(lambda: self.now_ms, start_ms)
        self.answers = True
        self.plans: list[EpochPlan] = []
        self.latency_ms: list[float] = []
        self.started: list[PretendedStarted] = []
        self.broken = ""
        self.keeper = FunctionKeeper(self._bring_up)
        self.bill = Bill(
            HostPrice(per_hour=3.6),
            lambda: len(self.relocation.hosts_now),
            lambda: self.keeper.used.money,
            lambda: self.now_ms,
        )
        self.loop = ControlLoop(
            flow.keyed,
            SLA(1000, 1000),
            elastic,
            cast("Relocation", self.relocation),
            Settings(),
            lambda: self.now_ms,
            offloads=Offloads(flow, self.keeper),
            bill=self.bill,
        )

    def _bring_up(self) -> PretendedStarted:
        if self.broken:
            raise RuntimeError(self.broken)
        self.started.append(PretendedStarted(len(self.started)))
        return self.started[-1]

    def start(self) -> None:
        self.keeper.start()
        self.settle()

    def settle(self) -> None:
        """Wait until the keeper has done what it was told."""
        self.keeper._worker.submit(lambda: None).result()

    def plan(self) -> EpochPlan:
        self.relocation.settle()
        hosts = tuple(dict.fromkeys(self.relocation.owner))
        owner = np.array([hosts.index(host) for host in self.relocation.owner], np.int32)
        routes = StepRoutes(
            STEP,
            RouteTable(hosts, owner),
            tuple("" for _ in hosts),
            EpochTime(self.epoch, int(self.now_ms), None),
            offload=self.loop.offload(STEP, self.now_ms),
        )
        return EpochPlan(self.epoch, 0, 1, (routes,), "", "", self.loop.reach)

    def pass_epoch(self, rate: float) -> EpochPlan:
        """An epoch with what has come since the one before began, at so many rows a second."""
        gap_ms = max(self.now_ms - self._since_ms, 1.0)
        self._since_ms = began = self.now_ms
        plan = self.plan()
        self.plans.append(plan)
        self.loop.begin(plan, began)
        routes = plan.steps[0]
        load = np.full(SLOTS, round(rate * gap_ms / 1000 / SLOTS))
        shares, functions = np.zeros(SLOTS), 0
        if routes.offload is not None:
            shares, functions = routes.offload.shares, routes.offload.functions
            reflex = routes.offload.reflex
            if reflex is not None:
                reflex = reflex.of(0, 1)
                shares = np.maximum(shares, reflex.share(load.sum()))
                functions = max(functions, reflex.at_once(int((load * shares).sum())))
        aside = np.rint(load * shares)
        returned = 0 if self.answers else int(aside.sum())
        partials = PARTIALS * aside if self.answers else aside
        rows = np.bincount(routes.routes.owner, load - aside + partials, len(routes.routes.hosts))
        waited_ms = 0.0
        told: tuple[Offloaded, ...] = ()
        used = Usage()
        if routes.offload is not None and aside.any():
            waited_ms = 1000 * float(aside.sum()) / (functions * CAPACITY)
            if not self.answers:
                waited_ms = routes.offload.deadline_ms
            failures = {} if self.answers else {"failed": functions}
            told = (
                Offloaded(
                    STEP,
                    int(aside.sum()),
                    0 if returned else int(partials.sum()),
                    functions,
                    failures,
                    returned,
                    int(waited_ms),
                ),
            )
            seconds = functions * waited_ms / 1000
            used = Usage(functions, seconds, money=FunctionPrice().money(functions, seconds))
        times = began - gap_ms * (np.arange(20) + 0.5) / 20
        counts = (int(load.sum()) // 20,) * 20
        seen = Seen(
            int(load.sum()),
            tuple(int(time) for time in times),
            counts,
            loads={STEP: load},
            offloaded=told,
            used=used,
            routed={STEP: Routed(int(load.sum()), False)} if self.reacts else {},
        )
        self.now_ms += COST_MS / 4
        self.loop.reported([seen])
        self.loop._early.submit(lambda: None).result()
        work_ms = 1000 * rows / CAPACITY
        self.now_ms = began + COST_MS + max(float(work_ms.max()), waited_ms)
        sealed = [
            SealedHost(
                host,
                cast("DeltaRef", None),
                HostVitals(rows=int(n), useful_ms=float(ms), entries=0, state_bytes=0),
            )
            for host, n, ms in zip(routes.routes.hosts, rows, work_ms, strict=True)
        ]
        self.loop.sealed(plan, [seen], sealed, self.now_ms, self.now_ms)
        self.settle()
        self.latency_ms.append(self.now_ms - began + gap_ms / 2)
        self.epoch += 1
        return plan

    def run(self, rate: float, seconds: float) -> list[EpochPlan]:
        """Epoch after epoch for so long; their plans."""
        until_ms, first = self.now_ms + 1000 * seconds, len(self.plans)
        while self.now_ms < until_ms:
            self.pass_epoch(rate)
        return self.plans[first:]

    @property
    def offload(self) -> Offload | None:
        """That of the newest plan."""
        return offload_of(self.plans[-1])

    @property
    def scaled_out(self) -> bool:
        return any(one.kind == "scale_out" for one in self.relocation.treated)

    def told(self, event: str) -> list[Entry]:
        return [entry for entry in self.loop.journal.last(10_000) if entry.event == event]

    @property
    def money(self) -> Money:
        return self.bill.money


def offload_of(plan: EpochPlan) -> Offload | None:
    """What was decided that functions carry in an epoch, whatever it brings; None: nothing."""
    found = plan.steps[0].offload
    return found if found is not None and found.shares.any() else None


@contextmanager
def bursting(
    flow: FlowPlan = SUMS,
    start_ms: float = 5_000.0,
    starts: bool = True,
    reacts: bool = False,
    **elastic: Any,
) -> Iterator[BurstTrial]:
    made = Elastic(**{"functions": LocalFunctions(at_most=20), "at_most": 8} | elastic)
    trial = BurstTrial(made, flow, start_ms, reacts)
    if starts:
        trial.start()
    try:
        yield trial
    finally:
        trial.loop.stop()
        trial.keeper.stop()
