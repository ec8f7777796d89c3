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

from penstock.control.diagnose.hot_keys import HotKeys
from penstock.control.elastic import Elastic
from penstock.control.examine.epoch_cost import EpochCost
from penstock.control.examine.epoch_times import EpochTimes
from penstock.control.examine.vitals import Floats, Work
from penstock.control.journal.entries import host_lost, refused, setting
from penstock.control.journal.entry import Entry
from penstock.control.journal.journal import Journal
from penstock.control.money import Money
from penstock.control.step_control import StepControl
from penstock.control.treat.decision import Decision
from penstock.control.treat.sharing import Sharing
from penstock.driver.arrivals import Arrivals, arrivals_of
from penstock.driver.bill import Bill
from penstock.driver.control_view import control_facts
from penstock.driver.fleet import SealedHost
from penstock.driver.relocation import LostHost, Relocation
from penstock.driver.treatments import Treatments
from penstock.model import SLA, HostId, StepId, milliseconds
from penstock.offload.driver.help import Offloads
from penstock.offload.driver.stateless import MapControls
from penstock.plan.epoch import EpochPlan, Offload, StepRoutes
from penstock.plan.steps import KeyedStep
from penstock.settings import Settings
from penstock.wire.report import Seen

_WARM_EPOCHS = 5
"""The first epochs of a start pay for what is loaded and compiled: nothing is decided on them."""
_STEERED = (
    "policy_text",
    "at_least",
    "at_most",
    "margin",
    "alert",
    "dry_run",
    "functions_at_most",
    "patience",
)
_ONLY_TOLD = "a dry run begins or ends: hosts have all rows"


