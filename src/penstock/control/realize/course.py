"""The course of a step's treatments: the one place that knows whether something is under way.

    idle ──begun──► waiting ──moved──► moving ──done──► idle
      │               │ ▲ begun again: more hosts take the place of those that were asked for
      │               └──────────── done, or given up ─► idle
      ├──begun, without new hosts────► moving
      └──strayed──► adrift ──arrived, or given up──► idle

docs/states.md says what each state means.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from penstock.control.events import Placement
from penstock.control.examine.vitals import Vitals
from penstock.control.treat.decision import Treatment
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
"""Changes that an error tells."""


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


class Course:
    """Where the treatments of one step stand. Pure; used by one thread at a time.

    >>> import numpy as np
    >>> course, a = Course(StepId("sum")), HostId("sum/0")
    >>> out = Treatment("scale_out", (1,), a, HostId("sum/1"), "")
    >>> course.begin([out], 0.0, 640.0, None, Placement((a,), np.array([0, 0])))
    False
    >>> course.state, course.may_revise
    ('waiting', True)
    >>> course.follow(Placement((a, HostId("sum/1")), np.array([0, 1]), pending=1), 500.0)
    >>> course.state, course.may_revise
    ('moving', False)
    """

    def __init__(
        self, step: StepId, host_start_ms: float = float("inf"), revises: bool = True
    ) -> None:
        """Slots that do not move for `host_start_ms` are given up. Without `revises`, treatments that
        wait for hosts are never replaced."""
        self.step, self._host_start_ms, self._revises = step, host_start_ms, revises
        self.state: State = "idle"
        self.treating: Treating | None = None
        self._owners: list[HostId] = []
        """Per slot: who had it when treatments began."""
        self._stuck = (0, 0.0)
        """Slots that are not where they should be, and since when it is just so many."""
        self._story: list[str] = []

    @property
    def may_revise(self) -> bool:
        """Whether it waits for hosts that have been given nothing: more can be asked for then."""
        return self._revises and self.state == "waiting"

    def begin(
        self,
        treatments: Sequence[Treatment],
        now_ms: float,
        latency_ms: float,
        vitals: Vitals | None,
        placement: Placement | None,
    ) -> bool:
        """Treatments have begun. Whether they take the place of others that had no effect yet.

        Who waits for hosts has waited since the first were asked for.
        """
        before = self.treating
        since_ms = now_ms if before is None else before.since_ms
        made = Treating(tuple(treatments), since_ms, latency_ms, vitals)
        self._change("begun" if made.grows else "begun at once", now_ms)
        self.treating = made
        self._owners = [] if placement is None else placement.names()
        return before is not None

    def follow(self, placement: Placement, now_ms: float) -> None:
        """See whether slots have begun to move."""
        if self.state == "waiting" and placement.names() != self._owners:
            self._change("moved", now_ms)
        elif self.state == "idle" and placement.pending:
            self._change("strayed", now_ms)

    def end(self, placement: Placement, now_ms: float) -> Literal["done", "given up"] | None:
        """See at a boundary whether what is under way has ended; `treating` is None then.

        It is given up if no slot has moved for as long as a host may take to come up. So are slots
        that are on their way for another reason: nothing could be decided while they wait.
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
                f"the treatments of {self.step} cannot be {change!r} while they are {self.state!r}",
                hint=f"what came before: {'; '.join(self._story)}",
            )
        self.state = then
