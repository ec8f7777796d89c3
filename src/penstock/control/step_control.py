"""Control of one step: examines it, lets the policy decide, and follows treatments (`course`)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from penstock.control.diagnose.forecast import Forecast
from penstock.control.diagnose.hot_keys import HotKeys
from penstock.control.events import StepPlacement, TreatmentBegun
from penstock.control.examine.examiner import Examiner
from penstock.control.examine.success import SlotMeter, Windows
from penstock.control.examine.vitals import Floats, Ints, Vitals
from penstock.control.instructions import SplitSlot, UniteSlots
from penstock.control.journal import entries
from penstock.control.journal.entry import At
from penstock.control.journal.journal import Journal
from penstock.control.money import Money
from penstock.control.offload_policy import OffloadPolicy
from penstock.control.realize.course import Course
from penstock.control.treat.decision import Bounds, Decision, Policy, Treatment, is_new
from penstock.control.treat.offloading import Offloading, for_switch, held
from penstock.control.treat.splitting import CoolSlots, divide
from penstock.model import HostId, StepId
from penstock.plan.epoch import of_parts
from penstock.state.keys.slot_map import SlotMap
from penstock.wire.report import HotKeyCount

NOT_UP = "a host did not come up in time"
_FULL_MS = 120_000.0
"""Milliseconds without further scale-out after a host did not come up: the cluster may be full."""


@dataclass(frozen=True)
class FlowLook:
    """Figures that are the same for all steps of a flow in one evaluation."""

    now_ms: float
    epoch: int | None = None
    epoch_cost_ms: float = 0.0
    """Fixed cost of an epoch in milliseconds, without the work of its rows."""
    burst_workers: bool = False
    """Whether burst workers can be used."""
    money: Money | None = None
    """Costs of the run so far; None if they are not tracked."""


class StepControl:
    """Control of one step. Pure; used by one thread at a time."""

    def __init__(
        self,
        step: StepId,
        slots: int,
        policy: Policy,
        bounds: Bounds,
        *,
        journal: Journal,
        delta_ms: float = 100.0,
        dry_run: bool = False,
        merges: bool = False,
        course: Course | None = None,
        offload: OffloadPolicy | None = None,
        measured: bool = False,
        own_latency: bool = False,
    ) -> None:
        """Create the control of a step.

        `offload` decides what burst workers carry; None if they cannot help this step. With `measured`,
        decisions use measured latencies rather than estimates. With `own_latency`, latencies are the step's
        own, else those since rows arrived at the flow.
        """
        self.step, self.policy, self.journal, self.dry_run = step, policy, journal, dry_run
        self.examiner = Examiner(step, slots, bounds.window_ms, delta_ms, measured=measured)
        self._forecast = Forecast() if measured else None
        self._bounds, self._offload = bounds, offload
        self.hot = HotKeys(step, slots, merges)
        self.course = course or Course(step)
        self.offloading: Offloading | None = None
        """What burst workers carry from the next epoch on; None while they cannot be used."""
        self.vitals: Vitals | None = None
        """Vitals of the last evaluation."""
        self.decision: Decision | None = None
        """The last decision."""
        self._own_latency, self._meters = own_latency, dict[bool, SlotMeter]()
        """Whether a bound is on the 99th percentile -> how often each slot kept it."""
        self._completed: Floats = np.zeros(0)
        """Running counts of completed records in an engine without epochs, by slot."""
        self.asked = 0
        """Number of evaluations so far."""
        self.slots, self._cool = SlotMap(slots), CoolSlots()
        self._placement: StepPlacement | None = None
        """Placement of the last evaluation."""
        self._hosts: tuple[HostId, ...] = ()
        self._full: tuple[int, float] = (0, -math.inf)
        """Number of hosts when one more could not start, and the time until which no more are requested."""
        self._before: tuple[float, float] | None = None
        """Latency before the last treatments, and the time to journal their outcome."""

    @property
    def bounds(self) -> Bounds:
        """Limits of the step. They may be set at any time and apply from the next decision on."""
        return self._bounds

    @bounds.setter
    def bounds(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self.examiner.window_ms = bounds.window_ms

    @property
    def latency_ms(self) -> float | None:
        """Mean latency of the step's records over the window at the last evaluation; None if unknown."""
        vitals = self.vitals
        if vitals is None:
            return None
        known = np.isfinite(vitals.slot_latency_ms) & (vitals.rate > 0)
        if not known.any():
            return None
        return float(np.average(vitals.slot_latency_ms[known], weights=vitals.rate[known]))

    def follow_slots(self, placement: StepPlacement) -> bool:
        """Adapt to slots that were split or are whole again. Returns whether there were any."""
        slots, before = placement.slots, self.slots
        if slots == before:
            return False
        self.slots, origins = slots, slots.origins(before)
        self.examiner.resize(slots.count)
        self.hot.resize(slots.count)
        for meter in self._meters.values():
            meter.renumber(origins)
        self.vitals = None
        if self.offloading is not None:
            shares = of_parts(self.offloading.shares, origins)
            self.offloading = replace(self.offloading, shares=shares)
        return True

    # -- success rates

    @property
    def success(self) -> dict[str, Windows]:
        """Kind of bound, "average" or "p99" -> windows in which the slots kept it. Without those that the SLA
        does not have, or of which no window has ended."""
        kinds = self._bounds.judged(self._own_latency)
        return {
            "p99" if p99 else "average": self._meters[p99].counts
            for p99 in kinds
            if p99 in self._meters and self._meters[p99].counts.windows
        }

    @property
    def p99_ms(self) -> float | None:
        """Bound on the 99th percentile that the slots are judged by, in milliseconds; None without one."""
        bound = self._bounds.judged(self._own_latency).get(True)
        return None if bound is None else float(bound.latency_ms)

    def completed(self, records: Floats, latency_ms: Floats, late: Floats | None = None) -> None:
        """Take in completed records, the sums of their latencies, and those beyond `p99_ms`, all by slot. If
        these are not known, the records of a slot count as late together, by their mean."""
        for p99, bound in self._bounds.judged(self._own_latency).items():
            meter = self._meters.setdefault(p99, SlotMeter(len(records), p99))
            beyond = np.where(latency_ms > bound.latency_ms * records, records, 0.0)
            meter.take(records, latency_ms if not p99 else beyond if late is None else late)

    def completed_in_all(self, counts: Floats, latency_ms: Floats) -> None:
        """Take in running counts of completed records by slot, negative where they are missing, and the sums
        of the latencies of those since the last call."""
        if len(counts) != len(self._completed):
            self._completed = counts.copy()
            return
        new = np.where(counts >= 0, np.maximum(counts - self._completed, 0.0), 0.0)
        self._completed = np.where(counts >= 0, counts, self._completed)
        self.completed(new, np.where(new > 0, np.maximum(np.nan_to_num(latency_ms), 0.0), 0.0))

    def judge(self, now_ms: float) -> None:
        """Judge the slots by each bound of which a window has ended."""
        for p99, bound in self._bounds.judged(self._own_latency).items():
            meter = self._meters.setdefault(p99, SlotMeter(self.slots.count, p99))
            if windows := meter.due(now_ms, bound.window_ms):
                meter.judge(now_ms, windows, self.examiner.waiting_ms(), bound.latency_ms)

    # -- evaluation

    def look(
        self, look: FlowLook, placement: StepPlacement, expected_ms: Floats | None = None
    ) -> tuple[Treatment, ...]:
        """Evaluate the step. Returns the treatments that should begin now.

        `expected_ms` is the least latency of the records that each host works on now, if known. A host
        that is about to be late counts as late.

        Nothing is decided while slots move. Burst workers may still help then, since new hosts may take
        long to come up. Until the first slot has moved, a decision for even more hosts can replace the
        treatments that are under way.
        """
        self._placement = placement
        self.course.follow(placement, look.now_ms)
        revise = bool(placement.pending) and self.course.may_revise
        if placement.pending and not revise:
            if look.burst_workers and not self.dry_run:
                self._help(look, placement)
            return ()
        if self.course.treating is not None and not revise:
            return ()
        decision = self._decide(look, placement, expected_ms, revise)
        if decision is None or self.dry_run:
            return ()
        come = {t.target for t in decision.treatments if is_new(t.target)}
        return () if revise and len(come) <= placement.coming else decision.treatments

    def _decide(
        self, look: FlowLook, placement: StepPlacement, expected_ms: Floats | None, revise: bool
    ) -> Decision | None:
        """Ask the policy for a decision; None while there are too few measurements for one.

        Burst workers come first where they can be used. While they carry a burst, the policy decides on the
        load that is left for hosts. Treatments that would exceed the limits on hosts are refused.
        """
        self.asked += 1
        bounds = self._reachable(look.now_ms)
        vitals = self._examine(look, placement)
        if expected_ms is not None:
            vitals = replace(vitals, latency_ms=np.fmax(vitals.latency_ms, expected_ms))
        self.vitals = vitals
        if not vitals.valid:
            return None
        self._tell_outcome(vitals, look.epoch)
        carried = self._relieve(vitals, look) if look.burst_workers else None
        if carried is not None:
            vitals = for_switch(vitals, bounds, carried)
        decision = self.policy.decide(vitals, bounds)
        if carried is not None:
            decision = held(decision, carried)
        if revise and not any(t.kind == "scale_out" for t in decision.treatments):
            return None
        self.decision = decision
        self.journal.decided(vitals, bounds, decision, epoch=look.epoch, dry_run=self.dry_run)
        wrong = self._out_of_bounds(decision.treatments, len(placement.hosts))
        if wrong:
            self.refuse(wrong, "treatments", look.now_ms, look.epoch)
            decision = self.decision = replace(decision, treatments=())
        return decision

    def _reachable(self, now_ms: float) -> Bounds:
        """The limits, with fewer hosts at most while the cluster seems to be full."""
        available, until_ms = self._full
        bounds = self._bounds
        if now_ms >= until_ms or available >= bounds.at_most:
            return bounds
        return replace(bounds, at_most=max(available, bounds.at_least))

    def _examine(self, look: FlowLook, placement: StepPlacement) -> Vitals:
        hosts = placement.hosts
        vitals = self.examiner.vitals(look.now_ms, hosts, placement.owner, look.epoch_cost_ms)
        return vitals if self._forecast is None else self._forecast.fit(vitals, self._bounds)

    def _help(self, look: FlowLook, placement: StepPlacement) -> None:
        if self._offload is not None:
            vitals = self.vitals = self._examine(look, placement)
            if vitals.valid:
                self._relieve(vitals, look)

    def _relieve(self, vitals: Vitals, look: FlowLook) -> Offloading | None:
        """Decide what burst workers carry, and journal the change."""
        if self._offload is None:
            return None
        spent = None if look.money is None else look.money.functions
        offloading = self._offload.decide(vitals, self._bounds, look.now_ms, spent)
        self.offloading = offloading
        if offloading.reasons:
            at = self._at(look.now_ms, look.epoch)
            self.journal.add(entries.offload(at, offloading, look.money, dry_run=self.dry_run))
        return offloading

    def withdraw(self, why: str, now_ms: float, epoch: int | None = None) -> None:
        """Stop using burst workers: hosts get all rows from the next epoch on."""
        was, self.offloading = self.offloading, None
        if self._offload is None or was is None:
            return
        self._offload.let_go(self.step, now_ms)
        if was.carries:
            nothing = Offloading(np.zeros_like(was.shares), 0, was.warm, (why,), rate=was.rate)
            self.journal.add(entries.offload(self._at(now_ms, epoch), nothing))

    def _out_of_bounds(self, treatments: Sequence[Treatment], now: int) -> str:
        """The reason why treatments exceed the limits on hosts; empty if they do not.

        A step that is outside its limits already may come closer to them.
        """
        if not treatments:
            return ""
        come = {t.target for t in treatments if is_new(t.target)}
        gone = {t.source for t in treatments if t.kind == "scale_in"}
        then, bounds = now + len(come) - len(gone), self._bounds
        if min(now, bounds.at_least) <= then <= max(now, bounds.at_most):
            return ""
        return f"{then} hosts are not within {bounds.at_least} to {bounds.at_most}"

    def find_hot_keys(
        self, counts: Iterable[HotKeyCount], load: Ints, epoch: int | None = None
    ) -> None:
        """Find the keys that overload the hot slots of an epoch, and journal them.

        `counts` are the counts of keys in the slots of `hot.watched`, `load` all records by slot.
        """
        self.hot.note(counts, load)
        vitals, decision = self.vitals, self.decision
        if vitals is None or decision is None or not vitals.valid:
            return
        now_ms, margin = vitals.now_ms, self._bounds.margin
        fastest = float(np.nanmax(vitals.service_rate, initial=0.0)) or math.nan
        hot_keys = self.hot.look(
            now_ms, decision.hot_slots, vitals.rate, fastest, margin, self.dry_run
        )
        for key in hot_keys:
            self.journal.add(entries.hot_key(self._at(now_ms, epoch), key))

    def resplit(self, now_ms: float, epoch: int | None = None) -> list[SplitSlot | UniteSlots]:
        """Split the slots that are too hot for any host and that no single key explains, and put those
        together again that have cooled down. Journals both. Nothing changes while slots move."""
        vitals, decision, placement = self.vitals, self.decision, self._placement
        if vitals is None or decision is None or placement is None or not vitals.valid:
            return []
        if self.dry_run or placement.pending or self.course.treating is not None:
            return []
        if self._bounds.at_most < 2 and not self.slots.splits:
            return []  # a single host gains nothing from a split
        room = float(np.nanmax(vitals.service_rate, initial=0.0)) * (1 - self._bounds.margin)
        if room <= 0 or placement.slots != self.slots:
            return []
        orders, at = list[SplitSlot | UniteSlots](), self._at(now_ms, epoch)
        explained = {key.slot for key in self.hot.keys}
        for slot in decision.hot_slots:
            shares = None if slot in explained else self.hot.shares(slot)
            if shares is None:
                continue
            rate = float(vitals.rate[slot])
            keys = {hash: share * rate for hash, share in shares.items()}
            division = divide(self.slots.ranges(slot), keys, rate, room)
            if division is not None:
                orders.append(SplitSlot(self.step, epoch, slot, division.parts))
                self.journal.add(entries.split(at, slot, rate, division.rates))
        cool = self._cool.look(now_ms, self.slots, vitals.rate, room)
        if cool and not orders:
            orders.append(UniteSlots(self.step, tuple(cool)))
            self.journal.add(entries.united(at, cool))
        return orders

    # -- progress of treatments

    def begun(self, event: TreatmentBegun) -> None:
        """Process the data plane's answer that treatments have begun."""
        for host in event.started:
            self.examiner.forget_host(host)  # an earlier host may have had the same name
        worst, now_ms = self._worst(), event.now_ms
        revised = self.course.begin(event.treatments, now_ms, worst, self.vitals, self._placement)
        self._before = None
        at = self._at(now_ms, event.epoch)
        self.journal.add(entries.began(at, event.treatments, worst, revised=revised))

    def settle(self, placement: StepPlacement, now_ms: float, epoch: int | None) -> str | None:
        """Check at an epoch boundary whether treatments have ended.

        Returns "done", "given up", or None while they are under way.
        """
        if placement.hosts != self._hosts:
            for gone in set(self._hosts) - set(placement.hosts):
                self.examiner.forget_host(gone)
            self._hosts = placement.hosts
        was = self.course.treating
        ended, at = self.course.end(placement, now_ms), self._at(now_ms, epoch)
        if ended == "done" and was is not None:
            self._before = (was.latency_ms, now_ms + self._bounds.window_ms)
            figures = was.treatments, was.since_ms, self._worst()
            self.journal.add(entries.done(at, *figures, hosts=placement.hosts))
        elif ended == "given up" and was is not None:
            why = NOT_UP
            if was.grows:
                self._full = (len(set(placement.owner.tolist())), now_ms + _FULL_MS)
                why += f"; no more hosts are requested for {_FULL_MS / 1000:.0f} s"
            self.journal.add(entries.failed(at, was.treatments, why))
        elif ended == "given up":
            self.refuse(NOT_UP, f"moving {placement.pending} slots to another host", now_ms, epoch)
        return ended

    def refuse(self, why: str, wanted: str, now_ms: float, epoch: int | None) -> None:
        """Journal that something wanted is not done."""
        self.journal.add(entries.refused(self._at(now_ms, epoch), why, wanted))

    def _at(self, now_ms: float, epoch: int | None) -> At:
        return At(self.step, now_ms, epoch)

    def _tell_outcome(self, vitals: Vitals, epoch: int | None) -> None:
        """Journal the outcome of treatments, one window after they were done."""
        if self._before is not None and vitals.now_ms >= self._before[1]:
            before_ms, self._before = self._before[0], None
            at, now_ms = self._at(vitals.now_ms, epoch), self._worst()
            success = {kind: counts.rates() for kind, counts in self.success.items()}
            self.journal.add(entries.outcome(at, before_ms, now_ms, self._bounds, success=success))

    def _worst(self) -> float:
        """Highest latency of any host at the last evaluation, in milliseconds."""
        vitals = self.vitals
        known = [] if vitals is None else [x for x in vitals.latency_ms.tolist() if x == x]
        return max(known, default=0.0)
