"""The control machine of a flow: events in, instructions out. No clock, no thread, no I/O.

    event ──examine──► Vitals ──diagnose──► Decision ──treat──► `Treat` ... ──realize──► `TreatmentBegun`
                                    └──────► `Tell`: the journal

The caller passes in each event, carries out the instructions in their order, and reads `orders` when an
epoch has begun. The live driver does this with real hosts and burst workers, the simulator with simulated
ones, and `penstock simulate --replay` with recorded events. The same events give the same instructions.

The machine evaluates an epoch twice. The first time is when its couriers have reported the rows they read
and hosts still work on them. If the rows exceed the hosts' capacity, new hosts start at once, so that they
are up by about the end of the epoch. The second time is when the epoch is sealed and its duration is known.
Treatments take effect at the next epoch boundary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from penstock.control import events as ev
from penstock.control import instructions as do
from penstock.control.couriers import CourierControl
from penstock.control.elastic import Elastic
from penstock.control.examine.arrivals import Arrivals
from penstock.control.examine.epochs import EpochCost
from penstock.control.examine.vitals import Floats, Work
from penstock.control.journal.entries import (
    helped,
    host_leaves,
    host_lost,
    refused,
    setting,
    workers_changed,
)
from penstock.control.journal.entry import At
from penstock.control.journal.journal import Journal
from penstock.control.offload_policy import Ahead, OffloadPolicy
from penstock.control.realize.course import Course, patience_ms
from penstock.control.step_control import FlowLook, StepControl
from penstock.control.treat.decision import Bounds, Policy
from penstock.control.treat.lending import lent
from penstock.control.treat.sharing import SharedBound
from penstock.errors import SettingError
from penstock.model import SLA, HostId, StepId
from penstock.plan.epoch import Offload, of_parts

_LONG_MS, _LONG_FIRST_MS = 1_000.0, 5_000.0
"""Milliseconds of a host's work in one epoch that end the warm-up; the second for the first epoch, in which
code is compiled."""
WARM_EPOCHS = 5
"""Epochs after a start that decisions ignore: loading and compiling make them slow."""
_USUAL_START_MS = 500.0
"""Assumed milliseconds from a decision until a new host works, until the first measurement."""
_EPOCH_TAIL, _LIVE_TAIL = 4 / 3, 4.6
"""Ratio of the latency's 99th percentile to its average, until it is measured. In epochs that follow each
other, latencies are spread evenly from one epoch's length to two. In an M/M/1 queue they are exponential."""
_MOST_TAIL = 20.0
_DRY_RUN_CHANGED = "dry run was turned on or off: all rows go to hosts"


@dataclass(frozen=True)
class ControlledStep:
    """A keyed step that a machine controls."""

    step: StepId
    slots: int
    policy: Policy
    """The step's own policy object, not shared with another step."""
    bounds: Bounds
    """Limits as if the step had the whole latency bound to itself."""
    merges: bool = False
    """Whether partial states of a key merge, so that a hot key can be split."""


@dataclass(frozen=True)
class Habits:
    """Properties of the engine that a machine controls."""

    delta_ms: float = 100.0
    """Milliseconds per time slot, in which arrivals and completions are counted."""
    warm_epochs: int = WARM_EPOCHS
    """Epochs after a start on which nothing is decided."""
    host_start_ms: float = float("inf")
    """Milliseconds that a new host may take to come up."""
    revises: bool = True
    """Whether the machine may request more hosts while earlier treatments still wait for hosts."""
    shares: bool = True
    """Whether the machine sets the steps' shares of the bound. If not, `SharesMoved` events set them."""
    own_latency: bool = False
    """Whether each step's own latency is measured, rather than the latency from arrival to sink."""
    measured: bool = False
    """Whether decisions use measured latencies per slot, rather than estimates from counts."""
    decides: bool = True
    """Whether policies are asked. If not, steps are only examined, for their success rates."""
    forgives: bool = True
    """Whether an exception in a policy is journalled and the query goes on. If not, it is raised."""


