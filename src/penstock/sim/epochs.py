"""An engine of epochs, one right after the other.

An epoch takes all that has arrived when it begins. Its steps work one after the other, each as long
as its slowest host, and all its records complete when the last of them is done. Functions may take part
of the rows, and hosts merge what they give.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.control.examine.vitals import Floats
from penstock.plan.epoch import Offload
from penstock.sim.fleet import Fleet
from penstock.sim.functions import Pool
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


class Source:
    """Hands out the records of a trace as they arrive, each once.

    >>> source = Source(np.array([[4], [2]]), delta_ms=100.0)
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
        """Of the time slot that `_until_ms` is in."""

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


def slowest_ms(fleet: Fleet, records: Array, began_ms: float | None = None) -> float:
    """How long hosts work on so many records each: as long as the slowest of them.

    With the pauses that are not over when the epoch begins, if that is told.
    """
    busy_ms = records * 1000.0 / fleet.service_rate
    if began_ms is not None:
        busy_ms += np.maximum(0.0, fleet.paused_ms - began_ms)
    # A host that gives or gets slots but has nothing to do holds nobody up.
    return float(np.max(busy_ms, where=records > 0, initial=0.0))


def host_records(fleet: Fleet, intake: Intake, kept: Floats | None = None) -> Array:
    """What each host has to do of it, if only so much is left to it of each slot."""
    by_slot = intake.records.sum(axis=0)
    return np.bincount(fleet.owner, by_slot if kept is None else by_slot * kept, len(fleet.hosts))


@dataclass(frozen=True, eq=False)
class Effort:
    """What an epoch is for one step: what its hosts do of it, and functions for them."""

    records: Array
    """By host; what it takes to merge what functions give is counted as records."""
    useful_ms: float
    """That the step works, or waits for functions."""
    busy_ms: float
    """The same with pauses of hosts that give or get slots."""
    rows: int = 0
    """That go to functions."""
    partials: float = 0.0
    """Partial states that these make of them."""
    functions: int = 0
    money: float = 0.0
    """For functions."""

    @staticmethod
    def of_hosts(fleet: Fleet, records: Array, began_ms: float) -> Effort:
        """Of hosts alone, in an epoch that begins at this moment."""
        useful_ms, busy_ms = slowest_ms(fleet, records), slowest_ms(fleet, records, began_ms)
        return Effort(records, useful_ms, busy_ms)

    def beside(
        self, rows: int, partials: float, functions: int, took_ms: float, money: float
    ) -> Effort:
        """With functions that work at the same time, and so long."""
        useful_ms, busy_ms = max(self.useful_ms, took_ms), max(self.busy_ms, took_ms)
        return Effort(
            self.records, useful_ms, busy_ms, rows, partials, functions if rows else 0, money
        )


@dataclass(frozen=True)
class Spent:
    """What an epoch took, as far as one step is concerned."""

    own_ms: float
    """The step's own work."""
    all_ms: float
    """That of all steps together."""
    share: float
    """The step's part of the bound: it is answerable for as much of the time that nobody works."""


def complete(ledger: Ledger, intake: Intake, done_ms: float, spent: Spent) -> None:
    """Enter the records of a step as completed."""
    m = int(np.ceil(done_ms / ledger.delta_ms)) - 1
    if m >= len(ledger.completed):
        return
    latency_ms = done_ms - intake.arrival_ms
    count, sums = intake.records.sum(axis=0), latency_ms @ intake.records
    own = spent.own_ms * count + spent.share * (sums - spent.all_ms * count)
    ledger.completed[m] += count
    ledger.latency[m] += own.astype(np.float32)
    ledger.carried[m] += (sums - own).astype(np.float32)
    row = ledger.histogram[int(m * ledger.delta_ms / ledger.series_ms)]
    for records, latency in zip(intake.records.sum(axis=1).tolist(), latency_ms, strict=True):
        row[latency_bin(latency)] += records


@dataclass(frozen=True, eq=False)
class Planned:
    """What functions get of one epoch."""

    shares: Floats
    """Of the rows of each slot."""
    functions: int

    @staticmethod
    def of(offload: Offload, rows: int) -> Planned | None:
        """As was decided; or more, if couriers find that so many rows are too many. None: nothing.

        All couriers are taken to bring as much as they do as a rule, so that each finds the same.

        >>> from penstock.plan.reflex import Reflex
        >>> reflex = Reflex(900.0, 600.0, 300.0, 0.0, 8)
        >>> offload = Offload(np.array([0.0, 0.5]), 2, 1000, reflex=reflex)
        >>> Planned.of(offload, rows=2400).shares.tolist()
        [0.75, 0.75]
        """
        shares, reflex = offload.shares, offload.reflex
        functions = offload.functions if shares.any() else 0
        share = 0.0 if reflex is None else reflex.share(rows)
        if reflex is not None and share > 0 and (share > shares).any():
            shares = np.maximum(shares, share)
            functions = max(functions, reflex.at_once(round(share * rows)))
        return Planned(shares, functions) if functions and shares.any() else None


def helped(fleet: Fleet, pool: Pool, intake: Intake, planned: Planned, began_ms: float) -> Effort:
    """Share the work of an epoch out between the hosts of a step and functions.

    Both work at the same time; the step is done when the last of them is.
    """
    before, shares = pool.usage.money, planned.shares
    rows = round(float(intake.records.sum(axis=0) @ shares))
    took_ms = pool.work(began_ms, rows, planned.functions)
    partials = pool.plane.partials(rows, planned.functions)
    merge = pool.plane.merge_cost * partials / max(rows, 1)
    records = host_records(fleet, intake, 1.0 - shares * (1.0 - merge))
    hosts = Effort.of_hosts(fleet, records, began_ms)
    return hosts.beside(rows, partials, planned.functions, took_ms, pool.usage.money - before)
