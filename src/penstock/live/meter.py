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
    """Records by slot."""
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

    The records of a chunk count as arrived together, when they did on average. Those that burst workers
    carry count by the slots of their rows; what these have become is among what hosts have done.

    >>> routes = RouteTable((HostId("a"), HostId("b")), np.array([0, 1], np.int32))
    >>> meter = StepMeter("sum", slots=2)
    >>> meter.cut(0, np.array([3, 1]), routes, arrived_us=1_000.0, oldest_us=900.0)
    >>> meter.applied(0, "a", now_us=5_000.0)
    >>> told = meter.counts(now_us=6_000.0)
    >>> told.arrived.tolist(), told.completed.tolist(), told.latency_us.tolist()
    ([3, 1], [3, 0], [12000.0, 0.0])
    >>> told.done, told.oldest_us
    ({'a': 3}, {'b': 5100})
    >>> meter.carried(np.array([40, 0]))
    >>> meter.brought(1, {"a": 2})
    >>> meter.applied(1, "a", now_us=7_000.0)
    >>> meter.settled(np.array([40, 0]), arrived_us=1_000.0, now_us=7_000.0)
    >>> told = meter.counts(now_us=7_000.0)
    >>> told.arrived.tolist(), told.completed.tolist(), told.done
    ([43, 1], [43, 0], {'a': 5})
    """

    def __init__(self, step: str, slots: int) -> None:
        self._step = step
        self._arrived, self._completed = np.zeros(slots, np.int64), np.zeros(slots, np.int64)
        self._latency_us = np.zeros(slots)
        self._done: Counter[str] = Counter()
        self._busy_us: Counter[str] = Counter()
        self._flying: dict[int, _Flying] = {}
        self._brought: dict[tuple[int, str], int] = {}
        """Chunk of what burst workers made, and host -> records that it has not applied."""

    def cut(
        self, number: int, counts: Array, routes: RouteTable, arrived_us: float, oldest_us: float
    ) -> None:
        """A chunk is about to be sent, with so many records of each slot."""
        self._arrived += counts
        parts = {str(routes.hosts[n]) for n in np.unique(routes.owner[counts > 0]).tolist()}
        if parts:
            cut = _Cut(counts, routes.owner, routes.hosts, arrived_us, oldest_us)
            self._flying[number] = _Flying(cut, parts, int(counts.sum()))

    def kept(self, number: int, host: str) -> None:
        """A host's part of a chunk is not sent: it waits in the courier."""
        self._brought.pop((number, host), None)
        if number in self._flying:
            self._flying[number].parts.discard(host)

    def carried(self, counts: Array) -> None:
        """Rows of a chunk go to burst workers: so many records of each slot that hosts do not get."""
        self._arrived += counts

    def brought(self, number: int, records: dict[str, int]) -> None:
        """A chunk of what burst workers made is about to be sent: host -> its records."""
        self._brought |= {(number, host): count for host, count in records.items()}

    def settled(self, counts: Array, arrived_us: float, now_us: float) -> None:
        """Hosts have applied all that was made of rows which stood for these records."""
        self._completed += counts
        self._latency_us += counts * max(now_us - arrived_us, 0.0)

    def applied(self, number: int, host: str, now_us: float, slots: Array | None = None) -> None:
        """A host has applied its part of a chunk; or the records of these slots, which had waited."""
        flying = self._flying.get(number)
        if slots is not None:
            self._done[host] += len(slots)
            counts = np.bincount(slots, minlength=len(self._arrived))
        else:
            self._done[host] += self._brought.pop((number, host), 0)
            if flying is None or host not in flying.parts:
                return
            flying.parts.remove(host)
            own = flying.cut.owner == flying.cut.hosts.index(HostId(host))
            counts = np.where(own, flying.cut.counts, 0)
            self._done[host] += int(counts.sum())
        if flying is None:
            return
        flying.left -= int(counts.sum())
        if flying.left <= 0:
            del self._flying[number]
        self._completed += counts
        self._latency_us += counts * max(now_us - flying.cut.arrived_us, 0.0)

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
