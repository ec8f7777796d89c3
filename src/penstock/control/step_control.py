"""One step under control: when to decide, when to wait, and what to tell the journal of it.

    watching ──decide: treatments──► (shell begins them) ──began──► treating
        ▲                                                              │
        └───────────────── completed, or failed ◄──────────────────────┘

The shell, live or simulated, feeds the examiner, asks `decide`, carries the treatments out, and says
when they began and when they were done. While a treatment is under way slots change hands, so nothing
is decided; neither on vitals that lack a sample.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from penstock.control.diagnose.hot_keys import HotKeys
from penstock.control.examine.examiner import Examiner
from penstock.control.examine.vitals import Floats, Ints, Vitals
from penstock.control.journal.entries import began, done, failed, hot_key, offload, outcome, refused
from penstock.control.journal.journal import Journal
from penstock.control.money import Money
from penstock.control.treat.decision import Bounds, Decision, Policy, Treatment, is_new
from penstock.model import HostId, StepId
from penstock.offload.policy.beside_switch import for_switch, held
from penstock.offload.policy.offloader import Offloader
from penstock.offload.policy.values import Offloading
from penstock.wire.report import HotKeyCount


@dataclass(frozen=True)
class Treating:
    """Treatments that are under way."""

    treatments: tuple[Treatment, ...]
    since_ms: float
    latency_ms: float
    """The worst host's, when they began."""
    vitals: Vitals | None = None
    """What they were decided on."""

    @property
    def grows(self) -> bool:
        """Whether new hosts are part of it."""
        return any(treatment.kind == "scale_out" for treatment in self.treatments)

    def __str__(self) -> str:
        return "; ".join(str(treatment) for treatment in self.treatments)


