"""Counts of one courier's records of one step, for control: by slot, with their latencies. Pure."""

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
    """Number of records of each slot."""
    owner: Array
    hosts: tuple[HostId, ...]
    arrived_us: float
    """Mean arrival time of its rows, in microseconds since 1970."""
    oldest_us: float
    """Arrival time of its first row, in microseconds since 1970."""


@dataclass
class _Flying:
    """A chunk with records that hosts have not applied."""

    cut: _Cut
    parts: set[str]
    """Hosts that have received a part of it and not applied that part."""
    left: int
    """Number of records that hosts have not applied."""


class StepMeter:
    """Counts the records that one courier sends to the hosts of one step in a run.

    All records of a chunk count with their mean arrival time. Rows that go to burst workers count by their
    slots as arrived and completed. The partial states made of them count as records done by hosts.

    >>> routes = RouteTable((HostId("a"), HostId("b")), np.array([0, 1], np.int32))
    >>> meter = StepMeter("sum", slots=2)
    >>> meter.cut(0, np.array([3, 1]), routes, arrived_us=1_000.0, oldest_us=900.0)
    >>> meter.applied(0, "a", now_us=5_000.0)
    >>> counts = meter.counts(now_us=6_000.0)
    >>> counts.arrived.tolist(), counts.completed.tolist(), counts.latency_us.tolist()
    ([3, 1], [3, 0], [12000.0, 0.0])
    >>> counts.done, counts.oldest_us
    ({'a': 3}, {'b': 5100})
    >>> meter.carried(np.array([40, 0]))
    >>> meter.brought(1, {"a": 2})
    >>> meter.applied(1, "a", now_us=7_000.0)
    >>> meter.settled(np.array([40, 0]), arrived_us=1_000.0, now_us=7_000.0)
    >>> counts = meter.counts(now_us=7_000.0)
    >>> counts.arrived.tolist(), counts.completed.tolist(), counts.done
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
        """(chunk of partial states, host) -> records that the host has not applied."""

    def cut(
        self, number: int, counts: Array, routes: RouteTable, arrived_us: float, oldest_us: float
    ) -> None:
        """Count a chunk that is about to be sent. `counts` holds its number of records of each slot."""
        self._arrived += counts
        parts = {str(routes.hosts[n]) for n in np.unique(routes.owner[counts > 0]).tolist()}
        if parts:
            cut = _Cut(counts, routes.owner, routes.hosts, arrived_us, oldest_us)
            self._flying[number] = _Flying(cut, parts, int(counts.sum()))

    def kept(self, number: int, host: str) -> None:
        """Record that a host's part of a chunk is not sent yet: it waits in the courier."""
        self._brought.pop((number, host), None)
        if number in self._flying:
            self._flying[number].parts.discard(host)

    def carried(self, counts: Array) -> None:
        """Count rows of a chunk that go to burst workers instead of hosts, by slot."""
        self._arrived += counts

    def brought(self, number: int, records: dict[str, int]) -> None:
        """Count a chunk of partial states that is about to be sent: the number of records for each host."""
        self._brought |= {(number, host): count for host, count in records.items()}

    def settled(self, counts: Array, arrived_us: float, now_us: float) -> None:
        """Count offloaded rows as completed, by slot: hosts have applied all partial states made of them."""
        self._completed += counts
        self._latency_us += counts * max(now_us - arrived_us, 0.0)

    def applied(self, number: int, host: str, now_us: float, slots: Array | None = None) -> None:
        """Count what a host has applied: its part of a chunk, or records of these slots that had waited."""
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
        """Add the microseconds that a host has worked since its last report."""
        self._busy_us[host] += busy_us

    def counts(
        self, now_us: float, waiting: int = 0, kept: Iterable[tuple[str, float]] = ()
    ) -> StepCounts:
        """All counts as of now. `waiting` is the number of rows that have arrived and are in no chunk yet.
        `kept` names hosts whose records wait in the courier, with the arrival time of the oldest in
        microseconds."""
        oldest: dict[str, int] = {}
        sent = (
            (host, chunk.cut.oldest_us) for chunk in self._flying.values() for host in chunk.parts
        )
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
