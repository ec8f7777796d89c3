"""Decides when a courier cuts the next chunk of a step. Pure: callers pass the clock, in seconds.

The cost of a chunk hardly depends on its number of rows. So the busier a step is, the more rows should
share a chunk: after each chunk the courier pauses for a multiple of the recent work per chunk. While few
rows arrive, a pause would gain little, and the courier sends them at once.

Work is the time in which a process was busy, not elapsed time. On a machine with other load, chunks take
longer, and larger chunks would take longer still.
"""

from __future__ import annotations

from collections import deque
from itertools import islice

_SHARE = 0.5
"""Fraction of the time that chunks may take, one after the other: at 1.8 ms a chunk, one every 3.6 ms."""
_FEW, _MANY = 4.0, 24.0
"""Rows per pause: with `_FEW` or fewer the courier does not pause, with `_MANY` or more it pauses in full."""
_SMOOTH = 0.1
"""Weight of the newest chunk in smoothed costs."""
_SPAN_S, _KEPT_S = 0.25, 10.0
"""Length of a span in which a rate is measured, and how long that rate is kept, in seconds."""
_MEMORY_S = 0.1
"""Seconds after which a measured rate of rows is forgotten."""
_FRESH_S = 1.0
"""Seconds for which a measured throughput of hosts is valid."""
_ENOUGH_S = 0.02
"""Seconds for which rows must have waited before the throughput of hosts is known."""


class Pacer:
    """Paces the chunks of one courier to one step.

    >>> pacer = Pacer(longest_s=0.020)
    >>> for n in range(200):
    ...     pacer.cut(n, rows=50, now=n * 0.005)
    ...     pacer.done(n, now=n * 0.005 + 0.0018)
    >>> round(pacer.pause_s * 1000, 1), pacer.free(1.0)
    (3.6, True)
    """

    def __init__(self, longest_s: float, at_once: int = 2, share: float = _SHARE) -> None:
        self.longest_s, self._at_once, self._share = longest_s, at_once, share
        self._flying: dict[int, float] = {}
        """Number of each chunk in flight -> when it was cut, oldest first."""
        self.cost_s = 0.001
        """Recent seconds from the cut of a chunk until hosts have applied it."""
        self._work_s = 0.001
        """Recent seconds of work per chunk."""
        self.pause_s = 0.0
        """Least seconds from one cut to the next."""
        self._rate = 0.0
        """Recent rows per second."""
        self._last_cut: float | None = None

    def cut(self, number: int, rows: int, now: float) -> None:
        """Record that a chunk was cut."""
        self._flying[number] = now
        if self._last_cut is not None:
            elapsed = max(now - self._last_cut, 1e-6)
            kept = max(1 - elapsed / _MEMORY_S, 0.0)
            self._rate = kept * self._rate + (1 - kept) * rows / elapsed
        self._last_cut = now
        self._set_pause()

    def done(self, number: int, now: float, work_s: float | None = None) -> None:
        """Record that a chunk was applied, with its seconds of work; None counts the elapsed time as work."""
        # A chunk that waited for state to move says little about the cost of the next one.
        took_s = min(now - self._flying.pop(number), self.longest_s)
        work_s = took_s if work_s is None else min(work_s, self.longest_s)
        self.cost_s += _SMOOTH * (took_s - self.cost_s)
        self._work_s += _SMOOTH * (work_s - self._work_s)
        self._set_pause()

    def free(self, now: float) -> bool:
        """Whether another chunk may be in flight."""
        return self._free_at() <= now

    def next_at(self) -> float:
        """Time at which the next chunk may be cut, if none is applied before."""
        paused = 0.0 if self._last_cut is None else self._last_cut + self.pause_s
        return max(paused, self._free_at())

    def _free_at(self) -> float:
        """Time from which another chunk may be in flight. Chunks that take much longer than usual do not
        count: rows that wait for their state must not hold up all others."""
        if len(self._flying) < self._at_once:
            return 0.0
        cuts = reversed(self._flying.values())
        nth = next(islice(cuts, self._at_once - 1, None))
        return nth + min(max(3 * self.cost_s, self.longest_s / 4), self.longest_s)

    def _set_pause(self) -> None:
        whole_s = min(self._work_s / self._share, self.longest_s)
        worth = (self._rate * whole_s - _FEW) / (_MANY - _FEW)
        self.pause_s = whole_s * min(max(worth, 0.0), 1.0)


class Throughput:
    """Rows per second that hosts apply while more rows wait, and the number of rows in flight.

    >>> seen = Throughput()
    >>> for n in range(100):
    ...     seen.sent(10)
    ...     if n > 2:
    ...         seen.applied(10, now=n * 0.010)
    >>> round(seen.rate(1.0)), seen.ahead, seen.rate(5.0)
    (1000, 30, None)
    """

    def __init__(self) -> None:
        self.ahead = 0
        """Rows that were sent and are not applied."""
        self._rows = self._busy_s = 0.0
        """Rows applied while more waited, and the seconds that this took. Old measurements fade."""
        self._since: float | None = None
        """Time at which rows were last applied, if more waited then."""
        self._at = 0.0

    def sent(self, rows: int) -> None:
        """Record that rows were sent to hosts."""
        self.ahead += rows

    def applied(self, rows: int, now: float) -> None:
        """Record that hosts have applied rows."""
        self.ahead -= rows
        if self._since is not None:
            elapsed = now - self._since
            kept = max(1 - elapsed / _MEMORY_S, 0.0)
            self._rows, self._busy_s = kept * self._rows + rows, kept * self._busy_s + elapsed
            self._at = now
        self._since = now if self.ahead > 0 else None

    def waits_s(self, now: float) -> float:
        """Seconds until hosts have applied the rows in flight; 0 if they keep up."""
        rate = self.rate(now)
        return self.ahead / rate if rate else 0.0

    def rate(self, now: float) -> float | None:
        """Rows per second that hosts apply when they are busy; None if rows have not waited recently."""
        if now - self._at > _FRESH_S or self._busy_s < _ENOUGH_S:
            return None
        return self._rows / self._busy_s


class PeakRate:
    """The highest recent rate at which hosts have applied rows: an estimate of their capacity.

    >>> peak = PeakRate()
    >>> for n in range(100):
    ...     peak.note(10, now=n * 0.010)
    >>> round(peak.of(1.0)), round(peak.of(60.0))
    (1000, 0)
    """

    def __init__(self) -> None:
        self._spans: deque[tuple[float, float]] = deque()
        """End of each measured span, and its rows per second."""
        self._since, self._rows = 0.0, 0

    def note(self, rows: int, now: float) -> None:
        """Record that hosts have applied rows."""
        if now - self._since >= _SPAN_S:
            if self._rows and now - self._since < _KEPT_S:
                self._spans.append((now, self._rows / (now - self._since)))
            self._since, self._rows = now, 0
        self._rows += rows

    def of(self, now: float) -> float:
        """Rows per second; 0 if nothing was applied recently."""
        while self._spans and self._spans[0][0] < now - _KEPT_S:
            self._spans.popleft()
        return max((rate for _, rate in self._spans), default=0.0)


class ByteWindow:
    """Bytes that a courier holds or has in flight (polled, waiting, or sent and not applied), with a limit.

    >>> window = ByteWindow(100)
    >>> window.add(120)
    >>> window.full
    True
    >>> window.add(-50)
    >>> window.full
    False
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.held = 0

    def add(self, bytes: int) -> None:
        """Add bytes; a negative number releases them."""
        self.held += bytes

    @property
    def full(self) -> bool:
        """Whether the courier must stop polling."""
        return self.held >= self._most
