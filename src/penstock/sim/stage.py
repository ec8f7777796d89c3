"""One step of a simulated run: its hosts, its control, and what it did."""

from __future__ import annotations

from collections import Counter
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.control.controller import StepControl
from penstock.control.decision import Bounds, Policy
from penstock.control.entry import Entry
from penstock.control.journal import Journal
from penstock.control.vitals import Floats
from penstock.model import SLA, HostId, StepId
from penstock.sim.epochs import Intake, Spent, complete, host_records
from penstock.sim.fleet import Fleet
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
    ) -> None:
        """Without a policy nothing is examined and nothing changes."""
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

    def read_epoch(self, intake: Intake, began_ms: float, cost_ms: float, epoch: int) -> None:
        """An epoch has begun, and it is known what it brings: if that is too much, act early."""
        if self.control is None:
            return
        # Control counts time slots by their ends, from 1.
        self.control.examiner.arriving(began_ms, intake.records, intake.first + 1)
        vitals = self.control.vitals
        if self.fleet.treating or vitals is None or vitals.hosts != self.fleet.hosts:
            return
        records = host_records(self.fleet, intake)
        age_ms = intake.age_ms(began_ms)
        expected_ms = age_ms + cost_ms + records * 1000.0 / vitals.service_rate
        self._ask(began_ms, cost_ms, epoch, expected_ms)

    def end_epoch(self, intake: Intake, began_ms: float, done_ms: float, spent: Spent) -> None:
        """An epoch that took what had arrived when it began is done: enter it, and examine it."""
        complete(self.ledger, intake, done_ms, spent)
        if self.control is None:
            return
        fleet = self.fleet
        fleet.worked += host_records(fleet, intake)
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
        if not self.fleet.treating and self._ask(now_ms, epoch_cost_ms, epoch):
            self._settle(now_ms, epoch)

    def _ask(
        self,
        now_ms: float,
        epoch_cost_ms: float,
        epoch: int | None,
        expected_ms: Floats | None = None,
    ) -> bool:
        """Ask what to do, and begin it. Whether there is anything."""
        assert self.control is not None
        fleet, began = self.fleet, perf_counter()
        decision = self.control.decide(
            now_ms, fleet.hosts, fleet.owner, epoch_cost_ms, epoch, expected_ms
        )
        self._decide_s.append(perf_counter() - began)
        if decision is None or not decision.treatments:
            return False
        self._kinds.update(treatment.kind for treatment in decision.treatments)
        self.control.began(fleet.begin(decision.treatments, now_ms), now_ms, epoch)
        self.ledger.note_hosts(fleet.size, now_ms)
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

    def outcome(self) -> Outcome:
        """What the step did; judged without the time to warm up."""
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
        )


def own_bound(bounds: Bounds) -> SLA:
    """The step's part of an end-to-end bound."""
    return SLA(round(bounds.latency_ms), bounds.sla.window_ms)
