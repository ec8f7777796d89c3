"""What a courier counts of one step for control: records by slot, and how long they took. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
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


@dataclass
class _Flying:
    """A chunk, some of whose records hosts have not applied."""

    cut: _Cut
    parts: set[str]
    """Hosts that it was sent to, and that have not applied it."""
    left: int
    """Records that were not applied."""


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
        self._flying: dict[int, _Flying] = {}

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
            self._flying[number] = _Flying(cut, parts, int(sent.sum()))

    def kept(self, number: int, host: str) -> None:
        """A host's part of a chunk was not sent: it waits in the courier."""
        self._flying[number].parts.discard(host)

    def applied(self, number: int, host: str, now_us: float, slots: Array | None = None) -> None:
        """A host has applied its part of a chunk; or the records of these slots, where they had waited."""
        flying = self._flying.get(number)
        if flying is None:
            return
        cut = flying.cut
        if slots is None:
            flying.parts.discard(host)
            own = cut.owner == cut.hosts.index(HostId(host))
            counts, records = np.where(own, cut.counts, 0), int(cut.records[own].sum())
        else:
            some = np.bincount(slots, minlength=len(cut.counts))
            counts, records = some, len(slots)
            if cut.records is not cut.counts:
                counts = np.rint(some * cut.counts / np.maximum(cut.records, 1)).astype(np.int64)
        flying.left -= records
        if flying.left <= 0:
            del self._flying[number]
        self._completed += counts
        self._latency_us += counts * max(now_us - cut.arrived_us, 0.0)
        self._done[host] += records

    def worked(self, host: str, busy_us: int) -> None:
        """A host has worked for this time since it last said so."""
        self._busy_us[host] += busy_us

    def counts(
        self, now_us: float, waiting: int = 0, kept: Iterable[tuple[str, float]] = ()
    ) -> StepCounts:
        """All counts as of now; `waiting` rows have arrived and were not cut. `kept` tells of hosts whose
        records wait in the courier, and when the first of these arrived."""
        oldest: dict[str, int] = {}
        sent = ((host, one.cut.oldest_us) for one in self._flying.values() for host in one.parts)
        for host, came_us in (*sent, *kept):
            oldest[host] = max(int(max(now_us - came_us, 0.0)), oldest.get(host, 0))
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
