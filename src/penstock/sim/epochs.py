"""A simulated engine with epochs that follow each other at once.

An epoch takes all records that have arrived when it begins. Its steps run one after the other, each for as
long as its slowest host, and all its records complete when the last step is done. Burst workers may take some
of the rows, and hosts merge their partial states.
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
    """The records of an epoch, by the time slot of their arrival."""

    first: int
    """Number of the first time slot."""
    records: Array
    """Number of records by time slot and slot."""
    arrival_ms: Array
    """Mean arrival time of the records in each time slot, in milliseconds."""

    def age_ms(self, now_ms: float) -> float:
        """Mean age of the records in milliseconds."""
        counts = self.records.sum(axis=1)
        return float(counts @ (now_ms - self.arrival_ms)) / max(1, int(counts.sum()))

    def split(self, fan_out: float, shares: Sequence[float], before: int) -> Intake:
        """The intake of the following step, in whole records that are distributed as evenly as possible.

        `before` is the number of records that this step has completed in earlier epochs.
        """
        totals = before + np.concatenate([[0], np.cumsum(self.records.sum(axis=1))])
        by_then = np.floor(totals[:, None] * (fan_out * np.asarray(shares)) + 1e-6)
        return Intake(self.first, np.diff(by_then, axis=0).astype(np.int64), self.arrival_ms)


class SimSource:
    """A source that returns each record of a trace once, after it has arrived.

    >>> source = SimSource(np.array([[4], [2]]), delta_ms=100.0)
    >>> first, second = source.take(50.0), source.take(200.0)
    >>> first.records.tolist(), first.arrival_ms.tolist()
    ([[2]], [25.0])
    >>> second.first, second.records.tolist(), second.arrival_ms.tolist()
    (0, [[2], [2]], [75.0, 150.0])
    """

    def __init__(self, counts: Array, delta_ms: float) -> None:
        self._counts, self._delta_ms = counts, delta_ms
        self._until_ms = 0.0
        self._taken = np.zeros(counts.shape[1], dtype=np.int64)
        """Records already taken from the time slot of `_until_ms`, by slot."""

    def take(self, until_ms: float) -> Intake:
        """All records that arrived since the last call, up to `until_ms`."""
        delta = self._delta_ms
        until_ms = min(until_ms, len(self._counts) * delta)
        first, last = int(self._until_ms / delta), int(until_ms / delta)
        records = self._counts[first : last + 1].astype(np.int64)
        starts = np.arange(first, first + len(records)) * delta
        middle = (np.maximum(starts, self._until_ms) + np.minimum(starts + delta, until_ms)) / 2
        taken = np.zeros_like(self._taken)
        if last < len(self._counts):
            # From the current time slot, take the whole records that have arrived so far.
            taken = (self._counts[last] * ((until_ms - last * delta) / delta)).astype(np.int64)
            records[-1] = taken
        if len(records):
            records[0] -= self._taken
        self._until_ms, self._taken = until_ms, taken
        return Intake(first, records, middle)


def host_records(fleet: SimFleet, intake: Intake, kept: Floats | None = None) -> Array:
    """Records of the intake for each host. `kept` is the share of each slot that is left for hosts."""
    by_slot = intake.records.sum(axis=0)
    return np.bincount(fleet.owner, by_slot if kept is None else by_slot * kept, len(fleet.hosts))


@dataclass(frozen=True, eq=False)
class Effort:
    """The work of an epoch in one step, by its hosts and its burst workers."""

    records: Array
    """Records for each host. The work of merging partial states is counted as records."""
    useful_ms: float
    """Milliseconds that the step works, or waits for burst workers."""
    busy_ms: float
    """`useful_ms` including the pauses of hosts that give or get slots."""
    rows: int = 0
    """Number of rows that go to burst workers."""
    partials: float = 0.0
    """Number of partial states that burst workers return."""
    workers: int = 0
    """Number of burst workers that run at the same time."""
    money: float = 0.0
    """Cost of burst workers in US dollars."""

    @staticmethod
    def of_hosts(fleet: SimFleet, records: Array, began_ms: float) -> Effort:
        """The work of an epoch that begins at `began_ms`, by hosts alone. It ends with the slowest host."""
        work_ms = records * 1000.0 / fleet.service_rate
        busy_ms = work_ms + np.maximum(0.0, fleet.paused_ms - began_ms)
        # A host that gives or gets slots but has no records delays nobody.
        useful, busy = (
            float(np.max(ms, where=records > 0, initial=0.0)) for ms in (work_ms, busy_ms)
        )
        return Effort(records, useful, busy)


def complete(
    ledger: Ledger, intake: Intake, done_ms: float, own_ms: float, all_ms: float, share: float
) -> None:
    """Add the records of a step to the ledger as completed.

    The step worked for `own_ms`, all steps together for `all_ms`. Time in which no step worked is attributed
    to the steps by their share of the bound.
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
    """The share of each slot's rows that goes to burst workers, and the number of burst workers.

    It is the decided share, or more if couriers find that the epoch has too many rows. All couriers are
    assumed to have their usual part of the rows, so that all come to the same share.

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
    """Divide the work of an epoch between the hosts of a step and burst workers.

    Both work at the same time. The step is done when the last of them is.
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
