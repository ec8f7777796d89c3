"""Scaling of the couriers of a live flow with the load."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from penstock.control.crew_size import (
    CourierLook,
    CrewLimits,
    CrewLook,
    CrewPlan,
    Partition,
    planned,
)
from penstock.control.journal.entries import couriers_changed
from penstock.control.journal.entry import At, Entry
from penstock.driver.checkpoints import Underway
from penstock.driver.couriers import CourierCrew
from penstock.wire.live import EpochPassed

_log = logging.getLogger("penstock.live")

LOOK_MS = 1_000.0
"""Least time in milliseconds over which couriers are observed: shorter epochs say little."""


class CrewScaling:
    """Observes couriers by their checkpoints, and scales their number. Used by the query's thread.

    A new courier joins a run once it is up. To remove a courier, or to move partitions, a new run must begin,
    which the runner does if `must_renew` is true.
    """

    def __init__(
        self,
        crew: CourierCrew,
        limits: CrewLimits,
        tell: Callable[[Entry], None] = lambda entry: None,
        look_ms: float = LOOK_MS,
        dry_run: bool = False,
    ) -> None:
        """In a `dry_run`, plans are only reported to `tell` and not carried out."""
        self._dry_run = dry_run
        self._crew, self._limits, self._tell, self._look_ms = crew, limits, tell, look_ms
        self.loads: Mapping[Partition, float] = {}
        """Load of each partition whose load is known, by which a run distributes partitions."""
        self._redeal = False
        self._looks: list[CrewLook] = []
        self._epochs: list[Underway] = []
        """Epochs since the last observation."""
        self._warm = False

    def begun(self) -> None:
        """Reset for a new run, in which partitions are distributed by the newest loads."""
        self._redeal = self._warm = False
        self._looks, self._epochs = [], []

    @property
    def must_renew(self) -> bool:
        """Whether a new run should begin, to move partitions or to remove a courier."""
        return self._redeal or self._crew.surplus

    def take_in(self, whole: Underway) -> None:
        """Take in a durable checkpoint, and scale the couriers if the load asks for it."""
        self._epochs.append(whole)
        if whole.sent_ms - self._epochs[0].began_ms < self._look_ms:
            return
        epochs, self._epochs = self._epochs, []
        if not self._warm:  # the first epochs of a run read rows that had waited
            self._warm = True
            return
        look = _look(epochs)
        kept_ms = look.time_ms - 2 * self._limits.calm_ms
        self._looks = [*(old for old in self._looks if old.time_ms > kept_ms), look]
        plan = planned(self._looks, self._limits)
        if plan is not None:
            self._carry_out(plan, whole)

    def _carry_out(self, plan: CrewPlan, whole: Underway) -> None:
        now, asked = whole.couriers, len(self._crew.names)
        at = At("couriers", whole.sent_ms, whole.message.epoch)
        if self._dry_run:
            self._looks = []  # observe again before the next report
            self._tell(couriers_changed(at, asked, plan.couriers, plan.reason, dry_run=True))
            return
        self.loads = plan.loads
        if plan.couriers == asked != now:
            return  # they were started, and are not up yet
        self._crew.start(plan.couriers)
        self._redeal = plan.couriers == now
        entry = couriers_changed(at, asked, plan.couriers, plan.reason)
        _log.info(
            "Couriers: %s",
            entry.text,
            extra={
                "couriers": plan.couriers,
                "before": asked,
                "reason": plan.reason,
                "epoch": at.epoch,
            },
        )
        self._tell(entry)


def _look(epochs: Sequence[Underway]) -> CrewLook:
    """One observation, from consecutive epochs."""
    took_ms = max(1.0, epochs[-1].sent_ms - epochs[0].began_ms)
    useful: dict[str, float] = {}
    for whole in epochs:
        for host, sealed in whole.sealed.items():
            useful[host] = useful.get(host, 0.0) + sealed.vitals.useful_ms
    couriers = (
        _courier([whole.passed[number] for whole in epochs], took_ms)
        for number in sorted(epochs[-1].passed)
    )
    return CrewLook(epochs[-1].sent_ms, tuple(couriers), max(useful.values(), default=0) / took_ms)


def _courier(passed: Sequence[EpochPassed], took_ms: float) -> CourierLook:
    last = passed[-1]
    rows = {(source, name): 0 for source, places in last.positions.items() for name in places}
    for epoch in passed:
        for source, read in epoch.rows.items():
            for name, count in read.items():
                rows[source, name] += count
    return CourierLook(sum(epoch.busy_ms for epoch in passed) / took_ms, rows, last.lag_ms)
