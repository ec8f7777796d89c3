"""Records that wait in a courier because their host is busy. Pure: callers pass the clock, in seconds.

Records in a host's own queue can only be applied by that host. So a courier sends a host no more than it
can apply within some tens of milliseconds, and keeps the rest. When slots move, their waiting records go to
the new host at once, and records of other hosts do not wait for them.
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
"""Records in flight to one host: the limit before its speed is known, and the lowest limit."""
_WEIGHT = 0.5
"""Weight of the newest measurement in a host's smoothed limit."""


@dataclass(frozen=True, eq=False)
class WaitingRecords:
    """Records of one chunk that have not been sent."""

    of: int
    """Number of the chunk that the records belong to."""
    kind: str
    batch: pa.RecordBatch
    slots: Array
    """Slot of each record."""
    watermark_ms: int | None
    """Watermark when the chunk was cut, in milliseconds."""
    came_us: float
    """Arrival time of the chunk's first row, in microseconds since 1970."""


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
        """Whether records wait for this host."""
        return host in self._queues

    @property
    def hosts(self) -> list[str]:
        """Hosts that have waiting records."""
        return list(self._queues)

    @property
    def watermark_ms(self) -> int | None:
        """Highest watermark that may pass the waiting records: the lowest one at which any of them was cut.
        None if one of them had none."""
        times = [queue[0].watermark_ms for queue in self._queues.values()]
        known = [time for time in times if time is not None]
        return min(known) if known and len(known) == len(times) else None

    def oldest_us(self) -> Iterator[tuple[str, float]]:
        """Yield each host with the arrival time of its oldest waiting record, in microseconds since 1970."""
        for host, queue in self._queues.items():
            yield host, min(some.came_us for some in queue)

    def put(self, host: str, some: WaitingRecords) -> None:
        """Append records to a host's queue."""
        self._queues.setdefault(host, deque()).append(some)
        self.rows += some.batch.num_rows

    def take(self, host: str, most: float) -> list[WaitingRecords]:
        """Remove and return a host's next records for one chunk: about `most`, of one kind and schema."""
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
        """Move the records that wait for these hosts to the hosts that now own their slots."""
        for some in [records for host in hosts for records in self._queues.pop(host)]:
            self.rows -= some.batch.num_rows
            owner = routes.owner[some.slots]
            for number, batch in split(some.batch, some.slots, routes):
                slots = some.slots[owner == number]
                self.put(routes.hosts[number], replace(some, batch=batch, slots=slots))


def _part(some: WaitingRecords, begin: int, end: int) -> WaitingRecords:
    batch = some.batch.slice(begin, end - begin)
    return replace(some, batch=batch, slots=some.slots[begin:end])


class HostPace:
    """Limit on the records in flight to one host: about what it applies within `within_s` seconds.

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
        """Chunk number -> time of sending, its records, and the records in flight to the host then."""
        self._rows = 0
        self.most = _FIRST
        """Highest number of records that should be in flight to the host."""

    @property
    def room(self) -> bool:
        """Whether the host can take more records."""
        return not self._sent or self._rows < self.most

    def sent(self, number: int, rows: int, now: float) -> None:
        """Record that a chunk was sent to the host."""
        self._rows += rows
        self._sent[number] = now, rows, self._rows

    def applied(self, number: int, now: float) -> int:
        """Record that the host has applied a chunk. Returns its number of records."""
        at, rows, in_hand = self._sent.pop(number)
        self._rows -= rows
        within = in_hand * self._within_s / max(now - at, 1e-4)
        self.most = max(_LEAST, self.most + _WEIGHT * (within - self.most))
        return rows
