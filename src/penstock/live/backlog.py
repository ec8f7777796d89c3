"""Records that wait in a courier for hosts which have enough to do. Pure: the clock is handed in, in seconds.

What is in a host's own queue only that host can work on. So a courier sends it no more than it can apply
within some ten milliseconds, and keeps the rest: when slots change hands, their records go to the new host
at once, however many there are, and no other host's records wait for them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from penstock.exchange.split import split
from penstock.plan.epoch import RouteTable
from penstock.state.arrays import Array

_FIRST, _LEAST = 256.0, 16.0
"""Records that a host may be sent at a time, before its speed is known, and at least."""
_WEIGHT = 0.5
"""Weight of the newest speed of a host."""


@dataclass(frozen=True, eq=False)
class WaitingRecords:
    """Records of one chunk that have not been sent."""

    of: int
    """The chunk."""
    kind: str
    batch: pa.RecordBatch
    slots: Array
    """The slot of each record."""
    watermark_ms: int | None
    """How far event time had come when the chunk was cut."""
    came_us: float
    """When its first row arrived."""


class Backlog:
    """The records that wait for each host of a step, in the order in which they were cut.

    >>> import numpy as np
    >>> backlog = Backlog()
    >>> rows = pa.record_batch({"k": [1, 2, 3, 4]})
    >>> backlog.put("a", WaitingRecords(7, "rows", rows, np.array([0, 1, 0, 1]), None, 0.0))
    >>> [(some.of, some.batch.num_rows) for some in backlog.take("a", 3)], backlog.rows
    ([(7, 3)], 1)
    """

    def __init__(self) -> None:
        self._queues: dict[str, deque[WaitingRecords]] = {}
        self.rows = 0

    def __bool__(self) -> bool:
        return self.rows > 0

    def of(self, host: str) -> bool:
        """Whether records wait for a host."""
        return host in self._queues

    @property
    def hosts(self) -> list[str]:
        """Hosts that records wait for."""
        return list(self._queues)

    @property
    def watermark_ms(self) -> int | None:
        """How far event time may pass: up to where it was when the oldest of them was cut."""
        times = [queue[0].watermark_ms for queue in self._queues.values()]
        known = [time for time in times if time is not None]
        return min(known) if known and len(known) == len(times) else None

    def oldest_us(self) -> Iterator[tuple[str, float]]:
        """Each host, and when the first of its records arrived."""
        for host, queue in self._queues.items():
            yield host, min(some.came_us for some in queue)

    def put(self, host: str, some: WaitingRecords) -> None:
        """Let records wait for a host, behind others."""
        self._queues.setdefault(host, deque()).append(some)
        self.rows += some.batch.num_rows

    def take(self, host: str, most: float) -> list[WaitingRecords]:
        """The next records of a host that can go as one chunk: about so many, of one kind and schema."""
        queue, taken, rows = self._queues[host], list[WaitingRecords](), 0
        while queue and rows < most:
            some = queue[0]
            if taken and (some.kind, some.batch.schema) != (taken[0].kind, taken[0].batch.schema):
                break
            room = int(min(most - rows, some.batch.num_rows)) or 1
            if room < some.batch.num_rows:
                queue[0] = _part(some, room, some.batch.num_rows)
                some = _part(some, 0, room)
            else:
                queue.popleft()
            taken.append(some)
            rows += some.batch.num_rows
        if not queue:
            del self._queues[host]
        self.rows -= rows
        return taken

    def route(self, hosts: Iterable[str], routes: RouteTable) -> None:
        """Let what waits for these hosts wait for whom the routes name."""
        for some in [one for host in hosts for one in self._queues.pop(host)]:
            self.rows -= some.batch.num_rows
            owner = routes.owner[some.slots]
            for number, batch in split(some.batch, some.slots, routes):
                slots = some.slots[owner == number]
                self.put(routes.hosts[number], replace(some, batch=batch, slots=slots))


def _part(some: WaitingRecords, begin: int, end: int) -> WaitingRecords:
    batch = some.batch.slice(begin, end - begin)
    return replace(some, batch=batch, slots=some.slots[begin:end])


class HostPace:
    """How many records one host may have in hand: about what it applies within a time.

    >>> pace = HostPace(within_s=0.040)
    >>> for number in range(20):
    ...     pace.sent(number, 1_000, now=number * 0.1)
    ...     _ = pace.applied(number, now=number * 0.1 + 0.1)
    >>> round(pace.most), pace.room
    (400, True)
    """

    def __init__(self, within_s: float) -> None:
        self._within_s = within_s
        self._sent: dict[int, tuple[float, int, int]] = {}
        """Chunk -> when it was sent, its records, and all that the host had in hand with it."""
        self._rows = 0
        self.most = _FIRST
        """Records that it should be sent at a time, at most."""

    @property
    def room(self) -> bool:
        """Whether the host may be sent more."""
        return not self._sent or self._rows < self.most

    def sent(self, number: int, rows: int, now: float) -> None:
        """A chunk goes to the host."""
        self._rows += rows
        self._sent[number] = now, rows, self._rows

    def applied(self, number: int, now: float) -> int:
        """The host has applied a chunk; gives its records."""
        at, rows, in_hand = self._sent.pop(number)
        self._rows -= rows
        within = in_hand * self._within_s / max(now - at, 1e-4)
        self.most = max(_LEAST, self.most + _WEIGHT * (within - self.most))
        return rows
