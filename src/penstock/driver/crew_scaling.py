"""Couriers that come and go with the load: what they tell goes to the policy, what it plans to the crew."""

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
"""Milliseconds that a look at couriers spans at least: shorter epochs say little."""


class CrewScaling:
    """Follows couriers by their checkpoints, and has the crew grow and shrink. Used by the query's thread.

    A courier that is added comes into a run when it is up; one that is to leave, and partitions that are to
    move, wait for a renewal, which the runner does when `must_renew` says so.
    """

    def __init__(
        self,
        crew: CourierCrew,
        limits: CrewLimits,
        tell: Callable[[Entry], None] = lambda entry: None,
        look_ms: float = LOOK_MS,
        dry_run: bool = False,
    ) -> None:
        """If it is a `dry_run`, it only tells what it would do."""
        self._dry_run = dry_run
        self._crew, self._limits, self._tell, self._look_ms = crew, limits, tell, look_ms
        self.loads: Mapping[Partition, float] = {}
        """What each partition costs, as far as is known: runs deal partitions by it."""
        self._redeal = False
        self._looks: list[CrewLook] = []
        self._epochs: list[Underway] = []
        """Epochs since the last look."""
        self._warm = False

    def begun(self) -> None:
        """A run begins: partitions are dealt by the newest loads, and what was seen before is over."""
        self._redeal = self._warm = False
        self._looks, self._epochs = [], []

    @property
    def must_renew(self) -> bool:
        """Whether partitions are to move, or a courier is to leave."""
        return self._redeal or self._crew.surplus

    def take_in(self, whole: Underway) -> None:
        """A checkpoint is durable."""
        self._epochs.append(whole)
        if whole.sent_ms - self._epochs[0].began_ms < self._look_ms:
            return
        epochs, self._epochs = self._epochs, []
        if not self._warm:  # streams have just been opened, and rows that had waited were read
            self._warm = True
            return
        look = _look(epochs)
        kept_ms = look.time_ms - 2 * self._limits.calm_ms
        self._looks = [*(one for one in self._looks if one.time_ms > kept_ms), look]
        plan = planned(self._looks, self._limits)
        if plan is not None:
            self._carry_out(plan, whole)

    def _carry_out(self, plan: CrewPlan, whole: Underway) -> None:
        now, asked = whole.couriers, len(self._crew.names)
        at = At("couriers", whole.sent_ms, whole.told.epoch)
        if self._dry_run:
            self._looks = []  # look again before it is told again
            self._tell(couriers_changed(at, asked, plan.couriers, plan.reason, dry_run=True))
            return
        self.loads = plan.loads
        if plan.couriers == asked != now:
            return  # they were asked for, and are not up yet
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
    """What couriers told of epochs that follow one another."""
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
    for one in passed:
        for source, read in one.rows.items():
            for name, count in read.items():
                rows[source, name] += count
    return CourierLook(sum(one.busy_ms for one in passed) / took_ms, rows, last.lag_ms)
