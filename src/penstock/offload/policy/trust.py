"""Whether functions answer at all: who relies on functions that do not has its rows done late."""

from __future__ import annotations

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
        """An epoch is done, in which so many rows of those for functions were returned. Whether
        functions have lost trust by it."""
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
        """Whether functions should be given rows now."""
        return now_ms >= self._until_ms
