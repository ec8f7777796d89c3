"""A flow's control over a simulated data plane, for tests of the control loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, cast

import numpy as np

from penstock.control.elastic import Elastic, Steering
from penstock.control.examine.vitals import Vitals
from penstock.control.journal.entry import Entry
from penstock.control.money import HostPrice, Money
from penstock.control.treat.decision import Treatment, is_new
from penstock.driver.bill import Bill
from penstock.driver.control_loop import ControlLoop
from penstock.driver.fleet import SealedHost
from penstock.driver.relocation import LostHost, Relocation
from penstock.errors import SettingError
from penstock.host.vitals import HostVitals
from penstock.model import SLA, HostId, StepId
from penstock.offload.keeper import WorkerKeeper
from penstock.operators.operator import EpochTime
from penstock.plan.epoch import EpochPlan, Offload, RouteTable, StepRoutes
from penstock.plan.steps import FlowPlan
from penstock.settings import Settings
from penstock.wire.report import Seen, Usage
from tests.trials.ledger import SLOTS, SUMS

PARTITIONS = 2
LOAD = np.arange(1, SLOTS + 1)


@dataclass
class PretendedStarted:
    """Functions that are available at once and record their orders."""

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
class PretendedRelocation:
    """A relocation that records its requests. Slots stay pending until the test changes that, or, with
    `start_ms`, until new hosts have had that many milliseconds to start."""

    steps: dict[str, list[HostId]]
    clock_ms: Callable[[], float]
    start_ms: float | None = None
    owner: dict[str, list[HostId]] = field(default_factory=dict)
    pending: dict[str, int] = field(default_factory=dict)
    treated: list[Treatment] = field(default_factory=list)
    waiting: dict[str, tuple[float, list[Treatment]]] = field(default_factory=dict)
    waited_ms: list[float] = field(default_factory=list)
    stayed: list[str] = field(default_factory=list)
    lost: list[LostHost] = field(default_factory=list)
    lent: dict[int, dict[HostId, tuple[HostId, ...]]] = field(default_factory=dict)
    refuses: str = ""
    _numbers: Iterator[int] = field(default_factory=lambda: count(7))

    def __post_init__(self) -> None:
        self.owner = {
            step: [hosts[n * len(hosts) // SLOTS] for n in range(SLOTS)]
            for step, hosts in self.steps.items()
        }

    def hosts(self, step: str) -> list[HostId]:
        return list(self.steps[step])

    def pending_of(self, step: str) -> int:
        return self.pending.get(step, 0)

    def take_lost(self) -> list[LostHost]:
        lost, self.lost = self.lost, []
        return lost

    def lend(self, epoch: int, helpers: Mapping[HostId, tuple[HostId, ...]]) -> None:
        self.lent[epoch] = dict(helpers)

    def treat(self, step: str, treatments: Sequence[Treatment]) -> dict[HostId, HostId]:
        if self.refuses:
            raise SettingError(self.refuses, hint="ask for something else")
        new = dict.fromkeys(t.target for t in treatments if is_new(t.target))
        names = {host: HostId(f"{step}/{next(self._numbers)}") for host in new}
        named = [
            Treatment(t.kind, t.slots, t.source, names.get(t.target, t.target), t.reason)
            for t in treatments
        ]
        self.treated += treatments
        self.pending[step] = sum(len(one.slots) for one in treatments)
        self.steps[step] += names.values()
        delay_ms = (self.start_ms or 0.0) if names else 0.0
        self.waiting[step] = (self.clock_ms() + delay_ms, named)
        return names

    def settle(self) -> None:
        """Before an epoch: apply the moves whose hosts are ready, if hosts start by themselves."""
        if self.start_ms is None:
            return
        for step, (ready_ms, treatments) in list(self.waiting.items()):
            if ready_ms <= self.clock_ms():
                for one in treatments:
                    for slot in one.slots:
                        self.owner[step][slot] = one.target
                    if one.kind == "scale_in":
                        self.steps[step].remove(one.source)
                del self.waiting[step]
                self.pending[step] = 0

    def wait_for_new(self, step: str, ms: float) -> None:
        self.waited_ms.append(ms)

    def stay(self, step: str) -> None:
        self.stayed.append(step)
        self.pending[step] = 0
        self.waiting.pop(step, None)


class Pretence:
    """A flow's control loop, and everything that it would receive."""

    def __init__(
        self,
        flow: FlowPlan,
        elastic: Elastic,
        settings: Settings | None = None,
        *,
        start_ms: float | None = None,
        together: int | None = None,
        warm_epochs: int = 5,
        sla: SLA | None = None,
        decides: bool = True,
    ) -> None:
        self.flow, self.now_ms, self.epoch, self.partitions = flow, 1e6, 0, PARTITIONS
        hosts = {step.id: [HostId(f"{step.id}/{n}") for n in range(2)] for step in flow.keyed}
        self.relocation = PretendedRelocation(hosts, lambda: self.now_ms, start_ms)
        self.plans: list[EpochPlan] = []
        self.started: list[PretendedStarted] = []
        self.broken = ""
        self.keeper = WorkerKeeper(self._bring_up)
        self.bill = Bill(
            HostPrice(per_hour=3.6),
            lambda: sum(map(len, self.relocation.steps.values())),
            lambda: self.keeper.used.money,
            lambda: self.now_ms,
        )
        self.loop = ControlLoop(
            flow,
            sla or SLA(1000, 1000),
            elastic,
            cast("Relocation", self.relocation),
            settings or Settings(),
            lambda: self.now_ms,
            keeper=None if elastic.functions is None else self.keeper,
            bill=self.bill,
            together=lambda: together,
            warm_epochs=warm_epochs,
            decides=decides,
        )
        self.steps = self.loop.machine.steps

    def _bring_up(self) -> PretendedStarted:
        if self.broken:
            raise RuntimeError(self.broken)
        self.started.append(PretendedStarted(len(self.started)))
        return self.started[-1]

    def start(self) -> None:
        """Start functions."""
        self.keeper.start()
        self.settle()

    def settle(self) -> None:
        """Wait until the keeper has carried out its orders."""
        self.keeper._worker.submit(lambda: None).result()

    def stop(self) -> None:
        self.loop.stop()
        self.keeper.stop()

    def steer(self, **changes: Any) -> dict[str, Any]:
        return self.loop.steer(Steering.of(**changes))

    # -- an epoch

    def begin(self, run: int = 0) -> EpochPlan:
        """Begin a run of the next epoch."""
        self.relocation.settle()
        orders = self.loop.orders(self.epoch, self.partitions, self.now_ms)
        steps = []
        for step in self.flow.keyed:
            owner = self.relocation.owner[step.id]
            hosts = tuple(dict.fromkeys(owner))
            table = RouteTable(hosts, np.array([hosts.index(host) for host in owner], np.int32))
            time = EpochTime(self.epoch, int(self.now_ms), None)
            offload = orders.offloads.get(step.id)
            ends = ("",) * len(hosts)
            steps.append(StepRoutes(StepId(step.id), table, ends, time, offload=offload))
        reach = self.loop.reach if orders.offloads else None
        maps = tuple((n, o) for n, o in orders.offloads.items() if n in orders.timed)
        plan = EpochPlan(
            self.epoch, run, self.partitions, tuple(steps), "", reach, maps, orders.timed
        )
        self.loop.begin(plan)
        self.plans.append(plan)
        return plan

    def planned(self, step: str, partitions: int = 1) -> Offload | None:
        """Rows that would go to functions if the last epoch began again."""
        return self.loop.orders(self.epoch - 1, partitions, self.now_ms).offloads.get(step)

    def seen(self, partitions: int = PARTITIONS) -> list[Seen]:
        """Reports of couriers: all partitions alike, each with `LOAD` for every step."""
        loads = {step.id: LOAD for step in self.flow.keyed}
        time = int(self.now_ms) - 50
        one = Seen(int(LOAD.sum()), (time,), (int(LOAD.sum()),), loads=loads)
        return [one] * partitions

    def report(self, partitions: int = PARTITIONS, seen: Sequence[Seen] | None = None) -> None:
        """Let couriers report, and wait until control has processed it."""
        self.loop.reported(self.seen(partitions) if seen is None else seen)
        self.loop._early.submit(lambda: None).result()

    def seal(self, plan: EpochPlan, useful_ms: dict[str, float] | None = None) -> None:
        """End the epoch a second after it began."""
        work = {
            host: (100, (useful_ms or {}).get(routes.step, 10.0))
            for routes in plan.steps
            for host in routes.routes.hosts
        }
        self.end(plan, self.seen(), work, self.now_ms + 1000)

    def end(
        self,
        plan: EpochPlan,
        seen: Sequence[Seen],
        work: dict[HostId, tuple[int, float]],
        done_ms: float,
        closed_ms: Mapping[HostId, dict[int, float]] | None = None,
    ) -> None:
        """End the epoch; `work` is rows and useful time of each host, `closed_ms` when it applied each
        channel."""
        self.now_ms = done_ms
        sealed = [
            SealedHost(
                host,
                (),
                HostVitals(
                    rows=rows,
                    useful_ms=ms,
                    entries=0,
                    state_bytes=0,
                    closed_ms=(closed_ms or {}).get(host, {}),
                ),
            )
            for host, (rows, ms) in work.items()
        ]
        self.loop.sealed(plan, seen, sealed, self.now_ms, self.now_ms)
        self.settle()
        self.epoch += 1

    def pass_epoch(self, useful_ms: dict[str, float] | None = None) -> None:
        plan = self.begin()
        self.report()
        self.seal(plan, useful_ms)

    # -- what came of it

    def vitals(self, step: str = "sums") -> Vitals:
        vitals = self.loop.machine.all_steps[step].vitals
        assert vitals is not None
        return vitals

    def entries(self, event: str) -> list[Entry]:
        return [entry for entry in self.loop.journal.last(10_000) if entry.event == event]

    def journalled(self, *events: str) -> list[tuple[str, int | None]]:
        """Pairs (event, epoch) of the journal, without decisions; only of these events, if any are named."""
        wanted = events or ("began", "done", "failed", "refused", "host lost")
        return [(e.event, e.epoch) for e in self.loop.journal.last(1000) if e.event in wanted]

    @property
    def scaled_out(self) -> bool:
        return any(one.kind == "scale_out" for one in self.relocation.treated)

    @property
    def money(self) -> Money:
        return self.bill.money


@contextmanager
def pretending(
    policy: Any,
    flow: FlowPlan = SUMS,
    settings: Settings | None = None,
    warm_epochs: int = 0,
    sla: SLA | None = None,
    decides: bool = True,
    **elastic: Any,
) -> Iterator[Pretence]:
    pretence = Pretence(
        *(flow, Elastic(policy, **elastic), settings),
        warm_epochs=warm_epochs,
        sla=sla,
        decides=decides,
    )
    try:
        yield pretence
    finally:
        pretence.stop()
