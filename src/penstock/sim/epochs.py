"""An engine of epochs, one right after the other.

An epoch takes all that has arrived when it begins. Its steps work one after the other, each as long
as its slowest host, and all its records complete when the last of them is done. Burst workers may take part
of the rows, and hosts merge what they give.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.control.examine.vitals import Floats
from penstock.plan.epoch import Offload
from penstock.sim.burst_workers import SimWorkers
from penstock.sim.fleet import SimFleet
from penstock.sim.kernels import latency_bin
from penstock.sim.ledger import Ledger

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Intake:
    """The records of an epoch, by the time slots that they arrived in."""

    first: int
    """The first of those time slots."""
    records: Array
    """By time slot and slot."""
    arrival_ms: Array
    """When those of each time slot arrived, on average."""

    def age_ms(self, now_ms: float) -> float:
        """How long ago its records arrived, on average."""
        counts = self.records.sum(axis=1)
        return float(counts @ (now_ms - self.arrival_ms)) / max(1, int(counts.sum()))

    def split(self, fan_out: float, shares: Sequence[float], before: int) -> Intake:
        """What a following step gets of it: whole records, as even as can be.

        `before` is how many the step before it had put out earlier.
        """
        totals = before + np.concatenate([[0], np.cumsum(self.records.sum(axis=1))])
        by_then = np.floor(totals[:, None] * (fan_out * np.asarray(shares)) + 1e-6)
        return Intake(self.first, np.diff(by_then, axis=0).astype(np.int64), self.arrival_ms)


class SimSource:
    """Hands out the records of a trace as they arrive, each once.

    >>> source = SimSource(np.array([[4], [2]]), delta_ms=100.0)
    >>> one, two = source.take(50.0), source.take(200.0)
    >>> one.records.tolist(), one.arrival_ms.tolist()
    ([[2]], [25.0])
    >>> two.first, two.records.tolist(), two.arrival_ms.tolist()
    (0, [[2], [2]], [75.0, 150.0])
    """

    def __init__(self, counts: Array, delta_ms: float) -> None:
        self._counts, self._delta_ms = counts, delta_ms
        self._until_ms = 0.0
        self._taken = np.zeros(counts.shape[1], dtype=np.int64)
        """Records taken of the time slot that `_until_ms` is in."""

    def take(self, until_ms: float) -> Intake:
        """All that arrived since the last time, up to this one."""
        delta = self._delta_ms
        until_ms = min(until_ms, len(self._counts) * delta)
        first, last = int(self._until_ms / delta), int(until_ms / delta)
        records = self._counts[first : last + 1].astype(np.int64)
        starts = np.arange(first, first + len(records)) * delta
        middle = (np.maximum(starts, self._until_ms) + np.minimum(starts + delta, until_ms)) / 2
        taken = np.zeros_like(self._taken)
        if last < len(self._counts):
            # Of the time slot that is going on, what has arrived; whole records only.
            taken = (self._counts[last] * ((until_ms - last * delta) / delta)).astype(np.int64)
            records[-1] = taken
        if len(records):
            records[0] -= self._taken
        self._until_ms, self._taken = until_ms, taken
        return Intake(first, records, middle)


def host_records(fleet: SimFleet, intake: Intake, kept: Floats | None = None) -> Array:
    """What each host has to do of it, if only so much is left to it of each slot."""
    by_slot = intake.records.sum(axis=0)
    return np.bincount(fleet.owner, by_slot if kept is None else by_slot * kept, len(fleet.hosts))


@dataclass(frozen=True, eq=False)
class Effort:
    """What an epoch is for one step: what its hosts do of it, and burst workers for them."""

    records: Array
    """By host; what it takes to merge what burst workers give is counted as records."""
    useful_ms: float
    """Time that the step works, or waits for burst workers."""
    busy_ms: float
    """The same with pauses of hosts that give or get slots."""
    rows: int = 0
    """Rows that go to burst workers."""
    partials: float = 0.0
    """Partial states that these make of them."""
    workers: int = 0
    money: float = 0.0
    """Spent on burst workers."""

    @staticmethod
    def of_hosts(fleet: SimFleet, records: Array, began_ms: float) -> Effort:
        """What hosts alone do, in an epoch that begins at this moment: as long as the slowest of them."""
        work_ms = records * 1000.0 / fleet.service_rate
        busy_ms = work_ms + np.maximum(0.0, fleet.paused_ms - began_ms)
        # A host that gives or gets slots but has nothing to do holds nobody up.
        useful, busy = (
            float(np.max(ms, where=records > 0, initial=0.0)) for ms in (work_ms, busy_ms)
        )
        return Effort(records, useful, busy)


def complete(
    ledger: Ledger, intake: Intake, done_ms: float, own_ms: float, all_ms: float, share: float
) -> None:
    """Enter the records of a step as completed.

    The step worked for `own_ms`, all steps together for `all_ms`. Of the time that nobody worked, a
    step is answerable for its share of the bound.
    """
    m = int(np.ceil(done_ms / ledger.delta_ms)) - 1
    if m >= len(ledger.completed):
        return
    latency_ms = done_ms - intake.arrival_ms
    count, sums = intake.records.sum(axis=0), latency_ms @ intake.records
    own = own_ms * count + share * (sums - all_ms * count)
    ledger.completed[m] += count
    ledger.latency[m] += own.astype(np.float32)
    ledger.carried[m] += (sums - own).astype(np.float32)
    row = ledger.histogram[int(m * ledger.delta_ms / ledger.series_ms)]
    for records, latency in zip(intake.records.sum(axis=1).tolist(), latency_ms, strict=True):
        row[latency_bin(latency)] += records


def planned(offload: Offload, rows: int) -> tuple[Floats, int]:
    """The share of each slot's rows that goes to burst workers, and how many of them; 0: nothing goes.

    It is what was decided; or more, if couriers find that so many rows are too many. All couriers are
    taken to bring as much as they do as a rule, so that each finds the same.

    >>> from penstock.plan.reflex import Reflex
    >>> reflex = Reflex(900.0, 600.0, 300.0, 0.0, 8)
    >>> offload = Offload(np.array([0.0, 0.5]), 2, 1000, reflex=reflex)
    >>> planned(offload, rows=2400)[0].tolist()
    [0.75, 0.75]
    """
    shares, reflex = offload.shares, offload.reflex
    workers = offload.workers if shares.any() else 0
    share = 0.0 if reflex is None else reflex.share(rows)
    if reflex is not None and share > 0 and (share > shares).any():
        shares = np.maximum(shares, share)
        workers = max(workers, reflex.at_once(round(share * rows)))
    return shares, workers


def helped(
    fleet: SimFleet, pool: SimWorkers, intake: Intake, shares: Floats, workers: int, began_ms: float
) -> Effort:
    """Share the work of an epoch out between the hosts of a step and burst workers.

    Both work at the same time; the step is done when the last of them is.
    """
    before = pool.usage.money
    rows = round(float(intake.records.sum(axis=0) @ shares))
    took_ms = pool.work(began_ms, rows, workers)
    partials = pool.plane.partials(rows, workers)
    merge = pool.plane.merge_cost * partials / max(rows, 1)
    records = host_records(fleet, intake, 1.0 - shares * (1.0 - merge))
    hosts = Effort.of_hosts(fleet, records, began_ms)
    return replace(
        hosts,
        useful_ms=max(hosts.useful_ms, took_ms),
        busy_ms=max(hosts.busy_ms, took_ms),
        rows=rows,
        partials=partials,
        workers=workers if rows else 0,
        money=pool.usage.money - before,
    )
