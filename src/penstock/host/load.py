"""How busy a host is, and how long its transfers of state and its compactions rest because of that."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil

_MEMORY_S = 1.0
"""Seconds over which the load is averaged."""
_LOOK_S = 0.02
"""Shortest time between two looks at the machine's processors."""
_GIVES_WAY = 2.0
"""Ratio of a transfer's rest to its work if the host is busy half of the time."""
_LONGEST = 19.0
"""Largest ratio of a transfer's rest to its work, so that it always goes on."""
_LONGEST_S = 1.0
"""Longest rest in seconds."""
_PIECE_S = 0.01
"""Processor seconds after which a chore may rest."""
_BREAK_S, _PATIENCE_S = 0.2, 60.0
"""Most seconds that a chore rests at once, and in total, because its result is waited for."""


def processors() -> tuple[float, float]:
    """Return the processor seconds that the machine has used, and had, since it started."""
    times = psutil.cpu_times()
    had = sum(times)
    return had - times.idle - getattr(times, "iowait", 0.0), had


class SpareCores:
    """The number of the machine's cores that were idle since the last call.

    >>> times = iter([(5.0, 20.0), (11.0, 32.0)])  # seconds used and had, of four cores
    >>> spare = SpareCores(4, lambda: next(times))
    >>> spare()
    2.0
    """

    def __init__(
        self,
        cores: int | None = None,
        processors: Callable[[], tuple[float, float]] = processors,
    ) -> None:
        self._cores = cores or psutil.cpu_count() or 1
        self._processors, self._seen = processors, processors()

    def __call__(self) -> float:
        before, self._seen = self._seen, self._processors()
        used, had = (now - then for now, then in zip(self._seen, before, strict=True))
        return self._cores * (1.0 - used / had) if had > 0 else 0.0


class Load:
    """The load of a host, from 0 to 1. Safe to use from several threads.

    It is the share of time in which the host has rows to work on, or the share of the machine's processors in
    use, whichever is larger: other processes of the query may need these processors.

    >>> now, used = [0.0], [0.0]
    >>> load = Load(lambda: now[0], lambda: (used[0], now[0]))
    >>> now[0] = 9.0
    >>> load.rest_s(0.1)  # it was idle
    0.0
    >>> used[0], now[0] = 5.0, 19.0
    >>> round(load.rest_s(0.1), 3)  # half of the processors were in use
    0.2
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        processors: Callable[[], tuple[float, float]] = processors,
    ) -> None:
        self._clock, self._processors, self._lock = clock, processors, threading.Lock()
        self._working, self._since, self._worked_s = 0, 0.0, 0.0
        self._looked = (clock(), 0.0, *processors())
        self._rows = self._cores = 0.0

    @contextmanager
    def working(self) -> Iterator[None]:
        """Count the time of this block as time in which the host has rows. Blocks may overlap."""
        with self._lock:
            if not self._working:
                self._since = self._clock()
            self._working += 1
        try:
            yield
        finally:
            with self._lock:
                self._working -= 1
                if not self._working:
                    self._worked_s += self._clock() - self._since

    @property
    def now(self) -> float:
        """The load over the last second."""
        with self._lock:
            now = self._clock()
            before, worked_before, used_before, had_before = self._looked
            if now - before >= _LOOK_S:
                worked = self._worked_s + (now - self._since if self._working else 0.0)
                used, had = self._processors()
                self._looked = (now, worked, used, had)
                weight = 1 - math.exp((before - now) / _MEMORY_S)
                self._rows += weight * ((worked - worked_before) / (now - before) - self._rows)
                if had > had_before:
                    in_use = (used - used_before) / (had - had_before)
                    self._cores += weight * (in_use - self._cores)
            return min(1.0, max(0.0, self._rows, self._cores))

    def rest_s(self, took_s: float) -> float:
        """Return the seconds that a transfer rests after a piece that took this long.

        No rest on an idle host, twice the piece's time at a load of one half, 19 times at full load.
        """
        load = self.now
        ratio = _LONGEST if load >= 1 else min(_LONGEST, _GIVES_WAY * load / (1 - load))
        return min(_LONGEST_S, ratio * took_s)


class Rests:
    """The rests of a chore in a thread of its own, such as a compaction. It calls this between small steps.

    >>> now, waits = [0.0], []
    >>> busy = Load(lambda: now[0], lambda: (now[0], 2 * now[0]))
    >>> rest = Rests(busy, waits.append, lambda: now[0])
    >>> now[0] = 0.005; rest()  # too early
    >>> now[0] = 9.0; rest()
    >>> waits
    [0.2]
    """

    def __init__(
        self,
        load: Load,
        wait: Callable[[float], object],
        worked_s: Callable[[], float] = time.thread_time,
    ) -> None:
        """Make rests. `wait` waits some seconds, `worked_s` returns the seconds that the thread has used."""
        self._load, self._wait, self._worked_s = load, wait, worked_s
        self._last, self._left_s = worked_s(), _PATIENCE_S

    def __call__(self) -> None:
        """Rest if it is time to, by the load."""
        now = self._worked_s()
        if now - self._last < _PIECE_S:
            return
        rest_s = min(_BREAK_S, self._left_s, self._load.rest_s(now - self._last))
        if rest_s > 0:
            self._wait(rest_s)
            self._left_s -= rest_s
        self._last = self._worked_s()
