"""Progress of a step's treatments: the only place that knows whether one is under way.

    idle ──begun──► waiting ──moved──► moving ──done──► idle
      │               │ ▲ begun again: treatments with more hosts replace the ones under way
      │               └──────────── done, or given up ─► idle
      ├──begun, without new hosts────► moving
      └──strayed──► adrift ──arrived, or given up──► idle

docs/states.md says what each state means.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from penstock.control.diagnose.load import service_rates
from penstock.control.events import StepPlacement
from penstock.control.examine.vitals import Vitals
from penstock.control.treat.decision import Treatment, after
from penstock.errors import ProtocolError
from penstock.model import HostId, StepId

State = Literal["idle", "waiting", "moving", "adrift"]
Change = Literal["begun", "begun at once", "moved", "done", "given up", "strayed", "arrived"]

TRANSITIONS: dict[tuple[State, Change], State] = {
    ("idle", "begun"): "waiting",
    ("idle", "begun at once"): "moving",
    ("waiting", "begun"): "waiting",
    ("waiting", "moved"): "moving",
    ("waiting", "done"): "idle",
    ("waiting", "given up"): "idle",
    ("moving", "done"): "idle",
    ("moving", "given up"): "idle",
    ("idle", "strayed"): "adrift",
    ("adrift", "arrived"): "idle",
    ("adrift", "given up"): "idle",
}
_STORY = 12
"""Number of past changes that an error message lists."""
_LATE = 3.0
"""Multiple of the usual start time after which epochs no longer wait for a host."""
_WORTH_MS = 100.0
"""Minimum gain in milliseconds that is worth waiting for."""


@dataclass(frozen=True)
class Treating:
    """Treatments that are under way."""

    treatments: tuple[Treatment, ...]
    since_ms: float
    latency_ms: float
    """Latency of the worst host when the treatments began."""
    vitals: Vitals | None = None
    """Vitals that the decision was based on."""

    @property
    def grows(self) -> bool:
        """Whether the treatments include new hosts."""
        return any(treatment.kind == "scale_out" for treatment in self.treatments)

    def __str__(self) -> str:
        return "; ".join(str(treatment) for treatment in self.treatments)


class Course:
    """State of the treatments of one step. Pure; used by one thread at a time.

    >>> import numpy as np
    >>> course, a = Course(StepId("sum")), HostId("sum/0")
    >>> out = Treatment("scale_out", (1,), a, HostId("sum/1"), "")
    >>> course.begin([out], 0.0, 640.0, None, StepPlacement((a,), np.array([0, 0])))
    False
    >>> course.state, course.may_revise
    ('waiting', True)
    >>> course.follow(StepPlacement((a, HostId("sum/1")), np.array([0, 1]), pending=1), 500.0)
    >>> course.state, course.may_revise
    ('moving', False)
    """

    def __init__(
        self, step: StepId, host_start_ms: float = float("inf"), revises: bool = True
    ) -> None:
        """Create the state of a step's treatments.

        Treatments are given up after `host_start_ms` milliseconds without progress. Without `revises`,
        treatments that wait for hosts are never replaced.
        """
        self.step, self._host_start_ms, self._revises = step, host_start_ms, revises
        self.state: State = "idle"
        self.treating: Treating | None = None
        self._owners: list[HostId] = []
        """Owner of each slot when the treatments began."""
        self._stuck = (0, 0.0)
        """Number of pending slots, and the time since which it has not changed."""
        self._story: list[str] = []

    @property
    def may_revise(self) -> bool:
        """Whether treatments may be replaced: no slot has moved, since new hosts are not up yet."""
        return self._revises and self.state == "waiting"

    def begin(
        self,
        treatments: Sequence[Treatment],
        now_ms: float,
        latency_ms: float,
        vitals: Vitals | None,
        placement: StepPlacement | None,
    ) -> bool:
        """Record that treatments have begun. Returns whether they replace others that had no effect yet.

        Treatments that replace others keep their start time.
        """
        before = self.treating
        since_ms = now_ms if before is None else before.since_ms
        treating = Treating(tuple(treatments), since_ms, latency_ms, vitals)
        self._change("begun" if treating.grows else "begun at once", now_ms)
        self.treating = treating
        self._owners = [] if placement is None else placement.names()
        return before is not None

    def follow(self, placement: StepPlacement, now_ms: float) -> None:
        """Check whether slots have begun to move."""
        if self.state == "waiting" and placement.names() != self._owners:
            self._change("moved", now_ms)
        elif self.state == "idle" and placement.pending:
            self._change("strayed", now_ms)

    def end(self, placement: StepPlacement, now_ms: float) -> Literal["done", "given up"] | None:
        """Check at an epoch boundary whether treatments have ended; `treating` is None then.

        They are given up if no slot has moved for as long as a host may take to come up. So are slots that
        move for another reason, because nothing can be decided while they are pending.
        """
        self.follow(placement, now_ms)
        if self.state == "idle":
            return None
        slots, since_ms = self._stuck
        if placement.pending and slots != placement.pending:
            self._stuck = (placement.pending, now_ms)
            return None
        if placement.pending and now_ms - since_ms <= self._host_start_ms:
            return None
        if placement.pending:
            self._change("given up", now_ms)
        else:
            self._change("arrived" if self.state == "adrift" else "done", now_ms)
        self.treating, self._stuck = None, (0, 0.0)
        return "given up" if placement.pending else "done"

    def _change(self, change: Change, now_ms: float) -> None:
        then = TRANSITIONS.get((self.state, change))
        self._story = [*self._story[1 - _STORY :], f"{now_ms:.0f} ms: {self.state}, {change}"]
        if then is None:
            raise ProtocolError(
                f"treatments of {self.step}: change {change!r} is not possible in state {self.state!r}",
                hint=f"earlier changes: {'; '.join(self._story)}",
            )
        self.state = then


def patience_ms(
    treating: Treating | None, read_ms: float, now_ms: float, usual_start_ms: float
) -> float:
    """Milliseconds that the next epoch of a step may wait for the new hosts of a treatment.

    The gain of waiting is the time that the new hosts save on rows that arrived since `read_ms`, when the
    last epoch read its rows. Waiting pays if the new hosts should be up in less time than that. An epoch
    never waits for longer than the gain.
    """
    if treating is None or not treating.grows or treating.vitals is None:
        return 0.0
    vitals, waiting_s = treating.vitals, (now_ms - read_ms) / 1000.0
    known, then = service_rates(vitals), after(vitals, treating.treatments)
    if known is None:
        return 0.0
    times = []
    for state in (vitals, then):
        served = np.where(state.service_rate > 0, state.service_rate, known.mean())
        times.append(float(np.max(state.host_rate * waiting_s / served)))
    gain_ms = 1000.0 * (times[0] - times[1])
    left_ms = max(0.0, treating.since_ms + usual_start_ms - now_ms)
    if now_ms - treating.since_ms > _LATE * usual_start_ms:
        return 0.0  # nobody knows when they come up, and each epoch would wait and be longer for it
    return gain_ms if gain_ms > _WORTH_MS and left_ms < gain_ms else 0.0
