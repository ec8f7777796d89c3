"""The control plane of a running flow: examines each epoch, decides, and has it carried out.

An epoch is looked at twice. When its couriers have told what they read, the hosts still work on it:
if that is more than they can take, new hosts are started at once and are there, or nearly so, when the
epoch ends. When it is sealed, what it took is known too. Treatments take effect at the next boundary.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np

from penstock.config import Settings
from penstock.control.controller import StepControl
from penstock.control.decision import Treatment
from penstock.control.elastic import Elastic
from penstock.control.entries import host_lost, refused, setting
from penstock.control.entry import Entry
from penstock.control.epoch_cost import EpochCost
from penstock.control.hot_keys import HotKeys
from penstock.control.journal import Journal
from penstock.control.patience import patience_ms
from penstock.control.sharing import Sharing
from penstock.control.vitals import Floats, Work
from penstock.courier.witness import Seen
from penstock.driver.arrivals import Arrivals, arrivals_of
from penstock.driver.control_view import control_facts
from penstock.driver.fleet import SealedHost
from penstock.driver.relocation import Relocation
from penstock.errors import PenstockError
from penstock.model import SLA, HostId, StepId, milliseconds
from penstock.plan.epoch import EpochPlan, StepRoutes
from penstock.plan.steps import KeyedStep

_WARM_EPOCHS = 5
"""The first epochs of a start pay for what is loaded and compiled: nothing is decided on them."""
_USUAL_START_MS = 500.0
"""From a decision until a new host works, before that was ever measured."""


class ControlLoop:
    """Control of all keyed steps of a started flow. Safe to use from any thread."""

    def __init__(
        self,
        steps: Sequence[KeyedStep],
        sla: SLA,
        elastic: Elastic,
        relocation: Relocation,
        settings: Settings,
        clock_ms: Callable[[], float],
        sink: Callable[[Entry], None] | None = None,
    ) -> None:
        self._relocation, self._settings, self._clock_ms = relocation, settings, clock_ms
        self.sla, self.elastic = sla, elastic
        self.journal = Journal(sink=sink)
        self._sharing = Sharing([StepId(step.id) for step in steps])
        self._delta_ms = float(milliseconds(elastic.delta))
        self._slots = {step.id: step.slots for step in steps}
        self._controls = {
            step.id: StepControl(
                StepId(step.id),
                step.slots,
                elastic.make_policy(),
                elastic.bounds(sla),
                journal=self.journal,
                delta_ms=self._delta_ms,
                dry_run=elastic.dry_run,
                merges=step.plan.merges,
            )
            for step in steps
        }
        self._set_bounds()
        self._cost = EpochCost()
        self._start_ms = _USUAL_START_MS
        self._asked = dict[str, int]()
        """step -> slots that its newest treatment moves."""
        self._epochs = 0
        self._stuck: dict[str, tuple[int, float]] = {}
        """step -> slots that are not where they should be, and since when it is just so many."""
        self._plan: EpochPlan | None = None
        self._started_ms = self._since_ms = clock_ms()
        self._read_epoch = -1
        self._arrivals: dict[str, Arrivals] = {}
        self._lock = threading.RLock()
        self._early = ThreadPoolExecutor(1, thread_name_prefix="control")
        relocation.on_lost = self._lost

    # -- an epoch passes

    def begin(self, plan: EpochPlan, started_ms: float) -> None:
        """A run of an epoch begins."""
        with self._lock:
            if self._plan is None or self._plan.epoch != plan.epoch:
                self._since_ms, self._started_ms = self._started_ms, started_ms
            self._plan = plan

    def wait_for_hosts(self) -> None:
        """Before an epoch begins: wait for new hosts, where that is quicker than doing without."""
        with self._lock:
            now_ms = self._clock_ms()
            worth = {
                step: patience_ms(control.treating, self._started_ms, now_ms, self._start_ms)
                for step, control in self._controls.items()
            }
        for step, ms in worth.items():
            if ms > 0:
                self._relocation.wait_for_new(step, ms)

    def reported(self, seen: Sequence[Seen]) -> None:
        """So far these couriers of the run have told what they read; returns at once."""
        plan = self._plan
        if plan is not None and len(seen) == plan.partitions:
            self._early.submit(self._look_early, plan, list(seen))

    def _look_early(self, plan: EpochPlan, seen: Sequence[Seen]) -> None:
        with self._lock:
            if plan is not self._plan or self._read_epoch >= plan.epoch:
                return
            self._take_in(plan, seen)
            for routes in plan.steps:
                self._decide(routes, plan.epoch, expected=True)

    def sealed(
        self,
        plan: EpochPlan,
        seen: Sequence[Seen],
        sealed: Sequence[SealedHost],
        written_ms: float,
        done_ms: float,
    ) -> None:
        """An epoch is in the sink since `written_ms`, and durable."""
        with self._lock:
            if self._read_epoch < plan.epoch:
                self._take_in(plan, seen)
            vitals = {one.host: one.vitals for one in sealed}
            spent = dict[str, float]()
            for routes in plan.steps:
                hosts = routes.routes.hosts
                work = {h: Work(vitals[h].rows, vitals[h].useful_ms) for h in hosts if h in vitals}
                spent[routes.step] = max((w.useful_ms for w in work.values()), default=0.0)
                arrivals = self._arrivals[routes.step]
                self._controls[routes.step].examiner.epoch(
                    written_ms,
                    arrivals.horizon_ms,
                    None,
                    arrivals.first_m,
                    arrivals.by_slot,
                    routes.routes.owner,
                    hosts,
                    work,
                    arrivals.waited_ms + arrivals.by_slot * (written_ms - self._started_ms),
                )
            self._cost.note(self._started_ms, done_ms, sum(spent.values()))
            self._epochs += 1
            self._share(plan, spent, written_ms)
            for routes in plan.steps:
                self._notice_end(routes.step, plan.epoch)
                self._decide(routes, plan.epoch)
                counts = [count for task in seen for count in task.hot]
                load = self._arrivals[routes.step].by_slot.astype(np.int64)
                self._controls[routes.step].find_hot_keys(counts, load, plan.epoch)

    def stop(self) -> None:
        """No more epochs will come."""
        self._early.shutdown()

    def _take_in(self, plan: EpochPlan, seen: Sequence[Seen]) -> None:
        for routes in plan.steps:
            arrivals = self._arrivals[routes.step] = arrivals_of(
                routes.step,
                self._slots[routes.step],
                seen,
                self._delta_ms,
                self._since_ms,
                self._started_ms,
            )
            examiner = self._controls[routes.step].examiner
            examiner.arriving(arrivals.horizon_ms, arrivals.counts, arrivals.first_m)
        self._read_epoch = plan.epoch

    # -- decisions

    def _decide(self, routes: StepRoutes, epoch: int, expected: bool = False) -> None:
        """Look at a step and begin what is decided, unless something is under way there."""
        step = routes.step
        control, pending = self._controls[step], self._relocation.pending_of(step)
        # Hosts that are still coming up have been given nothing: more of them can be asked for.
        treating = control.treating
        grows = treating is not None and treating.grows
        revise = grows and 0 < pending == self._asked.get(step)
        if (pending and not revise) or self._epochs < _WARM_EPOCHS:
            return
        hosts, owner = self._places(step, routes)
        expected_ms = self._expected(step, hosts, owner) if expected else None
        now_ms = self._clock_ms()
        try:
            decision = control.decide(
                now_ms, hosts, owner, self._cost.ms, epoch, expected_ms, revise
            )
        except Exception as error:
            # A policy may be the user's own. Its trouble is no reason to end the flow.
            why = f"deciding failed: {error!r}"
            self.journal.add(refused(control.step, now_ms, why, epoch=epoch))
            return
        if decision is not None and decision.treatments and not self.elastic.dry_run:
            self._treat(control, decision.treatments, epoch)

    def _places(self, step: str, routes: StepRoutes) -> tuple[tuple[HostId, ...], Any]:
        """All hosts of a step, also those that own nothing, and the owner of each slot."""
        idle = [host for host in self._relocation.hosts(step) if host not in routes.routes.hosts]
        return (*routes.routes.hosts, *idle), routes.routes.owner

    def _expected(self, step: str, hosts: Sequence[HostId], owner: Any) -> Floats | None:
        """Per host: the latency that the epoch under way will have, if that host alone worked."""
        vitals, arrivals = self._controls[step].vitals, self._arrivals[step]
        if vitals is None or vitals.hosts != tuple(hosts):
            return None
        records = np.bincount(owner, arrivals.by_slot, len(hosts))
        work_ms = 1000 * records / vitals.service_rate
        return np.asarray(arrivals.age_ms + self._cost.ms + work_ms)

    def _treat(self, control: StepControl, treatments: Sequence[Treatment], epoch: int) -> None:
        try:
            names = self._relocation.treat(control.step, treatments)
        except PenstockError as error:
            why = str(error)
            wanted = "; ".join(str(treatment) for treatment in treatments)
            now_ms = self._clock_ms()
            self.journal.add(refused(control.step, now_ms, why, wanted=wanted, epoch=epoch))
            return
        self._asked[control.step] = self._relocation.pending_of(control.step)
        for host in names.values():
            control.examiner.forget_host(host)  # one of this name may have been there before
        named = [
            replace(t, source=names.get(t.source, t.source), target=names.get(t.target, t.target))
            for t in treatments
        ]
        control.began(named, self._clock_ms(), epoch)

    def _notice_end(self, step: str, epoch: int) -> None:
        """See whether a treatment is in force by now, or will never be.

        That is so if no slot has moved for as long as a host may take to come up. The same goes for
        slots of a host that died: nothing could be decided while they wait for it.
        """
        control, now_ms = self._controls[step], self._clock_ms()
        pending = self._relocation.pending_of(step)
        if not pending:
            self._stuck.pop(step, None)
            if control.treating is not None and control.treating.grows:
                self._start_ms += (now_ms - control.treating.since_ms - self._start_ms) / 4
            control.completed(now_ms, self._relocation.hosts(step), epoch)
            return
        slots, since_ms = self._stuck.get(step, (0, now_ms))
        if slots != pending:
            self._stuck[step] = (pending, now_ms)
        elif now_ms - since_ms > self._settings.host_start_ms:
            del self._stuck[step]
            self._relocation.stay(step)
            why = "a host did not come up in time"
            if control.treating is None:
                wanted = f"{pending} slots on another host"
                self.journal.add(refused(control.step, now_ms, why, wanted=wanted, epoch=epoch))
            control.failed(why, now_ms, epoch)

    def _lost(self, host: HostId, step: str, slots: Sequence[int], epoch: int) -> None:
        with self._lock:
            control = self._controls[step]
            control.examiner.forget_host(host)
            why = "it died; others take its slots"
            if host in self._relocation.hosts(step):
                why += ", and it is started again"
            now_ms = self._clock_ms()
            self.journal.add(host_lost(control.step, now_ms, host, slots, why, epoch=epoch))

    def hot_keys(self, step: str) -> HotKeys:
        """The keys of a step that are too much for a host, and what couriers shall do about them."""
        return self._controls[step].hot

    # -- an end-to-end bound over several steps

    def _share(self, plan: EpochPlan, spent_ms: dict[str, float], written_ms: float) -> None:
        """Note how the steps did; now and then their shares are moved."""
        latency_ms = self._arrivals[plan.steps[0].step].age_ms + written_ms - self._started_ms
        changed = self._sharing.note(spent_ms, latency_ms, self.sla.latency_ms)
        if changed:
            self._set_bounds()
        for step, (old, new) in changed.items():
            now_ms = self._clock_ms()
            self.journal.add(setting(step, now_ms, "share", round(old, 3), round(new, 3)))

    def _set_bounds(self) -> None:
        for step, control in self._controls.items():
            share = self._sharing.shares[StepId(step)]
            # Latency is measured from arrival to sink, so the alert is not shared.
            alert_ms = self.elastic.bounds(self.sla).alert_ms
            control.bounds = replace(self.elastic.bounds(self.sla, share), alert=alert_ms / share)

    # -- from outside

    def steer(self, sla: SLA | None = None, **changes: Any) -> dict[str, Any]:
        """Change the SLA or settings of `Elastic` from the next decision on; tells what holds now."""
        with self._lock:
            before, old_sla = self.elastic, self.sla
            wanted = before.changed(**changes)
            wanted.bounds(sla or old_sla)  # raises if they cannot be
            self.elastic, self.sla = wanted, sla or old_sla
            for control in self._controls.values():
                if self.elastic.policy != before.policy:
                    control.policy = self.elastic.make_policy()
                control.dry_run = self.elastic.dry_run
            self._set_bounds()
            self._tell_changes(old_sla, before)
            return self.facts()

    def _tell_changes(self, sla: SLA, before: Elastic) -> None:
        changed = [("sla", str(sla), str(self.sla))]
        for name in ("policy_text", "at_least", "at_most", "margin", "alert", "dry_run"):
            old, new = getattr(before, name), getattr(self.elastic, name)
            changed.append((name.removesuffix("_text"), old, new))
        for name, old, new in changed:
            if old != new:
                for step in self._controls:
                    self.journal.add(setting(StepId(step), self._clock_ms(), name, old, new))

    def facts(self) -> dict[str, Any]:
        """What is known and in force, as JSON values."""
        with self._lock:
            return control_facts(self.sla, self.elastic, self._controls)
