"""The fixed cost of epochs, and the share of an epoch's time that each step can use."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from statistics import median

_EPOCHS = 31
"""Number of past epochs to take the median of. Treatments and pauses of the machine distort a few."""


class EpochCost:
    """Measures the fixed cost of an epoch: its length without the hosts' useful time.

    The shortest pause between two epochs is part of it. Longer pauses are not, since a query may have
    waited for rows in them.

    >>> cost = EpochCost()
    >>> cost.note(started_ms=0, done_ms=300, useful_ms=100)
    >>> cost.note(started_ms=320, done_ms=560, useful_ms=50)
    >>> cost.ms
    215.0
    """

    def __init__(self) -> None:
        self._fixed: deque[float] = deque(maxlen=_EPOCHS)
        self._pauses: deque[float] = deque(maxlen=_EPOCHS)
        self._done_ms: float | None = None

    def skip(self, done_ms: float) -> None:
        """Skip an epoch in which burst workers ran in parallel with hosts.

        Its length is not the sum of its parts. Counting it would raise the cost and allow longer epochs.
        """
        self._done_ms = done_ms

    def note(self, started_ms: float, done_ms: float, useful_ms: float) -> None:
        """Record an epoch. `useful_ms` is the sum over steps of their slowest hosts' working time."""
        if self._done_ms is not None:
            self._pauses.append(max(0.0, started_ms - self._done_ms))
        self._done_ms = done_ms
        self._fixed.append(max(1.0, done_ms - started_ms - useful_ms))

    @property
    def ms(self) -> float:
        """Fixed cost of an epoch in milliseconds; 0 before the first epoch."""
        return median(self._fixed) + min(self._pauses, default=0.0) if self._fixed else 0.0


_SPAN_MS = 1_500.0
"""Time constant in milliseconds of the exponential average over epochs."""
_RESERVE = 1.25
"""Factor on the time of other steps, which may need somewhat more than they did recently."""


class EpochTimes:
    """Measures the share of an epoch's time that each step's hosts work.

    A step may use the time that other steps leave, and at least its share of the bound. With the share
    alone, hosts of a busy step would sit idle beside steps with little to do.

    >>> times = EpochTimes()
    >>> times.left_to("count", share=0.5)
    0.5
    >>> times.note({"count": 600.0, "top": 40.0}, length_ms=1000.0)
    >>> times.left_to("count", share=0.5), times.left_to("top", share=0.5)
    (0.95, 0.5)
    """

    def __init__(self) -> None:
        self._parts: dict[str, float] = {}

    def note(self, spent_ms: Mapping[str, float], length_ms: float) -> None:
        """Record an epoch: its length, and the working time of each step's slowest host."""
        weight = 1.0 - math.exp(-length_ms / _SPAN_MS)
        for step, ms in spent_ms.items():
            part = ms / max(length_ms, ms, 1.0)
            old = self._parts.get(step, part)
            self._parts[step] = old + weight * (part - old)

    def left_to(self, step: str, share: float) -> float:
        """Share of an epoch's time that a step can use; never less than its share of the bound."""
        if step not in self._parts:
            return share
        others = sum(part for other, part in self._parts.items() if other != step)
        return max(share, 1.0 - _RESERVE * others)
