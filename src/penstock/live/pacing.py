"""When a courier cuts the next chunk of a step. Pure: the clock is handed in, in seconds.

What a chunk costs hardly depends on how many rows it has. So the busier a step is, the more rows should
go together: after a chunk the courier pauses for a multiple of the work that chunks were of late, unless
so few rows come that it would pause for next to nothing. While rows are rare they are never waited for.

Work is time in which a process was busy, not time that passed: on a machine that does other things, too,
chunks take longer, and larger ones would take longer still.
"""

from __future__ import annotations

from collections import deque
from itertools import islice

_SHARE = 0.5
"""Part of the time that chunks may take, one after the other: at 1.8 ms a chunk that is one every 3.6 ms."""
_FEW, _MANY = 4.0, 24.0
"""Rows of a pause: up to the first number it is not worth its while, from the second on entirely."""
_SMOOTH = 0.1
"""Weight of what the newest chunk cost."""
_SPAN_S, _KEPT_S = 0.25, 10.0
"""Seconds of a span whose rate is measured, and for which it is kept."""
_MEMORY_S = 0.1
"""Seconds after which the rate of rows is forgotten."""
_FRESH_S = 1.0
"""Seconds for which it counts how fast hosts were while rows waited."""
_ENOUGH_S = 0.02
"""Seconds in which rows must have waited before that tells anything."""


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
        """Chunks that are not done: when each was cut; in order."""
        self.cost_s = 0.001
        """Seconds from a chunk's cut until hosts have applied it, of late."""
        self._work_s = 0.001
        """Seconds of work that a chunk was, of late."""
        self.pause_s = 0.0
        """Seconds from one cut to the next."""
        self._rate = 0.0
        """Rows per second."""
        self._last_cut: float | None = None

    def cut(self, number: int, rows: int, now: float) -> None:
        """A chunk was cut."""
        self._flying[number] = now
        if self._last_cut is not None:
            elapsed = max(now - self._last_cut, 1e-6)
            kept = max(1 - elapsed / _MEMORY_S, 0.0)
            self._rate = kept * self._rate + (1 - kept) * rows / elapsed
        self._last_cut = now
        self._set_pause()

    def done(self, number: int, now: float, work_s: float | None = None) -> None:
        """A chunk has been applied, and was so much work; None: as much as time has passed."""
        # One that waits for state to move says little of what the next will cost.
        took_s = min(now - self._flying.pop(number), self.longest_s)
        work_s = took_s if work_s is None else min(work_s, self.longest_s)
        self.cost_s += _SMOOTH * (took_s - self.cost_s)
        self._work_s += _SMOOTH * (work_s - self._work_s)
        self._set_pause()

    def free(self, now: float) -> bool:
        """Whether there may be another chunk in flight."""
        return self._free_at() <= now

    def next_at(self) -> float:
        """When the next chunk may be cut, if none is done before."""
        paused = 0.0 if self._last_cut is None else self._last_cut + self.pause_s
        return max(paused, self._free_at())

    def _free_at(self) -> float:
        """Chunks that take much longer than usual do not count: rows that a host holds back, until their
        state has come, must not hold back all others."""
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
    """Rows per second that hosts apply while more of them wait, and how many wait.

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
        """Rows that were sent, and are not applied."""
        self._rows = self._busy_s = 0.0
        """Rows applied, and the time that this took while more of them waited; both fade."""
        self._since: float | None = None
        """When rows were last applied, if more of them waited then."""
        self._at = 0.0

    def sent(self, rows: int) -> None:
        """Rows are on their way to hosts."""
        self.ahead += rows

    def applied(self, rows: int, now: float) -> None:
        """Hosts have applied rows."""
        self.ahead -= rows
        if self._since is not None:
            elapsed = now - self._since
            kept = max(1 - elapsed / _MEMORY_S, 0.0)
            self._rows, self._busy_s = kept * self._rows + rows, kept * self._busy_s + elapsed
            self._at = now
        self._since = now if self.ahead > 0 else None

    def waits_s(self, now: float) -> float:
        """Seconds until hosts have applied what is on its way to them; 0: they let nothing wait."""
        rate = self.rate(now)
        return self.ahead / rate if rate else 0.0

    def rate(self, now: float) -> float | None:
        """Rows per second; None: hosts have not let rows wait for long, of late."""
        if now - self._at > _FRESH_S or self._busy_s < _ENOUGH_S:
            return None
        return self._rows / self._busy_s


class PeakRate:
    """The highest rate at which hosts have applied rows of late: what they can do, or nearly so.

    >>> peak = PeakRate()
    >>> for n in range(100):
    ...     peak.note(10, now=n * 0.010)
    >>> round(peak.of(1.0)), round(peak.of(60.0))
    (1000, 0)
    """

    def __init__(self) -> None:
        self._spans: deque[tuple[float, float]] = deque()
        """End of a span of time, and the rate in it."""
        self._since, self._rows = 0.0, 0

    def note(self, rows: int, now: float) -> None:
        """Hosts have applied rows."""
        if now - self._since >= _SPAN_S:
            if self._rows and now - self._since < _KEPT_S:
                self._spans.append((now, self._rows / (now - self._since)))
            self._since, self._rows = now, 0
        self._rows += rows

    def of(self, now: float) -> float:
        """Rows per second; 0: nothing was applied of late."""
        while self._spans and self._spans[0][0] < now - _KEPT_S:
            self._spans.popleft()
        return max((rate for _, rate in self._spans), default=0.0)


class ByteWindow:
    """Bytes that a courier holds or has in flight: polled, waiting, or sent and not applied.

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
        """Take this many more; fewer, if it is below 0."""
        self.held += bytes

    @property
    def full(self) -> bool:
        """Whether the courier must stop polling."""
        return self.held >= self._most
