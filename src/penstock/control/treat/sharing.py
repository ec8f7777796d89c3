"""Sharing one end-to-end latency bound among the keyed steps of a flow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from penstock.control.examine.epochs import EpochTimes
from penstock.control.treat.budget import Budget
from penstock.control.treat.decision import Bounds
from penstock.model import StepId

SHARE_EPOCHS = 50
"""Number of epochs between two changes of the steps' shares."""


SHARE_TIME_SLOTS = 100
"""Number of time slots between two changes of the shares in a live flow. By default ten seconds."""


class Sharing:
    """Measures how often each step keeps its part of the bound, and adjusts the shares.

    Time of an epoch in which no step's hosts worked is attributed to all steps, by their shares.

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
        """Record an epoch: the milliseconds that each step's hosts worked, and the latency of its rows.

        Returns the shares that have changed, each as (old, new).
        """
        if len(self._kept) == 1:
            return {}
        rest = max(0.0, latency_ms - sum(spent_ms.values()))
        before = self.shares
        for step, share in before.items():
            self._kept[step].append(spent_ms[step] + share * rest <= share * bound_ms)
        return self._move(SHARE_EPOCHS)

    def note_step(self, step: StepId, kept: bool) -> dict[StepId, tuple[float, float]]:
        """Record whether a step of a live flow kept its part in a time slot. Returns what `note` does."""
        self._kept[step].append(kept)
        return self._move(SHARE_TIME_SLOTS)

    def _move(self, after: int) -> dict[StepId, tuple[float, float]]:
        """Adjust the shares if there are `after` observations of each step."""
        if any(len(kept) < after for kept in self._kept.values()):
            return {}
        before = self.shares
        now = self._budget.update({step: sum(k) / len(k) for step, k in self._kept.items()})
        self._kept = {step: [] for step in before}
        return {step: (before[step], now[step]) for step in now if now[step] != before[step]}


class SharedBound:
    """Limits of each step: its share of the latency bound, and the share of an epoch left to it.

    >>> from penstock.model import SLA
    >>> bound = SharedBound({StepId(step): Bounds(SLA(1000, 1000)) for step in ("split", "count")})
    >>> bound.of(StepId("split")).latency_ms, bound.of(StepId("split")).alert_ms
    (500.0, 500.0)
    """

    def __init__(
        self, wholes: Mapping[StepId, Bounds], moves: bool = True, own_latency: bool = False
    ) -> None:
        """Create the shared bound of these steps.

        `wholes` are the limits of each step as if it had the whole bound to itself. With `moves`, shares
        are adjusted automatically; else the caller sets them. With `own_latency`, each step's own latency
        is measured.
        """
        self._wholes, self._own_latency = dict(wholes), own_latency
        self._sharing = Sharing(list(wholes)) if wholes and moves else None
        self.shares: Mapping[StepId, float] = {s: whole.share for s, whole in wholes.items()}
        if self._sharing is not None:
            self.shares = self._sharing.shares
        self._times = EpochTimes()
        self._left: dict[StepId, float] = {}

    def steer(self, whole: Bounds) -> None:
        """Set new limits for the flow, which all steps share."""
        self._wholes = {
            step: replace(whole, step=step, tail=before.tail)
            for step, before in self._wholes.items()
        }

    def set_tail(self, tail: float) -> None:
        """Set the ratio of the latency's 99th percentile to its average."""
        self._wholes = {step: replace(whole, tail=tail) for step, whole in self._wholes.items()}

    def note(
        self, spent_ms: Mapping[str, float], took_ms: float, age_ms: float
    ) -> dict[StepId, tuple[float, float]]:
        """Record an epoch. Returns the shares that have changed, each as (old, new).

        `spent_ms` are the milliseconds that each step's hosts worked, `took_ms` the length of the epoch,
        and `age_ms` the age of its rows when it began.
        """
        self._times.note(spent_ms, took_ms)
        changed = dict[StepId, tuple[float, float]]()
        if self._sharing is not None:
            bound_ms = min(whole.whole_ms for whole in self._wholes.values())
            changed = self._sharing.note(spent_ms, age_ms + took_ms, bound_ms)
            self.shares = self._sharing.shares
        self._left = {step: self._times.left_to(step, self.shares[step]) for step in self._wholes}
        return changed

    def note_step(self, step: StepId, kept: bool) -> dict[StepId, tuple[float, float]]:
        """Record whether a step of a live flow kept its part in a time slot.

        Returns the shares that have changed, each as (old, new).
        """
        if self._sharing is None:
            return {}
        changed = self._sharing.note_step(step, kept)
        self.shares = self._sharing.shares
        return changed

    def of(self, step: StepId) -> Bounds:
        """Present limits of a step."""
        whole, share = self._wholes[step], self.shares[step]
        # A latency measured from arrival to sink is that of all steps, so the alert is not divided.
        alert = whole.alert if self._own_latency else whole.alert_ms / share
        return replace(whole, share=share, alert=alert, left=self._left.get(step))
