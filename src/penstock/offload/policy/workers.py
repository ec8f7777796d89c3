"""Burst workers: how many are kept ready, which of them are by now, and whether they answer at all."""

from __future__ import annotations

from penstock.control.examine.vitals import Floats
from penstock.control.treat.offloading import OffloadSettings
from penstock.offload.policy.shares import functions_needed


def kept_warm(stable: float, capacity: Floats, merge: float, settings: OffloadSettings) -> int:
    """Burst workers for some times the stable rate, less what the hosts take of it.

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


_IN_A_ROW = 2
"""So many epochs in a row must go wrong: a single one may be bad luck."""
_FIRST_PAUSE_MS = 1_000.0
"""Those that take their place are there in a second or two, and a burst does not wait."""
_LONGEST_PAUSE_MS = 300_000.0


class Trust:
    """Follows how many rows functions leave to the courier. Without a clock.

    Functions that did nothing for most rows of two epochs are left alone for a while, and for longer
    each time that this was not long enough.

    >>> trust = Trust()
    >>> for second in range(3):
    ...     print(trust.note(500.0 * second, rows=100, returned=80), trust.at(500.0 * second))
    False True
    True False
    False False
    >>> trust.at(2_000.0)
    True
    """

    def __init__(self) -> None:
        self._bad = 0
        self._pause_ms = _FIRST_PAUSE_MS
        self._until_ms = float("-inf")

    def note(self, now_ms: float, rows: int, returned: int) -> bool:
        """An epoch is done, in which so many rows of those for burst workers were returned. Whether
        burst workers have lost trust by it."""
        if rows == 0 or not self.at(now_ms):
            return False
        if 2 * returned <= rows:
            self._bad, self._pause_ms = 0, _FIRST_PAUSE_MS
            return False
        self._bad += 1
        if self._bad < _IN_A_ROW:
            return False
        self._bad = _IN_A_ROW - 1  # the next time, one bad epoch is enough
        self._until_ms = now_ms + self._pause_ms
        self._pause_ms = min(2 * self._pause_ms, _LONGEST_PAUSE_MS)
        return True

    def at(self, now_ms: float) -> bool:
        """Whether burst workers should be given rows now."""
        return now_ms >= self._until_ms
