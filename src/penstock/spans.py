"""Spans: what each process of a flow did in an epoch, and when.

Every process writes down its own spans, by the clock of its machine. They reach the driver with messages that
are sent anyhow: a courier's report, a host's answer to `seal`. What a process does after its message comes
with the next one. `driver.phases` makes the account of an epoch from them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

MOST = 100
"""Most spans of one `Laps`. Later ones are added up by name."""
TRACED = 100
"""Newest epochs whose spans the driver keeps. Spark keeps as many triggers; older ones have no account."""


def now_ms() -> float:
    """Time of this machine, in milliseconds since 1970."""
    return time.time() * 1000


class Span(NamedTuple):
    """Some work of one process in one epoch.

    A tuple, unlike other messages: it is made sooner, and written as a short list. All processes of a query
    have one release.
    """

    epoch: int
    where: str
    """Process: "driver", "courier 0" (by partition), "host sum/1" or "spark"."""
    name: str
    """Name of the work, such as "read"."""
    start_ms: float
    """Start in milliseconds since 1970."""
    took_ms: float
    """Length in milliseconds."""
    channel: int = -1
    """Partition of the channel that a host worked on; -1 for other work."""

    @property
    def end_ms(self) -> float:
        return self.start_ms + self.took_ms


class Laps:
    """Divides the time of one thread into spans without gaps: each ends where the next one begins.

    >>> times = iter([10.0, 12.0, 13.5])
    >>> laps = Laps(7, "courier 0", clock_ms=lambda: next(times))
    >>> laps.lap("read"), laps.lap("combine")
    (None, None)
    >>> [(span.name, span.start_ms, span.took_ms) for span in laps.take()]
    [('read', 10.0, 2.0), ('combine', 12.0, 1.5)]
    """

    def __init__(
        self,
        epoch: int,
        where: str,
        channel: int = -1,
        clock_ms: Callable[[], float] = now_ms,
        since_ms: float | None = None,
    ) -> None:
        self._epoch, self._where, self._channel = epoch, where, channel
        self._clock_ms = clock_ms
        self._last_ms = clock_ms() if since_ms is None else since_ms
        self._laps: list[tuple[str, float, float]] = []
        self._rest: dict[str, float] = {}
        """Name -> milliseconds of all laps beyond the first `MOST`."""
        self._rest_ms = 0.0
        """Start of these laps, in milliseconds since 1970."""

    def lap(self, name: str) -> None:
        """End a span: since the last lap, or the start, this thread did the work of this name."""
        now_ms = self._clock_ms()
        took_ms = now_ms - self._last_ms
        if len(self._laps) < MOST:
            self._laps.append((name, self._last_ms, took_ms))
        else:
            self._rest_ms = self._rest_ms or self._last_ms
            self._rest[name] = self._rest.get(name, 0.0) + took_ms
        self._last_ms = now_ms

    def take(self) -> tuple[Span, ...]:
        """Remove and return all spans so far, in order."""
        laps, at_ms = self._laps, self._rest_ms
        for name, took_ms in self._rest.items():
            laps.append((name, at_ms, took_ms))
            at_ms += took_ms
        self._laps, self._rest, self._rest_ms = [], {}, 0.0
        epoch, where, channel = self._epoch, self._where, self._channel
        return tuple(Span(epoch, where, name, start, took, channel) for name, start, took in laps)
