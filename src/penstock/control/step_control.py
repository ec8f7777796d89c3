"""One step under control: examined, diagnosed, treated; what is under way is `course`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from penstock.control.diagnose.forecast import Forecast
from penstock.control.diagnose.hot_keys import HotKeys
from penstock.control.events import StepPlacement, TreatmentBegun
from penstock.control.examine.examiner import Examiner
from penstock.control.examine.vitals import Floats, Ints, Vitals
from penstock.control.journal import entries
from penstock.control.journal.entry import At
from penstock.control.journal.journal import Journal
from penstock.control.money import Money
from penstock.control.offload_policy import OffloadPolicy
from penstock.control.realize.course import Course
from penstock.control.treat.decision import Bounds, Decision, Policy, Treatment, is_new
from penstock.control.treat.offloading import Offloading, for_switch, held
from penstock.model import HostId, StepId
from penstock.wire.report import HotKeyCount

NOT_UP = "a host did not come up in time"
_FULL_MS = 120_000.0
"""Milliseconds for which no more hosts are asked for after one did not come up: the cluster may be full."""


@dataclass(frozen=True)
class FlowLook:
    """What holds for all steps of a flow at one look at them."""

    now_ms: float
    epoch: int | None = None
    epoch_cost_ms: float = 0.0
    burst_workers: bool = False
    """Whether there are burst workers that can be used."""
    money: Money | None = None
    """Spent so far, if somebody counts it."""


class StepControl:
    """Examines and decides for one step. Pure; used by one thread at a time."""

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
    ) -> None:
        """`offload` decides what burst workers carry, if there are burst workers for this step. Where
        latencies are `measured`, those count."""
        self.step, self.policy, self.journal, self.dry_run = step, policy, journal, dry_run
        self.examiner = Examiner(step, slots, bounds.sla.window_ms, delta_ms, measured=measured)
        self._forecast = Forecast() if measured else None
        self._bounds, self._offload = bounds, offload
        self.hot = HotKeys(step, slots, merges)
        self.course = course or Course(step)
        self.offloading: Offloading | None = None
        """What burst workers carry from the next epoch on; None while there are none that could."""
        self.vitals: Vitals | None = None
        """As of the last look."""
        self.decision: Decision | None = None
        """The last one."""
        self.asked = 0
        """How often it was asked what should be done."""
        self._placement: StepPlacement | None = None
        """As of the last look."""
        self._hosts: tuple[HostId, ...] = ()
        self._full: tuple[int, float] = (0, -math.inf)
        """The hosts that could be had when one more could not, and until when no more are asked for."""
        self._before: tuple[float, float] | None = None
        """The latency before the last treatments, and when to tell what they brought."""

    @property
    def bounds(self) -> Bounds:
        """What the step must keep to. May be set at any time; the next decision goes by it."""
        return self._bounds

    @bounds.setter
    def bounds(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self.examiner.window_ms = bounds.sla.window_ms

    @property
    def latency_ms(self) -> float | None:
        """The mean latency of the step's records over the window, as of the last look; None: not known."""
        vitals = self.vitals
        if vitals is None:
            return None
        known = np.isfinite(vitals.slot_latency_ms) & (vitals.rate > 0)
        if not known.any():
            return None
        return float(np.average(vitals.slot_latency_ms[known], weights=vitals.rate[known]))

    # -- a look at it

    def look(
        self, look: FlowLook, placement: StepPlacement, expected_ms: Floats | None = None
    ) -> tuple[Treatment, ...]:
        """The treatments that should begin now, if any.

        `expected_ms` is, per host, the latency that what it works on just now will have at least, if
        that is known: a host that is about to be late is as good a reason as one that is.

        While slots change hands nothing is decided, but burst workers may help: new hosts may take long
        to come, and a burst does not wait for them. Until a slot has moved, a decision for still more
        hosts can take the place of what began.
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
        """What should be done now; None while that cannot be told.

        Where burst workers can be used they come first, and while they carry a burst the policy decides
        on what is left for hosts. Treatments that would leave the step with more hosts than it may
        have, or fewer, are refused.
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
        """What the step must keep to, without hosts that cannot be had for now."""
        had, until_ms = self._full
        bounds = self._bounds
        if now_ms >= until_ms or had >= bounds.at_most:
            return bounds
        return replace(bounds, at_most=max(had, bounds.at_least))

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
        """Let burst workers help, and tell what changes by it."""
        if self._offload is None:
            return None
        spent = None if look.money is None else look.money.functions
        found = self._offload.decide(vitals, self._bounds, look.now_ms, spent)
        self.offloading = found
        if found.reasons:
            at = self._at(look.now_ms, look.epoch)
            self.journal.add(entries.offload(at, found, look.money, dry_run=self.dry_run))
        return found

    def withdraw(self, why: str, now_ms: float, epoch: int | None = None) -> None:
        """There are no burst workers that can be used: from the next epoch on hosts get all rows."""
        was, self.offloading = self.offloading, None
        if self._offload is None or was is None:
            return
        self._offload.let_go(self.step, now_ms)
        if was.carries:
            nothing = Offloading(np.zeros_like(was.shares), 0, was.warm, (why,), rate=was.rate)
            self.journal.add(entries.offload(self._at(now_ms, epoch), nothing))

    def _out_of_bounds(self, treatments: Sequence[Treatment], now: int) -> str:
        """Why treatments must not be done; empty if they may. To come nearer to a bound is allowed."""
        if not treatments:
            return ""
        come = {t.target for t in treatments if is_new(t.target)}
        gone = {t.source for t in treatments if t.kind == "scale_in"}
        then, bounds = now + len(come) - len(gone), self._bounds
        if min(now, bounds.at_least) <= then <= max(now, bounds.at_most):
            return ""
        return f"{then} hosts are not from {bounds.at_least} to {bounds.at_most}"

    def find_hot_keys(
        self, counts: Iterable[HotKeyCount], load: Ints, epoch: int | None = None
    ) -> None:
        """An epoch is done: see which keys of the slots that no host can take are to blame.

        `counts` are those of the slots in `hot.watched`, `load` all records of the epoch by slot.
        """
        self.hot.note(counts, load)
        vitals, decision = self.vitals, self.decision
        if vitals is None or decision is None or not vitals.valid:
            return
        now_ms, margin = vitals.now_ms, self._bounds.margin
        fastest = float(np.nanmax(vitals.service_rate, initial=0.0)) or math.nan
        found = self.hot.look(
            now_ms, decision.hot_slots, vitals.rate, fastest, margin, self.dry_run
        )
        for key in found:
            self.journal.add(entries.hot_key(self._at(now_ms, epoch), key))

    # -- what becomes of treatments

    def begun(self, event: TreatmentBegun) -> None:
        """The data plane has taken treatments up."""
        for host in event.started:
            self.examiner.forget_host(host)  # one of this name may have been there before
        worst, now_ms = self._worst(), event.now_ms
        revised = self.course.begin(event.treatments, now_ms, worst, self.vitals, self._placement)
        self._before = None
        at = self._at(now_ms, event.epoch)
        self.journal.add(entries.began(at, event.treatments, worst, revised=revised))

    def settle(self, placement: StepPlacement, now_ms: float, epoch: int | None) -> str | None:
        """See at a boundary whether treatments are in force by now, or are given up; which of it."""
        if placement.hosts != self._hosts:
            for gone in set(self._hosts) - set(placement.hosts):
                self.examiner.forget_host(gone)
            self._hosts = placement.hosts
        was = self.course.treating
        ended, at = self.course.end(placement, now_ms), self._at(now_ms, epoch)
        if ended == "done" and was is not None:
            self._before = (was.latency_ms, now_ms + self._bounds.sla.window_ms)
            told = was.treatments, was.since_ms, self._worst()
            self.journal.add(entries.done(at, *told, hosts=placement.hosts))
        elif ended == "given up" and was is not None:
            why = NOT_UP
            if was.grows:
                self._full = (len(set(placement.owner.tolist())), now_ms + _FULL_MS)
                why += f"; no more are asked for in the next {_FULL_MS / 1000:.0f} s"
            self.journal.add(entries.failed(at, was.treatments, why))
        elif ended == "given up":
            self.refuse(NOT_UP, f"{placement.pending} slots on another host", now_ms, epoch)
        return ended

    def refuse(self, why: str, wanted: str, now_ms: float, epoch: int | None) -> None:
        """Tell that something is not being done."""
        self.journal.add(entries.refused(self._at(now_ms, epoch), why, wanted))

    def _at(self, now_ms: float, epoch: int | None) -> At:
        return At(self.step, now_ms, epoch)

    def _tell_outcome(self, vitals: Vitals, epoch: int | None) -> None:
        """A window after treatments were done: what they brought."""
        if self._before is not None and vitals.now_ms >= self._before[1]:
            before_ms, self._before = self._before[0], None
            at, now_ms = self._at(vitals.now_ms, epoch), self._worst()
            self.journal.add(entries.outcome(at, before_ms, now_ms, self._bounds))

    def _worst(self) -> float:
        """The latency of the host that is worst off, as of the last look."""
        vitals = self.vitals
        known = [] if vitals is None else [x for x in vitals.latency_ms.tolist() if x == x]
        return max(known, default=0.0)
