"""When items were begun and when their outputs left: throughput and latency of a chain at work.

An item is begun when the first operator begins to work on it, and has left when its last output is
through the last operator's reordering; the time between is its latency. Starting up and shutting
down do not count for it: only items between the 20th and the 80th percentile of those that left do.
Throughput is that of the whole: a chain that lets its outputs go in bursts would else seem to be
faster, or slower, than it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

LOW, HIGH = 0.2, 0.8
"""Between these shares of the items that left, latencies count."""


@dataclass(frozen=True)
class Shown:
    """What a trial showed."""

    items_per_s: float
    latency_ms: float
    """The mean."""
    p99_ms: float


class Markers:
    """Notes of the times of items, by their numbers; any thread may write one.

    >>> times = iter([1.0, 3.0])
    >>> markers = Markers(lambda: next(times))
    >>> markers.begin(0), markers.leave(0), markers.latencies_s()
    (None, None, {0: 2.0})
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        # Each number is set by one thread at a time, and setting an item of a dict is atomic.
        self._begun: dict[int, float] = {}
        self._left: dict[int, float] = {}

    @property
    def begun(self) -> int:
        """How many items were begun."""
        return len(self._begun)

    def begin(self, number: int) -> None:
        """The first operator begins with this item."""
        self._begun[number] = self._clock()

    def leave(self, number: int) -> None:
        """An output of this item leaves; the last one counts."""
        self._left[number] = self._clock()

    def latencies_s(self) -> dict[int, float]:
        """By number, of what has left."""
        return {number: at - self._begun[number] for number, at in self._left.items()}

    def shown(self) -> Shown:
        """What the items show, once all have left."""
        return shown(self._begun, self._left)


def shown(begun: Mapping[int, float], left: Mapping[int, float]) -> Shown:
    """Throughput of all items, and latency from the 20th to the 80th percentile of those that left.

    >>> shown({n: n - 0.5 for n in range(100)}, {n: n + 0.5 for n in range(100)})
    Shown(items_per_s=1.0, latency_ms=1000.0, p99_ms=1000.0)
    """
    exits = sorted((at, number) for number, at in left.items())
    chosen = exits[int(LOW * (len(exits) - 1)) : int(HIGH * (len(exits) - 1)) + 1]
    waited_ms = np.array([(at - begun[number]) * 1e3 for at, number in chosen])
    return Shown(
        items_per_s=len(exits) / (exits[-1][0] - min(begun.values())),
        latency_ms=float(waited_ms.mean()),
        p99_ms=float(np.percentile(waited_ms, 99)),
    )
