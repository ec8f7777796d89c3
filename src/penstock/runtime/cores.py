"""The number of workers that a runtime uses, chosen by its load.

`workers_for` decides. `WorkersByLoad` measures what it needs, between runs of a runtime.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

_BUSY = 0.5
"""Share of time with work above which another worker is tried."""
_IDLE = 0.2
"""Share of time with work below which a worker is given up."""
_WORTH = 1.1
"""Least gain in throughput that is worth another worker. Its thread takes a core from others."""
_SPARE = 0.5
"""Least number of idle cores for another worker."""
_WINDOW_S = 1.0
"""Seconds between two decisions."""
_WORK_S = 0.1
"""Seconds of work after which a decision is made sooner."""
_LEAST_S = 0.02
"""Seconds of work from which a rate is known."""
_MEMORY_S = 60.0
"""Seconds after which a rate with another number of workers is forgotten, so that it is tried again."""


@dataclass(frozen=True)
class WorkDone:
    """What a runtime has done lately."""

    busy: float
    """Share of time in which there was work."""
    spare: float
    """Number of the machine's cores that nothing used."""
    rates: Mapping[int, float] = field(default_factory=dict)
    """Number of workers -> records per second of work, as far as it is known."""


def workers_for(now: int, most: int, done: WorkDone) -> int:
    """Number of workers from now on: at most one more or one less than `now`, from 1 to `most`.

    A worker is added while there is work at least half of the time and a core is idle, unless it is known to
    bring little. It is given up if it brings little, or if there is little work.

    >>> workers_for(1, 4, WorkDone(busy=0.9, spare=1.5))
    2
    >>> workers_for(1, 4, WorkDone(busy=0.9, spare=0.1))
    1
    >>> workers_for(2, 4, WorkDone(busy=0.9, spare=0.1, rates={1: 100.0, 2: 95.0}))
    1
    >>> workers_for(1, 4, WorkDone(busy=0.9, spare=1.5, rates={1: 100.0, 2: 95.0}))
    1
    >>> workers_for(2, 4, WorkDone(busy=0.1, spare=1.5, rates={1: 100.0, 2: 180.0}))
    1
    """

    def gain(workers: int) -> float | None:
        """Throughput with this many workers over that with one less; None if it is unknown."""
        fewer, more = done.rates.get(workers - 1), done.rates.get(workers)
        return more / fewer if fewer and more else None

    if now > 1:
        brings = gain(now)
        if done.busy < _IDLE or (brings is not None and brings < _WORTH):
            return now - 1
    if now < most and done.busy > _BUSY and done.spare >= _SPARE:
        brings = gain(now + 1)
        if brings is None or brings >= _WORTH:
            return now + 1
    return min(now, most)


class WorkersByLoad:
    """Chooses the number of workers, from 1 to `most`. Used by one thread at a time.

    `spare` returns the number of the machine's cores that were idle since its last call.
    """

    def __init__(
        self,
        most: int,
        spare: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.most, self.workers = most, 1
        self._spare, self._clock = spare, clock
        self._rates: dict[int, tuple[float, float]] = {}
        """Number of workers -> records per second of work, and when that was measured."""
        self._since, self._records, self._worked_s = clock(), 0, 0.0

    def note(self, records: int, seconds: float) -> None:
        """Note work that has ended now, and choose again if it is time."""
        self._records, self._worked_s = self._records + records, self._worked_s + seconds
        now = self._clock()
        passed = now - self._since
        if passed < _WINDOW_S and self._worked_s < _WORK_S:
            return
        if self._worked_s >= _LEAST_S and self._records:
            self._rates[self.workers] = self._records / self._worked_s, now
        fresh = {n: rate for n, (rate, at) in self._rates.items() if now - at < _MEMORY_S}
        busy = min(1.0, self._worked_s / passed) if passed > 0 else 1.0
        self.workers = workers_for(self.workers, self.most, WorkDone(busy, self._spare(), fresh))
        self._since, self._records, self._worked_s = now, 0, 0.0