class StepControl:
    """Examines and decides for one keyed step. Pure; used by one thread at a time."""

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
    ) -> None:
        self.step, self.policy, self.journal, self.dry_run = step, policy, journal, dry_run
        self.examiner = Examiner(step, slots, bounds.sla.window_ms, delta_ms)
        self._bounds = bounds
        self.hot = HotKeys(step, slots, merges)
        self.offloader: Offloader | None = None
        """Decides what functions carry, if there are functions for this step."""
        self.offloading: Offloading | None = None
        """What they carry from the next epoch on; None while there are none that could."""
        self.treating: Treating | None = None
        self.vitals: Vitals | None = None
        """As of the last look."""
        self.decision: Decision | None = None
        """The last one."""
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

    def decide(
        self,
        now_ms: float,
        hosts: Sequence[HostId],
        owner: Ints,
        epoch_cost_ms: float = 0.0,
        epoch: int | None = None,
        expected_ms: Floats | None = None,
        revise: bool = False,
        functions: bool = False,
        money: Money | None = None,
    ) -> Decision | None:
        """What should be done now; None while that cannot be told, or a treatment is under way.

        With `revise`, what began has not taken effect yet: only a decision for still more hosts is
        given, which takes its place.

        Treatments that would leave the step with more hosts than it may have, or fewer, are refused.
        `expected_ms` is, per host, the latency that what it works on just now will have at least, if
        that is known: a host that is about to be late is as good a reason as one that is.

        With `functions` there are some that can be used: they come first, and while they carry a
        burst the policy decides on what is left for hosts. `money` is what was spent so far.
        """
        if self.treating is not None and not revise:
            return None
        vitals = self.examiner.vitals(now_ms, hosts, owner, epoch_cost_ms)
        if expected_ms is not None:
            vitals = replace(vitals, latency_ms=np.fmax(vitals.latency_ms, expected_ms))
        self.vitals = vitals
        if not vitals.valid:
            return None
        self._tell_outcome(vitals, epoch)
        found = self._offload(vitals, now_ms, epoch, money) if functions else None
        if found is not None:
            vitals = for_switch(vitals, self._bounds, found)
        decision = self.policy.decide(vitals, self._bounds)
        if found is not None:
            decision = held(decision, found)
        if revise and not any(t.kind == "scale_out" for t in decision.treatments):
            return None
        self.decision = decision
        self.journal.decided(vitals, self._bounds, decision, epoch=epoch, dry_run=self.dry_run)
        wrong = self._out_of_bounds(decision.treatments, len(hosts))
        if wrong:
            self.journal.add(refused(self.step, now_ms, wrong, wanted="treatments", epoch=epoch))
            decision = self.decision = replace(decision, treatments=())
        return decision

    def help(
        self,
        now_ms: float,
        hosts: Sequence[HostId],
        owner: Ints,
        epoch_cost_ms: float = 0.0,
        epoch: int | None = None,
        money: Money | None = None,
    ) -> None:
        """Treatments are under way that cannot be revised: let functions help meanwhile.

        New hosts may take long to come. A burst does not wait for them.
        """
        vitals = self.vitals = self.examiner.vitals(now_ms, hosts, owner, epoch_cost_ms)
        if vitals.valid:
            self._offload(vitals, now_ms, epoch, money)

    def _offload(
        self, vitals: Vitals, now_ms: float, epoch: int | None, money: Money | None
    ) -> Offloading | None:
        """Let functions help, and tell what changes by it."""
        if self.offloader is None:
            return None
        spent = None if money is None else money.functions
        found = self.offloading = self.offloader.decide(vitals, self._bounds, now_ms, spent)
        if found.reasons:
            self.journal.add(
                offload(self.step, now_ms, found, money, epoch=epoch, dry_run=self.dry_run)
            )
        return found

    def withdraw(self, why: str, now_ms: float, epoch: int | None = None) -> None:
        """There are no functions that can be used: from the next epoch on hosts get all rows."""
        was, self.offloading = self.offloading, None
        if self.offloader is None or was is None:
            return
        self.offloader.let_go(now_ms)
        if was.carries:
            nothing = Offloading(np.zeros_like(was.shares), 0, was.warm, (why,), rate=was.rate)
            self.journal.add(offload(self.step, now_ms, nothing, epoch=epoch))

    def began(
        self, treatments: Sequence[Treatment], now_ms: float, epoch: int | None = None
    ) -> None:
        """The shell has begun to carry these out; new hosts have their names by now.

        What began before and has not taken effect is given up for it.
        """
        worst, revised = self._worst(), self.treating is not None
        # who waits for hosts has waited since the first were asked for
        since_ms = now_ms if self.treating is None else self.treating.since_ms
        self.treating = Treating(tuple(treatments), since_ms, worst, self.vitals)
        self._before = None
        self.journal.add(began(self.step, now_ms, treatments, worst, revised=revised, epoch=epoch))

    def completed(
        self, now_ms: float, hosts: Sequence[HostId] = (), epoch: int | None = None
    ) -> None:
        """All slots are where the treatments wanted them."""
        was, self.treating = self.treating, None
        if was is None:
            return
        self._before = (was.latency_ms, now_ms + self._bounds.sla.window_ms)
        self.journal.add(
            done(
                self.step,
                now_ms,
                was.treatments,
                was.since_ms,
                self._worst(),
                hosts=hosts,
                epoch=epoch,
            )
        )

    def failed(self, why: str, now_ms: float, epoch: int | None = None) -> None:
        """The treatments could not be carried out and were given up; slots stay where they are."""
        was, self.treating = self.treating, None
        if was is not None:
            self.journal.add(failed(self.step, now_ms, was.treatments, why, epoch=epoch))

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
            self.journal.add(
                hot_key(self.step, now_ms, key.slot, key.key, key.rate, key.text, epoch=epoch)
            )

    def _tell_outcome(self, vitals: Vitals, epoch: int | None) -> None:
        """A window after treatments were done: what they brought."""
        if self._before is not None and vitals.now_ms >= self._before[1]:
            before_ms, self._before = self._before[0], None
            now, bounds = self._worst(), self._bounds
            self.journal.add(outcome(self.step, vitals.now_ms, before_ms, now, bounds, epoch=epoch))

    def _worst(self) -> float:
        """The latency of the host that is worst off, as of the last look."""
        vitals = self.vitals
        known = [] if vitals is None else [x for x in vitals.latency_ms.tolist() if x == x]
        return max(known, default=0.0)
