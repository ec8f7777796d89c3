"""A flow's control with a data plane that only pretends, for tests of the loop between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from penstock.control.elastic import Elastic
from penstock.control.examine.vitals import Vitals
from penstock.control.treat.decision import Treatment, is_new
from penstock.driver.control_loop import ControlLoop
from penstock.driver.fleet import SealedHost
from penstock.driver.relocation import Relocation
from penstock.errors import SettingError
from penstock.host.vitals import HostVitals
from penstock.model import SLA, HostId, StepId
from penstock.operators.operator import EpochTime
from penstock.plan.epoch import EpochPlan, RouteTable, StepRoutes
from penstock.plan.steps import FlowPlan
from penstock.settings import Settings
from penstock.state.store.store import DeltaRef
from penstock.wire.report import Seen
from tests.trials.ledger import SLOTS, SUMS

PARTITIONS = 2
LOAD = np.arange(1, SLOTS + 1)


@dataclass
class PretendedRelocation:
    """Notes what it is asked; slots are on their way until the test says otherwise."""

    steps: dict[str, list[HostId]]
    pending: dict[str, int] = field(default_factory=dict)
    treated: list[Treatment] = field(default_factory=list)
    stayed: list[str] = field(default_factory=list)
    refuses: str = ""

    def hosts(self, step: str) -> list[HostId]:
        return list(self.steps[step])

    def pending_of(self, step: str) -> int:
        return self.pending.get(step, 0)

    def treat(self, step: str, treatments: Sequence[Treatment]) -> dict[HostId, HostId]:
        if self.refuses:
            raise SettingError(self.refuses, hint="ask for something else")
        self.treated += treatments
        self.pending[step] = sum(len(one.slots) for one in treatments)
        new = [one.target for one in treatments if is_new(one.target)]
        names = {host: HostId(f"{step}/{number}") for number, host in enumerate(new, 7)}
        self.steps[step] += names.values()
        return names

    def stay(self, step: str) -> None:
        self.stayed.append(step)
        self.pending[step] = 0


class Pretence:
    """A flow's control, and everything that it would be told."""

    def __init__(self, flow: FlowPlan, elastic: Elastic, settings: Settings) -> None:
        self.flow, self.now_ms, self.epoch = flow, 10_000.0, 0
        hosts = {step.id: [HostId(f"{step.id}/{n}") for n in range(2)] for step in flow.keyed}
        self.relocation = PretendedRelocation(hosts)
        self.loop = ControlLoop(
            flow.keyed,
            SLA(1000, 1000),
            elastic,
            cast("Relocation", self.relocation),
            settings,
            lambda: self.now_ms,
        )

    def plan(self, run: int = 0) -> EpochPlan:
        steps = tuple(
            StepRoutes(
                StepId(step.id),
                RouteTable.even(self.relocation.hosts(step.id)[:2], SLOTS),
                ("", ""),
                EpochTime(self.epoch, int(self.now_ms), None),
            )
            for step in self.flow.keyed
        )
        return EpochPlan(self.epoch, run, PARTITIONS, steps, "", "")

    def seen(self, partitions: int = PARTITIONS) -> list[Seen]:
        """What couriers report: all partitions alike, each with `LOAD` for every step."""
        loads = {step.id: LOAD for step in self.flow.keyed}
        time = int(self.now_ms) - 50
        one = Seen(int(LOAD.sum()), (time,), (int(LOAD.sum()),), loads=loads)
        return [one] * partitions

    def begin(self, run: int = 0) -> EpochPlan:
        plan = self.plan(run)
        self.loop.begin(plan, self.now_ms)
        return plan

    def report(self, partitions: int = PARTITIONS) -> None:
        """Couriers report; when this returns, it has been looked at."""
        self.loop.reported(self.seen(partitions))
        self.loop._early.submit(lambda: None).result()

    def seal(self, plan: EpochPlan, useful_ms: dict[str, float] | None = None) -> None:
        """The epoch is done, a second after it began."""
        seen = self.seen()
        self.now_ms += 1000
        sealed = [
            SealedHost(
                host,
                cast("DeltaRef", None),
                HostVitals(
                    rows=100,
                    useful_ms=(useful_ms or {}).get(routes.step, 10.0),
                    entries=0,
                    state_bytes=0,
                ),
            )
            for routes in plan.steps
            for host in routes.routes.hosts
        ]
        self.loop.sealed(plan, seen, sealed, self.now_ms, self.now_ms)
        self.epoch += 1

    def pass_epoch(self, useful_ms: dict[str, float] | None = None) -> None:
        plan = self.begin()
        self.report()
        self.seal(plan, useful_ms)

    def vitals(self, step: str = "sums") -> Vitals:
        vitals = self.loop._controls[step].vitals
        assert vitals is not None
        return vitals

    def told(self, *events: str) -> list[tuple[str, int | None]]:
        """Events of the journal and their epochs, without decisions; only these, if any are named."""
        wanted = events or ("began", "done", "failed", "refused", "host lost")
        return [(e.event, e.epoch) for e in self.loop.journal.last(1000) if e.event in wanted]


@contextmanager
def pretending(
    policy: Any, flow: FlowPlan = SUMS, settings: Settings | None = None, **elastic: Any
) -> Iterator[Pretence]:
    pretence = Pretence(flow, Elastic(policy, **elastic), settings or Settings())
    try:
        yield pretence
    finally:
        pretence.loop.stop()
