"""How the steps of a flow whose epochs they share keep to their parts of one bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from penstock.control.examine.epochs import EpochTimes
from penstock.control.treat.budget import Budget
from penstock.control.treat.decision import Bounds
from penstock.model import StepId

SHARE_EPOCHS = 50
"""Epochs that are looked back on, and go by, before the shares of steps are moved."""


SHARE_TIME_SLOTS = 100
"""The same in time slots of a live flow: ten seconds, unless they are of another length."""


class Sharing:
    """Notes how each step does, epoch by epoch, and moves the shares now and then.

    The time of an epoch that no step's hosts worked is laid to all steps, by their shares.

    >>> sharing = Sharing([StepId("split"), StepId("count")])
    >>> for _ in range(SHARE_EPOCHS):
    ...     changed = sharing.note({"split": 100.0, "count": 700.0}, latency_ms=1000.0, bound_ms=1000.0)
    >>> {step: (old, round(new, 2)) for step, (old, new) in changed.items()}
    {'split': (0.5, 0.45), 'count': (0.5, 0.55)}
    """

    def __init__(self, steps: Sequence[StepId]) -> None:
        self._budget = Budget(steps)
        self._kept: dict[StepId, list[bool]] = {step: [] for step in steps}

    @property
    def shares(self) -> dict[StepId, float]:
        return self._budget.shares

    def note(
        self, spent_ms: Mapping[str, float], latency_ms: float, bound_ms: float
    ) -> dict[StepId, tuple[float, float]]:
        """An epoch is done: how long each step's hosts worked, and the latency of its rows.

        Returns the shares that have changed: before and now.
        """
        if len(self._kept) == 1:
            return {}
        rest = max(0.0, latency_ms - sum(spent_ms.values()))
        before = self.shares
        for step, share in before.items():
            self._kept[step].append(spent_ms[step] + share * rest <= share * bound_ms)
        return self._move(SHARE_EPOCHS)

    def note_step(self, step: StepId, kept: bool) -> dict[StepId, tuple[float, float]]:
        """Whether a step of a live flow kept to its part in a time slot. Returns as `note`."""
        self._kept[step].append(kept)
        return self._move(SHARE_TIME_SLOTS)

    def _move(self, after: int) -> dict[StepId, tuple[float, float]]:
        """Move shares when each step was looked at so often."""
        if any(len(kept) < after for kept in self._kept.values()):
            return {}
        before = self.shares
        now = self._budget.update({step: sum(k) / len(k) for step, k in self._kept.items()})
        self._kept = {step: [] for step in before}
        return {step: (before[step], now[step]) for step in now if now[step] != before[step]}


class SharedBound:
    """What each step must keep to: its share of a bound, and the part of an epoch that is left to it.

    >>> from penstock.model import SLA
    >>> bound = SharedBound({StepId(step): Bounds(SLA(1000, 1000)) for step in ("split", "count")})
    >>> bound.of(StepId("split")).latency_ms, bound.of(StepId("split")).alert_ms
    (500.0, 500.0)
    """

    def __init__(
        self, wholes: Mapping[StepId, Bounds], moves: bool = True, own_latency: bool = False
    ) -> None:
        """`wholes` is what would hold for each step, had it the bound to itself. Shares move by
        themselves, or are set. With `own_latency` that of each step is measured by itself."""
        self._wholes, self._own_latency = dict(wholes), own_latency
        self._sharing = Sharing(list(wholes)) if wholes and moves else None
        self.shares: Mapping[StepId, float] = {s: one.share for s, one in wholes.items()}
        if self._sharing is not None:
            self.shares = self._sharing.shares
        self._times = EpochTimes()
        self._left: dict[StepId, float] = {}

    def steer(self, whole: Bounds) -> None:
        """Let this hold for all steps together."""
        self._wholes = dict.fromkeys(self._wholes, whole)

    def note(
        self, spent_ms: Mapping[str, float], took_ms: float, age_ms: float
    ) -> dict[StepId, tuple[float, float]]:
        """An epoch of this length is done, and how long each step's hosts worked; its rows had this
        age when it began. Returns the shares that have changed: before and now."""
        self._times.note(spent_ms, took_ms)
        changed = dict[StepId, tuple[float, float]]()
        if self._sharing is not None:
            bound_ms = next(iter(self._wholes.values())).sla.latency_ms
            changed = self._sharing.note(spent_ms, age_ms + took_ms, bound_ms)
            self.shares = self._sharing.shares
        self._left = {step: self._times.left_to(step, self.shares[step]) for step in self._wholes}
        return changed

    def note_step(self, step: StepId, kept: bool) -> dict[StepId, tuple[float, float]]:
        """Whether a step of a live flow kept to its part in a time slot. Returns the shares that have
        changed: before and now."""
        if self._sharing is None:
            return {}
        changed = self._sharing.note_step(step, kept)
        self.shares = self._sharing.shares
        return changed

    def of(self, step: StepId) -> Bounds:
        """What a step must keep to now."""
        whole, share = self._wholes[step], self.shares[step]
        # Latency that is measured from arrival to sink is not shared, so the alert is not.
        alert = whole.alert if self._own_latency else whole.alert_ms / share
        return replace(whole, share=share, alert=alert, left=self._left.get(step))
