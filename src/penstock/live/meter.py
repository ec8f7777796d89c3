"""What a courier counts of one step for control: records by slot, and how long they took. Pure."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from penstock.model import HostId
from penstock.plan.epoch import RouteTable
from penstock.state.arrays import Array
from penstock.wire.live import StepCounts


class _Cut(NamedTuple):
    """A chunk that was sent."""

    counts: Array
    """Rows by slot, or records where rows are combined."""
    records: Array
    """What hosts have to apply of them, by slot."""
    owner: Array
    hosts: tuple[HostId, ...]
    arrived_us: float
    """When its rows arrived, on average."""
    oldest_us: float
    """When the first of them arrived."""


class StepMeter:
    """Counts what one courier sends to the hosts of one step, since a run began.

    The records of a chunk count as arrived together, when they did on average.

    >>> routes = RouteTable((HostId("a"), HostId("b")), np.array([0, 1], np.int32))
    >>> meter = StepMeter("sum", slots=2)
    >>> meter.cut(0, np.array([3, 1]), routes, arrived_us=1_000.0, oldest_us=900.0)
    >>> meter.applied(0, "a", now_us=5_000.0)
    >>> told = meter.counts(now_us=6_000.0)
    >>> told.arrived.tolist(), told.completed.tolist(), told.latency_us.tolist()
    ([3, 1], [3, 0], [12000.0, 0.0])
    >>> told.done, told.oldest_us
    ({'a': 3}, {'b': 5100})
    """

    def __init__(self, step: str, slots: int) -> None:
        self._step = step
        self._arrived, self._completed = np.zeros(slots, np.int64), np.zeros(slots, np.int64)
        self._latency_us = np.zeros(slots)
        self._done: Counter[str] = Counter()
        self._busy_us: Counter[str] = Counter()
        self._flying: dict[int, tuple[_Cut, set[str]]] = {}
        """Chunk -> what it was, and the hosts that have not applied it."""

    def cut(
        self,
        number: int,
        counts: Array,
        routes: RouteTable,
        arrived_us: float,
        oldest_us: float,
        records: Array | None = None,
    ) -> None:
        """A chunk is about to be sent, with so many records of each slot. Where these are partial states,
        `counts` are the rows that they were made of."""
        self._arrived += counts
        sent = counts if records is None else records
        parts = {str(routes.hosts[n]) for n in np.unique(routes.owner[sent > 0]).tolist()}
        if parts:
            cut = _Cut(counts, sent, routes.owner, routes.hosts, arrived_us, oldest_us)
            self._flying[number] = cut, parts

    def applied(self, number: int, host: str, now_us: float) -> None:
        """A host has applied its part of a chunk."""
        cut, parts = self._flying.get(number, (None, set[str]()))
        if cut is None or host not in parts:
            return
        parts.remove(host)
        if not parts:
            del self._flying[number]
        own = cut.owner == cut.hosts.index(HostId(host))
        counts = np.where(own, cut.counts, 0)
        self._completed += counts
        self._latency_us += counts * max(now_us - cut.arrived_us, 0.0)
        self._done[host] += int(cut.records[own].sum())

    def worked(self, host: str, busy_us: int) -> None:
        """A host has worked for this time since it last said so."""
        self._busy_us[host] += busy_us

    def counts(self, now_us: float, waiting: int = 0) -> StepCounts:
        """All counts as of now; `waiting` rows have arrived and were not cut."""
        oldest: dict[str, int] = {}
        for cut, parts in self._flying.values():
            age_us = int(max(now_us - cut.oldest_us, 0.0))
            for host in parts:
                oldest[host] = max(age_us, oldest.get(host, 0))
        return StepCounts(
            self._step,
            self._arrived.copy(),
            self._completed.copy(),
            self._latency_us.copy(),
            dict(self._done),
            dict(self._busy_us),
            oldest,
            waiting,
        )
