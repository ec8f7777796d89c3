"""What epochs cost however little they bring, and how much of one each step can have."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from statistics import median

_EPOCHS = 31
"""So many epochs are looked back on: a treatment, or a pause of the machine, spoils a few of them."""


class EpochCost:
    """The fixed part of an epoch: what is left of its length without the hosts' useful time.

    Of the pause between two epochs only the shortest counts, since a query also waits for rows.

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
        """An epoch is done that says nothing of it: with burst workers beside hosts, what an epoch takes
        is not the sum of its parts. Taken for a cost, it would make room for longer epochs."""
        self._done_ms = done_ms

    def note(self, started_ms: float, done_ms: float, useful_ms: float) -> None:
        """An epoch is done, in which the hosts of each step, the slowest of them, worked so long."""
        if self._done_ms is not None:
            self._pauses.append(max(0.0, started_ms - self._done_ms))
        self._done_ms = done_ms
        self._fixed.append(max(1.0, done_ms - started_ms - useful_ms))

    @property
    def ms(self) -> float:
        """0 before the first epoch."""
        return median(self._fixed) + min(self._pauses, default=0.0) if self._fixed else 0.0


_SPAN_MS = 1_500.0
"""What is longer ago than this counts for little."""
_RESERVE = 1.25
"""The other steps may need somewhat more than they did of late."""


class EpochTimes:
    """Follows what part of an epoch each step's hosts worked.

    Until that is known, and where all steps have much to do, each has its share of the bound. A step
    whose neighbours have little to do would have half of its hosts idle by that.

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
        """An epoch of this length is done: how long the hosts of each step worked, the slowest."""
        weight = 1.0 - math.exp(-length_ms / _SPAN_MS)
        for step, ms in spent_ms.items():
            part = ms / max(length_ms, ms, 1.0)
            old = self._parts.get(step, part)
            self._parts[step] = old + weight * (part - old)

    def left_to(self, step: str, share: float) -> float:
        """The part of an epoch that a step can count on; never less than its share."""
        if step not in self._parts:
            return share
        others = sum(part for other, part in self._parts.items() if other != step)
        return max(share, 1.0 - _RESERVE * others)