class FlowControl:
    """Control of all steps of a flow. Pure; used by one thread at a time."""

    def __init__(
        self,
        steps: Sequence[ControlledStep],
        habits: Habits | None = None,
        *,
        now_ms: float = 0.0,
        offload: OffloadPolicy | None = None,
        couriers: Sequence[str] = (),
        whole: Mapping[str, str] | None = None,
        elastic: Elastic | None = None,
        sla: SLA | None = None,
    ) -> None:
        """Create the control of these steps.

        `offload` decides what burst workers carry; None if the flow has none. `couriers` are the segments
        without a keyed step that burst workers can help. `whole` maps steps that they cannot help to the
        reason. A machine without `elastic` and `sla` cannot be steered.
        """
        self.habits = habits = habits or Habits()
        self.elastic, self.sla = elastic, sla
        self._offload, self._out = offload, list[do.Instruction]()
        self._workers = dict[HostId, int]()
        """Number of worker threads of each host in its last epoch."""
        self.journal = Journal(sink=lambda entry: self._out.append(do.Tell(entry)))
        dry_run = elastic is not None and elastic.dry_run
        self.steps = {
            str(step.step): StepControl(
                *(step.step, step.slots, step.policy, step.bounds),
                journal=self.journal,
                delta_ms=habits.delta_ms,
                dry_run=dry_run,
                merges=step.merges,
                course=Course(step.step, habits.host_start_ms, habits.revises),
                measured=habits.measured,
                own_latency=habits.own_latency,
                offload=offload if offload is not None and offload.helps(step.step) else None,
            )
            for step in steps
        }
        """Keyed steps, by name."""
        bounds = elastic.bounds(sla) if elastic is not None and sla is not None else None
        self.couriers = {
            name: CourierControl(
                *(StepId(name), bounds),
                journal=self.journal,
                part=1.0 / (1 + len(steps)),
                delta_ms=habits.delta_ms,
                dry_run=dry_run,
                offload=offload,
            )
            for name in couriers
            if bounds is not None
        }
        """Segments without a keyed step, by name."""
        self.all_steps: dict[str, StepControl] = {**self.steps, **self.couriers}
        self.whole = whole or {}
        """Keyed steps that burst workers cannot help, each with the reason."""
        self._tail = _LIVE_TAIL if habits.own_latency else _EPOCH_TAIL
        wholes = {
            step.step: replace(step.bounds, step=str(step.step), tail=self._tail) for step in steps
        }
        self._bound = SharedBound(wholes, habits.shares, habits.own_latency)
        self._cost, self._start_ms = EpochCost(), _USUAL_START_MS
        self._epochs, self._epoch = 0, -1
        self.started_ms = self.since_ms = now_ms
        """Start times of the last epoch and of the one before it, in milliseconds."""
        self._arrivals: dict[str, Arrivals] = {}
        self._warm: dict[str, int] = {}
        self.orders = do.Orders()
        """Control's part of the plan of the epoch that began last."""
        self._set_bounds()
        for name, why in self.whole.items():
            self.journal.add(refused(At(name, now_ms), why, wanted="functions"))

    def handle(self, event: ev.Event) -> list[do.Instruction]:
        """Process an event. Returns the instructions to carry out, in this order."""
        _HANDLERS[type(event)](self, event)
        out, self._out = self._out, []
        return out

    # -- the events of an epoch

    def _due(self, event: ev.EpochDue) -> None:
        """Let the epoch wait for new hosts where that is faster than going on without them.

        It does not wait while burst workers carry the excess load.
        """
        for step, control in self.steps.items():
            offloading = control.offloading
            if offloading is None or not offloading.carries:
                treating, now_ms = control.course.treating, event.now_ms
                most_ms = patience_ms(treating, self.started_ms, now_ms, self._start_ms)
                if most_ms > 0:
                    self._out.append(do.WaitFor(StepId(step), most_ms))

    def _began(self, event: ev.EpochBegan) -> None:
        now_ms, started_ms = event.now_ms, self.started_ms
        gap_ms = max(now_ms - started_ms, started_ms - self.since_ms)
        ahead = Ahead(gap_ms, event.partitions, event.aid.together)
        offloads = dict[str, Offload]()
        if self._burst_workers(event.aid, now_ms) and not self._dry_run:
            planned = {
                name: self._planned(control, ahead) for name, control in self.all_steps.items()
            }
            offloads = {name: plan for name, plan in planned.items() if plan is not None}
        self.orders = do.Orders(
            {s: do.StepOrders(c.hot.watched, c.hot.two_stage) for s, c in self.steps.items()},
            offloads,
            tuple(self.couriers),
        )
        if event.epoch != self._epoch:
            self._epoch, self.since_ms, self.started_ms = event.epoch, started_ms, now_ms

    def _planned(self, control: StepControl, ahead: Ahead) -> Offload | None:
        offloading, vitals = control.offloading, control.vitals
        if self._offload is None or offloading is None or vitals is None:
            return None
        return self._offload.planned(offloading, vitals, control.bounds, ahead)

    def _read(self, event: ev.EpochRead) -> None:
        for step, read in event.steps.items():
            self._follow_slots(self.steps[step], read.placement)
            arrivals = self._arrivals[step] = read.arrivals
            examiner = self.steps[step].examiner
            examiner.arriving(arrivals.horizon_ms, arrivals.counts, arrivals.first_m)
        if event.look:
            look = self._look_of(event.aid, event.now_ms, event.epoch)
            for step, read in event.steps.items():
                expected_ms = self._expected(step, read)
                if expected_ms is not None or read.placement.pending:
                    self._look(self.steps[step], look, read.placement, expected_ms)
                self._lend(step, read, event.epoch)

    def _lend(self, step: str, read: ev.StepRead, epoch: int) -> None:
        """Even out the work of the running epoch. A host that is not known yet counts as an average one."""
        control, hosts = self.steps[step], read.placement.hosts
        if control.vitals is None or control.dry_run:
            return
        known = dict(zip(control.vitals.hosts, control.vitals.service_rate.tolist(), strict=True))
        rates = np.array([known.get(host, np.nan) for host in hosts])
        if not np.isfinite(rates).any():
            return
        rates = np.where(np.isfinite(rates), rates, np.nanmean(rates))
        helpers = lent(hosts, 1000.0 * self._records(step, read) / rates)
        if helpers:
            self._out.append(do.Lend(control.step, epoch, helpers))

    def _expected(self, step: str, read: ev.StepRead) -> Floats | None:
        """Expected latency of the running epoch per host, in milliseconds, as if no other host worked.

        None if these hosts have not been evaluated yet.
        """
        vitals = self.steps[step].vitals
        if vitals is None or vitals.hosts != read.placement.hosts:
            return None
        work_ms = self._records(step, read) * 1000.0 / vitals.service_rate
        return np.asarray(read.arrivals.age_ms + self._cost.ms + work_ms)

    def _records(self, step: str, read: ev.StepRead) -> Floats:
        """Records of the running epoch per host, without those for burst workers."""
        if read.records is not None:
            return read.records
        control, place = self.steps[step], read.placement
        by_slot, offload = read.arrivals.by_slot, self.orders.offloads.get(step)
        if self._offload is not None and offload is not None:
            merge = 0.0 if control.offloading is None else control.offloading.merge
            by_slot = self._offload.left(step, by_slot, offload, merge)
        return np.bincount(place.owner, by_slot, len(place.hosts)).astype(np.float64)

    def _note_workers(self, at: At, workers: Mapping[HostId, int]) -> None:
        """Record in the journal which hosts use another number of worker threads than before."""
        before = {host: self._workers.get(host, count) for host, count in workers.items()}
        changed = {host: count for host, count in workers.items() if count != before[host]}
        if changed:
            self.journal.add(workers_changed(at, {h: before[h] for h in changed}, changed))
        self._workers |= workers

    def _sealed(self, event: ev.EpochSealed) -> None:
        now_ms, epoch = event.now_ms, event.epoch
        if self._offload is not None:
            if self._offload.note(event, self.orders.offloads):
                self._out.append(do.RenewWorkers())
            if why := self._offload.trouble(now_ms, event.aid.reachable):
                for control in self.all_steps.values():
                    control.withdraw(why, now_ms, epoch)
        self._end_warm_up(event)
        self._examine(event)
        self._warm_up(event)
        self._share(event)
        self._note_tail(event.tail)
        look = self._look_of(event.aid, now_ms, epoch)
        for step, sealed in event.steps.items():
            placement = self._settle(self.steps[step], sealed.placement, now_ms, epoch)
            if sealed.helped_rows:
                at = At(step, now_ms, epoch)
                self.journal.add(helped(at, sealed.helped_rows, self._arrivals[step].by_slot.sum()))
            self._note_workers(At(step, now_ms, epoch), sealed.workers)
            self._look(self.steps[step], look, placement)
            load = self._arrivals[step].by_slot.astype(np.int64)
            hot = [count for task in event.seen for count in task.hot]
            self.steps[step].find_hot_keys(hot, load, epoch)
            self._out += self.steps[step].resplit(now_ms, epoch)
        for segment in self._reported_segments(event):
            self._look(segment, look, segment.placement)
        self._keep_warm()

    def _examine(self, event: ev.EpochSealed) -> None:
        written_ms, started_ms = event.written_ms, self.started_ms
        rows = sum(task.rows for task in event.seen)
        for step, sealed in event.steps.items():
            arrivals = self._arrivals[step]
            # Unread rows are assumed to spread over slots as the rows read did.
            self.steps[step].examiner.unread = arrivals.by_slot * (event.unread / max(1, rows))
            done = sealed.owner, sealed.hosts, sealed.work
            measured_ms = arrivals.latency_ms(written_ms - started_ms)
            applied_ms = None
            if sealed.applied_ms is not None:
                applied_ms = arrivals.waited_ms + sealed.applied_ms
            control, counts = self.steps[step], arrivals.by_slot
            control.examiner.epoch(written_ms, counts, *done, measured_ms, applied_ms)
            latency_ms = measured_ms if applied_ms is None else applied_ms
            control.completed(counts, latency_ms, sealed.late)
            if self._warmed_up:
                control.judge(event.now_ms)
        spent_ms = sum(self._spent(event).values())
        for segment in self._reported_segments(event):
            segment.resize(len(event.seen), event.aid.together)
            spent_ms += segment.take_in(event.seen, self.since_ms, started_ms, written_ms)
        if event.overlapped and self._cost.ms > 0:
            self._cost.skip(event.done_ms)
        else:
            self._cost.note(started_ms, event.done_ms, spent_ms)

    def _spent(self, event: ev.EpochSealed) -> dict[str, float]:
        """Milliseconds that each step took."""
        return {s: sealed.spent_ms for s, sealed in event.steps.items()} | dict(event.elsewhere_ms)

    def _reported_segments(self, event: ev.EpochSealed) -> list[CourierControl]:
        """Segments without a keyed step on which every courier has reported."""
        if not event.seen or len(event.seen) != event.partitions:
            return []
        return [
            segment
            for name, segment in self.couriers.items()
            if all(name in task.maps for task in event.seen)
        ]

    def _end_warm_up(self, event: ev.EpochSealed) -> None:
        """End the warm-up early if hosts have worked for long on this epoch: what is slow only once matters
        little then. Else a flow that is overloaded from its start would be left alone for long epochs."""
        if not self._epochs < self.habits.warm_epochs:
            return
        works = (work for sealed in event.steps.values() for work in sealed.work.values())
        longest_ms = max((work.useful_ms for work in works), default=0.0)
        if longest_ms >= (_LONG_MS if self._epochs else _LONG_FIRST_MS):
            self._forget_rates()
            self._epochs = self.habits.warm_epochs

    def _warm_up(self, event: ev.EpochSealed) -> None:
        """Count an epoch that had rows. After the last warm-up epoch, forget the service rates."""
        rows = sum(task.rows for task in event.seen)
        self._epochs += rows > 0
        if rows > 0 and self._epochs == self.habits.warm_epochs:
            self._forget_rates()

    def _warm_up_slots(self, work: Mapping[HostId, Work]) -> None:
        """Count a time slot of a live flow, from the first completed record on. See `_warm_up`."""
        if self._epochs < self.habits.warm_epochs * len(self.steps):
            self._epochs += self._epochs > 0 or any(host.completed for host in work.values())
            if self._epochs == self.habits.warm_epochs * len(self.steps):
                self._forget_rates()

    @property
    def _warmed_up(self) -> bool:
        return self._epochs >= self.habits.warm_epochs

    def _forget_rates(self) -> None:
        for control in self.steps.values():
            control.examiner.forget_rates()

    def _follow_slots(self, control: StepControl, placement: ev.StepPlacement) -> None:
        """Adapt to slots that were split, or are whole again, since the last event."""
        before = control.slots
        if control.follow_slots(placement):
            offload = self.orders.offloads.get(control.step)
            if offload is not None:
                shares = of_parts(offload.shares, control.slots.origins(before))
                offloads = {**self.orders.offloads, control.step: replace(offload, shares=shares)}
                self.orders = replace(self.orders, offloads=offloads)

    def _slot_ended(self, event: ev.TimeSlotEnded) -> None:
        control, now_ms = self.steps[event.step], event.now_ms
        self._follow_slots(control, event.placement)
        if event.work is not None:
            counts = event.m, event.arrived, event.completed
            owners = event.owner, event.hosts
            control.examiner.sample(*counts, *owners, event.work, event.measured_ms)
            control.completed_in_all(event.completed, event.measured_ms)
            if self._warmed_up:
                control.judge(now_ms)
            self._warm_up_slots(event.work)
            self._share_time_slot(control, now_ms)
        placement = self._settle(control, event.placement, now_ms, None)
        waiting = event.waiting_ms
        waiting_ms = np.array([waiting.get(host, np.nan) for host in placement.hosts])
        usable = self._burst_workers(event.aid, now_ms)
        if self._offload is not None and not usable:
            control.withdraw(self._offload.trouble(now_ms, event.aid.reachable), now_ms)
        look = FlowLook(now_ms, burst_workers=usable, money=event.aid.money)
        self._look(control, look, placement, waiting_ms if waiting else None)
        self._order_steps()
        if self._offload is not None:
            self._order_offload(control, event.aid, usable)
            self._keep_warm()

    def _order_offload(self, control: StepControl, aid: ev.Aid, usable: bool) -> None:
        """Update the part of a live flow's step that goes to burst workers from now on."""
        step = str(control.step)
        offloads = {name: plan for name, plan in self.orders.offloads.items() if name != step}
        if usable and not self._dry_run:
            ahead = Ahead(self.habits.delta_ms, aid.together or 1, aid.together)
            planned = self._planned(control, ahead)
            if planned is not None:
                offloads[step] = planned
        self.orders = replace(self.orders, offloads=offloads)

    def _order_steps(self) -> None:
        steps = {s: do.StepOrders(c.hot.watched, c.hot.two_stage) for s, c in self.steps.items()}
        self.orders = replace(self.orders, steps=steps)

    def _keys_counted(self, event: ev.KeysCounted) -> None:
        if self._offload is not None and self._offload.note(event, self.orders.offloads):
            self._out.append(do.RenewWorkers())
        self._note_tail(event.tail)
        for step, load in event.loads.items():
            self.steps[step].find_hot_keys(event.hot, load, event.epoch)
            self._out += self.steps[step].resplit(event.now_ms, event.epoch)
        self._order_steps()

    def _note_tail(self, tail: float | None) -> None:
        """Record how far the slowest rows are behind the average ones."""
        if tail is None or self.sla is None or not any(bound.p99 for bound in self.sla.bounds):
            return
        self._tail += (min(max(tail, 1.0), _MOST_TAIL) - self._tail) / 8
        self._bound.set_tail(self._tail)
        self._set_bounds()

    # -- decisions and treatments

    def _look_of(self, aid: ev.Aid, now_ms: float, epoch: int) -> FlowLook:
        usable = self._burst_workers(aid, now_ms)
        return FlowLook(now_ms, epoch, self._cost.ms, usable, aid.money)

    def _look(
        self,
        control: StepControl,
        look: FlowLook,
        placement: ev.StepPlacement,
        expected_ms: Floats | None = None,
    ) -> None:
        if not self._warmed_up or not self.habits.decides:
            return
        try:
            treatments = control.look(look, placement, expected_ms)
        except Exception as error:
            if not self.habits.forgives:
                raise
            control.refuse(f"the policy failed: {error!r}", "", look.now_ms, look.epoch)
            return
        if treatments:
            self._out.append(do.Treat(control.step, look.epoch, treatments))

    def _settle(
        self, control: StepControl, placement: ev.StepPlacement, now_ms: float, epoch: int | None
    ) -> ev.StepPlacement:
        """Check whether treatments have ended. Returns the placement after that.

        Slots of a treatment that was given up stay where they are.
        """
        treating = control.course.treating
        ended = control.settle(placement, now_ms, epoch)
        if ended == "given up":
            self._out.append(do.Stay(control.step))
            return replace(placement, pending=0)
        if ended == "done" and treating is not None and treating.grows:
            self._start_ms += (now_ms - treating.since_ms - self._start_ms) / 4
        return placement

    def _moved(self, event: ev.SlotsMoved) -> None:
        self._settle(self.steps[event.step], event.placement, event.now_ms, event.epoch)

    def _begun(self, event: ev.TreatmentBegun) -> None:
        self.steps[event.step].begun(event)

    def _refused(self, event: ev.TreatmentRefused) -> None:
        self.steps[event.step].refuse(event.why, event.wanted, event.now_ms, event.epoch)

    def _lost(self, event: ev.HostLost) -> None:
        control = self.steps[event.step]
        control.examiner.forget_host(event.host)
        why = "the host died; other hosts take over its slots"
        if event.returns:
            why += ", and it is restarted"
        at = At(control.step, event.now_ms, event.epoch)
        self.journal.add(host_lost(at, event.host, list(event.slots), why))

    def _leaves(self, event: ev.HostLeaves) -> None:
        control = self.steps[event.step]
        control.examiner.forget_host(event.host)
        at = At(control.step, event.now_ms, event.epoch)
        self.journal.add(host_leaves(at, event.host, list(event.slots), event.by))

    # -- burst workers

    @property
    def _dry_run(self) -> bool:
        return self.elastic is not None and self.elastic.dry_run

    def _burst_workers(self, aid: ev.Aid, now_ms: float) -> bool:
        """Whether there are burst workers that can be used now."""
        return self._offload is not None and not self._offload.trouble(now_ms, aid.reachable)

    def _keep_warm(self) -> None:
        for name, control in self.all_steps.items():
            wanted = 0 if control.offloading is None else control.offloading.warm
            if wanted != self._warm.get(name, 0) and not self._dry_run:
                self._warm[name] = wanted
                self._out.append(do.KeepWarm(control.step, wanted))

    # -- an end-to-end bound over several steps

    def _share(self, event: ev.EpochSealed) -> None:
        """Record the latency of the steps. From time to time this changes their shares of the bound."""
        if event.steps:
            age_ms = self._arrivals[next(iter(event.steps))].age_ms
            took_ms = event.written_ms - self.started_ms
            changed = self._bound.note(self._spent(event), took_ms, age_ms)
            self._tell_shares(changed, event.now_ms)

    def _share_time_slot(self, control: StepControl, now_ms: float) -> None:
        """Record whether a step of a live flow kept its bound in a time slot. See `_share`."""
        latency_ms = control.latency_ms
        if latency_ms is None or not self.habits.shares or len(self.steps) < 2:
            return
        changed = self._bound.note_step(control.step, latency_ms <= control.bounds.latency_ms)
        if changed:
            self._tell_shares(changed, now_ms)

    def _tell_shares(self, changed: Mapping[StepId, tuple[float, float]], now_ms: float) -> None:
        for step, (old, new) in changed.items():
            self.journal.add(setting(At(step, now_ms), "share", round(old, 3), round(new, 3)))
        self._set_bounds()

    def _shares_moved(self, event: ev.SharesMoved) -> None:
        self._bound.shares = event.shares
        self._set_bounds()

    def _set_bounds(self) -> None:
        for control in self.steps.values():
            control.bounds = self._bound.of(control.step)

    # -- changes by the user

    def _steered(self, event: ev.Steered) -> None:
        elastic, sla, steering = self.elastic, self.sla, event.steering
        assert elastic is not None and sla is not None
        if steering.step is not None and steering.step not in self.steps:
            raise SettingError(
                f"there is no keyed step {steering.step!r}",
                hint=f"use one of: {', '.join(self.steps) or 'none'}",
            )
        before = steering.current(elastic, sla)
        self.elastic, self.sla = steering.applied(elastic, sla)  # raises if settings are invalid
        whole = self.elastic.bounds(self.sla)
        self._bound.steer(whole)
        for control in self.steps.values():
            if self.elastic.policy != elastic.policy:
                control.policy = self.elastic.make_policy()
        for control in self.all_steps.values():
            control.dry_run = self.elastic.dry_run
        self._set_bounds()
        for segment in self.couriers.values():
            segment.set_bounds(whole)
        if self._offload is not None:
            self._offload.steer(self.elastic, self.sla)
            if self.elastic.dry_run != elastic.dry_run:
                for control in self.all_steps.values():
                    control.withdraw(_DRY_RUN_CHANGED, event.now_ms)
        for name, now in steering.current(self.elastic, self.sla).items():
            if before[name] != now:
                for step in self.all_steps:
                    self.journal.add(setting(At(step, event.now_ms), name, before[name], now))


_HANDLERS: dict[type, Callable[[FlowControl, Any], None]] = {
    ev.EpochDue: FlowControl._due,
    ev.EpochBegan: FlowControl._began,
    ev.EpochRead: FlowControl._read,
    ev.EpochSealed: FlowControl._sealed,
    ev.TimeSlotEnded: FlowControl._slot_ended,
    ev.KeysCounted: FlowControl._keys_counted,
    ev.SlotsMoved: FlowControl._moved,
    ev.TreatmentBegun: FlowControl._begun,
    ev.TreatmentRefused: FlowControl._refused,
    ev.HostLost: FlowControl._lost,
    ev.HostLeaves: FlowControl._leaves,
    ev.SharesMoved: FlowControl._shares_moved,
    ev.Steered: FlowControl._steered,
}