class ControlLoop:
    """Control of a started flow: of all its keyed steps, and of stateless ones that functions can help.
    Safe to use from any thread."""

    def __init__(
        self,
        steps: Sequence[KeyedStep],
        sla: SLA,
        elastic: Elastic,
        relocation: Relocation,
        settings: Settings,
        clock_ms: Callable[[], float],
        sink: Callable[[Entry], None] | None = None,
        offloads: Offloads | None = None,
        bill: Bill | None = None,
    ) -> None:
        self._relocation, self._clock_ms = relocation, clock_ms
        self.sla, self.elastic = sla, elastic
        self._offloads, self._bill = offloads, bill
        self.journal = Journal(sink=sink)
        self._times = EpochTimes()
        self._sharing = Sharing([StepId(step.id) for step in steps]) if steps else None
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
        self._maps = MapControls(
            () if offloads is None else offloads.maps,
            len(steps),
            elastic.bounds(sla),
            self.journal,
            self._delta_ms,
            elastic.dry_run,
        )
        self._all: dict[str, StepControl] = {**self._controls, **self._maps.controls}
        self._set_bounds()
        if offloads is not None:
            offloads.install(self._all, elastic, sla)
        self._cost = EpochCost()
        self._treatments = Treatments(relocation, settings.host_start_ms, clock_ms)
        self._epochs = 0
        self._plan: EpochPlan | None = None
        self._started_ms = self._since_ms = clock_ms()
        self._read_epoch = -1
        self._arrivals: dict[str, Arrivals] = {}
        self._lock = threading.RLock()
        self._early = ThreadPoolExecutor(1, thread_name_prefix="control")
        for name, why in (offloads.whole if offloads else {}).items():
            self.journal.add(refused(StepId(name), clock_ms(), why, wanted="functions"))

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
            worth = {
                step: self._treatments.worth_waiting_ms(control, self._started_ms)
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
            waited = dict[str, float]()
            if self._offloads is not None:
                now_ms = self._clock_ms()
                waited = self._offloads.take_in(self._all, plan, seen, now_ms)
            vitals = {one.host: one.vitals for one in sealed}
            spent = dict[str, float]()
            for routes in plan.steps:
                hosts = routes.routes.hosts
                work = {h: Work(vitals[h].rows, vitals[h].useful_ms) for h in hosts if h in vitals}
                useful_ms = max((w.useful_ms for w in work.values()), default=0.0)
                spent[routes.step] = max(useful_ms, waited.get(routes.step, 0.0))
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
            together = None if self._offloads is None else self._offloads.together()
            times = self._since_ms, self._started_ms, written_ms
            mapped = self._maps.take_in(plan, seen, *times, together)
            longest = (max(ms, waited.get(name, 0.0)) for name, ms in mapped.items())
            if waited and self._cost.ms > 0:
                self._cost.skip(done_ms)
            else:
                self._cost.note(self._started_ms, done_ms, sum(spent.values()) + sum(longest))
            self._warm_up(plan, sum(task.rows for task in seen))
            self._share(plan, spent, written_ms)
            for routes in plan.steps:
                self._treatments.notice_end(self._controls[routes.step], plan.epoch)
                self._decide(routes, plan.epoch)
                counts = [count for task in seen for count in task.hot]
                load = self._arrivals[routes.step].by_slot.astype(np.int64)
                self._controls[routes.step].find_hot_keys(counts, load, plan.epoch)
            for name in mapped:
                control = self._maps.controls[name]
                self._ask(control, control.couriers, control.owner, plan.epoch)
            if self._offloads is not None and not self.elastic.dry_run:
                self._offloads.keep_warm(self._all)

    def stop(self) -> None:
        """No more epochs will come."""
        self._early.shutdown()

    def _warm_up(self, plan: EpochPlan, rows: int) -> None:
        """An epoch is done. The first ones that have rows say nothing about what hosts can take."""
        self._epochs += rows > 0
        if rows > 0 and self._epochs == _WARM_EPOCHS:
            for routes in plan.steps:
                self._controls[routes.step].examiner.forget_rates()

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
        revise = self._treatments.may_revise(control)
        hosts, owner = self._places(step, routes)
        if pending and not revise:
            self._help(control, hosts, owner, epoch)
            return
        expected_ms = self._expected(routes, hosts, owner) if expected else None
        decision = self._ask(control, hosts, owner, epoch, expected_ms, revise)
        if decision is not None and decision.treatments and not self.elastic.dry_run:
            self._treatments.begin(control, decision.treatments, epoch)

    def _help(self, control: StepControl, hosts: Sequence[HostId], owner: Any, epoch: int) -> None:
        """Slots are on their way to other hosts: functions may be of use until they are there."""
        now_ms = self._clock_ms()
        if self._offloads is None or self._epochs < _WARM_EPOCHS or self.elastic.dry_run:
            return
        if not self._offloads.not_usable(now_ms):
            control.help(now_ms, hosts, owner, self._cost.ms, epoch, self.money)

    def _ask(
        self,
        control: StepControl,
        hosts: Sequence[HostId],
        owner: Any,
        epoch: int,
        expected_ms: Floats | None = None,
        revise: bool = False,
    ) -> Decision | None:
        """What is decided of a step, if anything is."""
        if self._epochs < _WARM_EPOCHS:
            return None
        now_ms = self._clock_ms()
        try:
            return control.decide(
                now_ms,
                hosts,
                owner,
                self._cost.ms,
                epoch,
                expected_ms,
                revise,
                functions=self._offloads is not None and not self._offloads.not_usable(now_ms),
                money=self.money,
            )
        except Exception as error:
            # A policy may be the user's own. Its trouble is no reason to end the flow.
            why = f"deciding failed: {error!r}"
            self.journal.add(refused(control.step, now_ms, why, epoch=epoch))
            return None

    def _places(self, step: str, routes: StepRoutes) -> tuple[tuple[HostId, ...], Any]:
        """All hosts of a step, also those that own nothing, and the owner of each slot."""
        idle = [host for host in self._relocation.hosts(step) if host not in routes.routes.hosts]
        return (*routes.routes.hosts, *idle), routes.routes.owner

    def _expected(self, routes: StepRoutes, hosts: Sequence[HostId], owner: Any) -> Floats | None:
        """Per host: the latency that the epoch under way will have, if that host alone worked."""
        control, arrivals = self._controls[routes.step], self._arrivals[routes.step]
        vitals, found = control.vitals, control.offloading
        if vitals is None or vitals.hosts != tuple(hosts):
            return None
        by_slot = arrivals.by_slot
        if self._offloads is not None:
            merge = 0.0 if found is None else found.merge
            shares = self._offloads.shares_in_force(routes, float(by_slot.sum()))
            by_slot = by_slot * (1.0 - shares * (1.0 - merge))
        records = np.bincount(owner, by_slot, len(hosts))
        work_ms = 1000 * records / vitals.service_rate
        return np.asarray(arrivals.age_ms + self._cost.ms + work_ms)

    def lost(self, lost: LostHost, epoch: int) -> None:
        """A host was found dead before this epoch began."""
        with self._lock:
            control, host, now_ms = self._controls[lost.step], lost.host, self._clock_ms()
            control.examiner.forget_host(host)
            why = "it died; others take its slots"
            if host in self._relocation.hosts(lost.step):
                why += ", and it is started again"
            self.journal.add(host_lost(control.step, now_ms, host, lost.slots, why, epoch=epoch))

    def hot_keys(self, step: str) -> HotKeys:
        """The keys of a step that are too much for a host, and what couriers shall do about them."""
        return self._controls[step].hot

    # -- functions

    @property
    def reach(self) -> str | None:
        """How couriers reach functions; None if there are none."""
        return None if self._offloads is None else self._offloads.keeper.reach

    @property
    def money(self) -> Money | None:
        """Spent so far; None if nobody counts it."""
        return None if self._bill is None else self._bill.money

    @property
    def timed(self) -> tuple[str, ...]:
        """Segments without a keyed step of which couriers shall tell what they take."""
        return tuple(self._maps.controls)

    def offload(self, step: str, now_ms: float, partitions: int = 1) -> Offload | None:
        """What goes to functions of a step, or of a segment without one, in an epoch of so many
        partitions that begins now; None: nothing."""
        if self._offloads is None or self.elastic.dry_run:
            return None
        with self._lock:
            gap_ms = max(now_ms - self._started_ms, self._started_ms - self._since_ms)
            return self._offloads.planned(
                self._all[step], self.elastic, self.sla, now_ms, gap_ms, partitions
            )

    # -- an end-to-end bound over several steps

    def _share(self, plan: EpochPlan, spent_ms: dict[str, float], written_ms: float) -> None:
        """Note how the steps did; now and then their shares are moved."""
        if self._sharing is None:
            return
        self._times.note(spent_ms, written_ms - self._started_ms)
        latency_ms = self._arrivals[plan.steps[0].step].age_ms + written_ms - self._started_ms
        changed = self._sharing.note(spent_ms, latency_ms, self.sla.latency_ms)
        self._set_bounds()
        for step, (old, new) in changed.items():
            now_ms = self._clock_ms()
            self.journal.add(setting(step, now_ms, "share", round(old, 3), round(new, 3)))

    def _set_bounds(self) -> None:
        whole = self.elastic.bounds(self.sla)
        shares = {} if self._sharing is None else self._sharing.shares
        for step, share in shares.items():
            # Latency is measured from arrival to sink, so the alert is not shared.
            bounds = self.elastic.bounds(self.sla, share)
            left = self._times.left_to(step, share)
            self._controls[step].bounds = replace(bounds, alert=whole.alert_ms / share, left=left)
        self._maps.set_bounds(whole)

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
            for control in self._all.values():
                control.dry_run = self.elastic.dry_run
            self._set_bounds()
            if self._offloads is not None:
                self._offloads.steer(self._all, self.elastic, self.sla)
                if self.elastic.dry_run != before.dry_run:
                    self._offloads.withdraw(self._all, _ONLY_TOLD, self._clock_ms())
            self._tell_changes(old_sla, before)
            return self.facts()

    def _tell_changes(self, sla: SLA, before: Elastic) -> None:
        changed = [("sla", str(sla), str(self.sla))]
        for name in _STEERED:
            old, new = getattr(before, name), getattr(self.elastic, name)
            changed.append((name.removesuffix("_text"), old, new))
        for name, old, new in changed:
            if old != new:
                for step in self._all:
                    self.journal.add(setting(StepId(step), self._clock_ms(), name, old, new))

    def facts(self) -> dict[str, Any]:
        """What is known and in force, as JSON values."""
        with self._lock:
            return control_facts(self.sla, self.elastic, self._all, self._offloads, self.money)
