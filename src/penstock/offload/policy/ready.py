"""Functions that are kept ready, and which of them are by now."""

from __future__ import annotations

from penstock.control.examine.vitals import Floats
from penstock.control.treat.offloading import OffloadSettings
from penstock.offload.policy.shares import functions_needed


def kept_warm(stable: float, capacity: Floats, merge: float, settings: OffloadSettings) -> int:
    """Functions for some times the stable rate, less what the hosts take of it.

    >>> import numpy as np
    >>> kept_warm(1_400.0, np.array([1_000.0, 1_000.0]), 0.0, OffloadSettings(warm_for=5.0))
    8
    """
    beyond = settings.warm_for * stable - settings.target * float(capacity.sum())
    if beyond <= 0 or merge >= 1:
        return 0
    per_core = float(capacity.mean())
    wanted = functions_needed(beyond / (1.0 - merge), per_core, settings.speed, settings.target)
    return min(wanted, settings.at_most)


class Ready:
    """Follows how many functions are kept, and since when.

    >>> ready, slow = Ready(), OffloadSettings(start_ms=500.0)
    >>> ready.keep(0.0, 4)
    >>> ready.keep(1_000.0, 10)
    >>> [ready.at(now_ms, slow) for now_ms in (499.0, 500.0, 1_400.0, 1_500.0)]
    [0, 4, 4, 10]
    >>> ready.keep(2_000.0, 6)
    >>> ready.at(2_000.0, slow), ready.at(2_000.0, OffloadSettings(at_most=50))
    (6, 50)
    """

    def __init__(self) -> None:
        self._asked: list[tuple[float, int]] = []
        """Since when how many have been kept: each time more of them."""

    def keep(self, now_ms: float, count: int) -> None:
        """From now on so many are kept."""
        known = self._asked[-1][1] if self._asked else 0
        if count > known:
            self._asked.append((now_ms, count))
        elif count < known:
            since = next(since for since, kept in self._asked if kept >= count)
            self._asked = [one for one in self._asked if one[1] < count] + [(since, count)]

    def at(self, now_ms: float, settings: OffloadSettings) -> int:
        """Those that can be given rows now."""
        if settings.start_ms <= 0:
            return settings.at_most
        there = (count for since, count in self._asked if now_ms - since >= settings.start_ms)
        return min(max(there, default=0), settings.at_most)
