"""One step of a simulated run: its hosts, its control, and what it did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.control.examine.vitals import Floats
from penstock.control.journal.entry import Entry
from penstock.control.journal.journal import Journal
from penstock.control.money import Money, Spending
from penstock.control.step_control import StepControl
from penstock.control.treat.decision import Bounds, Policy, Treatment, is_new
from penstock.model import SLA, HostId, StepId
from penstock.offload.policy.offloader import Offloader
from penstock.offload.policy.reflexes import Came, Reflexes
from penstock.sim.epochs import Effort, Intake, Spent, complete, host_records
from penstock.sim.fleet import Fleet
from penstock.sim.functions import Pool
from penstock.sim.helped import Planned, helped
from penstock.sim.ledger import Ledger
from penstock.sim.outcome import Outcome
from penstock.sim.plane import Plane

Array = npt.NDArray[Any]


class Stage:
    """The shell of a `StepControl`: asks it when it is time, and does to the fleet what it says."""

    def __init__(
        self,
        step: StepId,
        ledger: Ledger,
        hosts: int,
        plane: Plane,
        random: np.random.Generator,
        policy: Policy | None,
        bounds: Bounds,
        control_ms: float,
        service_rate: float | None = None,
        warm_up_ms: float = 0.0,
        deadline_ms: float | None = None,
    ) -> None:
        """Without a policy nothing is examined and nothing changes.

        Where the plane has functions, they work off what waits within `deadline_ms` (None: the
        window of the SLA).
        """
        self.step, self.ledger, self.plane = step, ledger, plane
        self.fleet = Fleet(step, ledger.arrived.shape[1], hosts, plane, random, service_rate)
        ledger.note_hosts(hosts, 0.0)
        self.entries: list[Entry] = []
        self._random, self._bounds, self._warm_up_ms = random, bounds, warm_up_ms
        self._kinds: Counter[str] = Counter()
        self._decide_s: list[float] = []
        self.control: StepControl | None = None
        if policy is not None:
            journal = Journal(sink=self.entries.append)
            self.control = StepControl(
                step, self.fleet.owner.size, policy, bounds, journal=journal, delta_ms=control_ms
            )
        self._pool: Pool | None = None
        self._reflexes = Reflexes()
        self._spending, self._rows = Spending(plane.host_price), 0
        self._spending.note(0.0, hosts)
        self._effort: Effort | None = None
        """Of the epoch that is going on."""
        if self.control is not None and plane.functions is not None:
            rate = plane.service_rate if service_rate is None else service_rate
            self._pool = Pool(plane.functions, rate)
            settings = plane.functions.settings(plane.host_price, deadline_ms)
            self.control.offloader = Offloader(settings)

    @property
    def bounds(self) -> Bounds:
        return self._bounds

    @bounds.setter
    def bounds(self, bounds: Bounds) -> None:
        self._bounds = bounds
        if self.control is not None:
            self.control.bounds = bounds

    def sample(self, m: int, arrived: Array, completed: Array, measured_ms: Array) -> None:
        """Time slot m of control has ended: examine what has arrived and completed by now."""
        assert self.control is not None
        fleet = self.fleet
        silent: frozenset[HostId] = frozenset()
        if self.plane.lost_samples > 0:
            lost = self._random.random(len(fleet.hosts)) < self.plane.lost_samples
            silent = frozenset(host for host, gone in zip(fleet.hosts, lost, strict=True) if gone)
            arrived, completed = (
                np.where(lost[fleet.owner], -1.0, values) for values in (arrived, completed)
            )
        self.control.examiner.sample(
            m, arrived, completed, fleet.owner, fleet.hosts, fleet.work(silent), measured_ms
        )

    def begin_epoch(self, intake: Intake, began_ms: float) -> Effort:
        """An epoch begins with what has arrived: share its work out, as was decided before it."""
        planned = None if self.control is None else self._planned(self.control, intake)
        if self._pool is None or planned is None:
            records = host_records(self.fleet, intake)
            self._effort = Effort.of_hosts(self.fleet, records, began_ms)
        else:
            self._effort = helped(self.fleet, self._pool, intake, planned, began_ms)
        return self._effort

    def _planned(self, control: StepControl, intake: Intake) -> Planned | None:
        """What functions get of an epoch: as was decided, or more, as couriers react."""
        found, offloader, vitals = control.offloading, control.offloader, control.vitals
        if found is None or offloader is None or vitals is None:
            return None
        part = self._bounds.time
        reflex = self._reflexes.reflex(vitals, offloader.limits, part, found.merge)
        return Planned.of(found, reflex, int(intake.records.sum()))

    def read_epoch(self, intake: Intake, began_ms: float, cost_ms: float, epoch: int) -> None:
        """An epoch has begun, and it is known what it brings: if that is too much, act early."""
        if self.control is None:
            return
        # Control counts time slots by their ends, from 1.
        self.control.examiner.arriving(began_ms, intake.records, intake.first + 1)
        vitals = self.control.vitals
        if self._busy:
            self._help(began_ms, cost_ms, epoch)
            return
        if vitals is None or vitals.hosts != self.fleet.hosts:
            return
        assert self._effort is not None
        age_ms = intake.age_ms(began_ms)
        expected_ms = age_ms + cost_ms + self._effort.records * 1000.0 / vitals.service_rate
        self._ask(began_ms, cost_ms, epoch, expected_ms)

    def end_epoch(self, intake: Intake, began_ms: float, done_ms: float, spent: Spent) -> None:
        """An epoch that took what had arrived when it began is done: enter it, and examine it."""
        complete(self.ledger, intake, done_ms, spent)
        fleet, effort, self._effort = self.fleet, self._effort, None
        assert effort is not None
        most_ms = float((effort.records * 1000.0 / fleet.service_rate).max())
        self.ledger.note_epoch(began_ms, done_ms, most_ms, effort.functions, effort.money)
        if self.control is None:
            return
        self._merge(effort, intake)
        fleet.worked += effort.records
        self.control.examiner.epoch(
            done_ms,
            began_ms,
            None,
            intake.first + 1,
            intake.records.sum(axis=0),
            fleet.owner,
            fleet.hosts,
            fleet.work(),
            (done_ms - intake.arrival_ms) @ intake.records,
        )

    def decide(self, now_ms: float, epoch_cost_ms: float = 0.0, epoch: int | None = None) -> None:
        """Slots may move now: carry on with what is under way; if nothing is, ask what to do."""
        if self.control is None:
            return
        if self.fleet.treating:
            self._settle(now_ms, epoch)
        if self._busy:
            self._help(now_ms, epoch_cost_ms, epoch)
        elif self._ask(now_ms, epoch_cost_ms, epoch):
            self._settle(now_ms, epoch)
        if self._pool is not None and self.control.offloading is not None:
            self._pool.keep(now_ms, self.control.offloading.warm)

    @property
    def _busy(self) -> bool:
        """Whether treatments are under way that must not be changed."""
        return self.fleet.treating and not (self.plane.revises and self.fleet.waits)

    def _help(self, now_ms: float, epoch_cost_ms: float, epoch: int | None) -> None:
        """While treatments are under way functions can still be given more or less."""
        if self._pool is not None and self.control is not None:
            fleet, money = self.fleet, self._spent(now_ms)
            self.control.help(now_ms, fleet.hosts, fleet.owner, epoch_cost_ms, epoch, money)

    def _merge(self, effort: Effort, intake: Intake) -> None:
        """Tell the policy what came, and what became of the rows that went to functions."""
        if self._pool is None or self.control is None or self.control.offloader is None:
            return
        self._rows += effort.rows
        rows = int(intake.records.sum())
        self._reflexes.note(Came([rows], float(rows), combined=False))
        self.control.offloader.merged(effort.rows, round(effort.partials))

    def _ask(
        self,
        now_ms: float,
        epoch_cost_ms: float,
        epoch: int | None,
        expected_ms: Floats | None = None,
    ) -> bool:
        """Ask what to do, and begin it. Whether there is anything."""
        assert self.control is not None
        fleet, began, pool = self.fleet, perf_counter(), self._pool
        decision = self.control.decide(
            now_ms,
            fleet.hosts,
            fleet.owner,
            epoch_cost_ms,
            epoch,
            expected_ms,
            revise=fleet.treating,
            functions=pool is not None,
            money=None if pool is None else self._spent(now_ms),
        )
        self._decide_s.append(perf_counter() - began)
        if decision is None or not decision.treatments:
            return False
        if fleet.treating and not fleet.coming < new_hosts(decision.treatments):
            return False
        self._kinds.update(treatment.kind for treatment in decision.treatments)
        self.control.began(fleet.begin(decision.treatments, now_ms), now_ms, epoch)
        self.ledger.note_hosts(fleet.size, now_ms)
        self._spent(now_ms)
        return True

    def _settle(self, now_ms: float, epoch: int | None) -> None:
        assert self.control is not None
        before = self.fleet.hosts
        if self.fleet.settle(now_ms):
            self.control.completed(now_ms, self.fleet.hosts, epoch)
        for host in before:
            if host not in self.fleet.hosts:
                self.control.examiner.forget_host(host)
        self.ledger.note_hosts(self.fleet.size, now_ms)
        self._spent(now_ms)

    def _spent(self, now_ms: float) -> Money:
        """So far. Asked whenever the number of hosts may change."""
        functions = 0.0 if self._pool is None else self._pool.usage.money
        self._spending.note(now_ms, self.fleet.size, functions)
        return self._spending.money

    def outcome(self) -> Outcome:
        """What the step did; judged without the time to warm up."""
        end_ms = len(self.ledger.arrived) * self.ledger.delta_ms
        first = round(self._warm_up_ms / self.ledger.delta_ms)
        ledger, times = self.ledger, self._decide_s
        return Outcome(
            step=self.step,
            success_by_slot=ledger.success(own_bound(self._bounds), first),
            hosts=ledger.average_hosts(self._warm_up_ms),
            treatments={kind: self._kinds[kind] for kind in ("scale_out", "scale_in", "balance")},
            arrived=round(float(ledger.arrived.sum(dtype=np.float64))),
            completed=float(ledger.completed.sum()),
            series=ledger.series(),
            journal=tuple(self.entries),
            decisions=len(times),
            decide_us=1e6 * float(np.mean(times)) if times else 0.0,
            decide_worst_us=1e6 * max(times, default=0.0),
            money=Money(
                self.plane.host_price.money(ledger.average_hosts() * end_ms / 1000.0),
                0.0 if self._pool is None else self._pool.usage.money,
            ),
            used=None if self._pool is None else self._pool.usage,
            function_rows=self._rows,
        )


def new_hosts(treatments: Sequence[Treatment]) -> int:
    """That these ask for."""
    return len({one.target for one in treatments if is_new(one.target)})


def own_bound(bounds: Bounds) -> SLA:
    """The step's part of an end-to-end bound."""
    return SLA(round(bounds.latency_ms), bounds.sla.window_ms)
