"""How much of an epoch each step's hosts can have: steps work one after the other."""

from __future__ import annotations

import math
from collections.abc import Mapping

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
