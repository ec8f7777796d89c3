"""Whether a burst lasts, and whether burst workers are there for it and answer."""

from __future__ import annotations

from penstock.control.money import BreakEven
from penstock.control.treat.offloading import OffloadSettings

_RELAPSE_MS = 60_000.0
"""Time after a burst within which another one shows that it was taken for over too early."""
_LONGEST_ROW = 32
"""Observations in a row that are asked for at most, however often that happened."""
_IN_A_ROW = 2
"""Epochs in a row that must go wrong: a single one may be bad luck."""
_FIRST_PAUSE_MS = 1_000.0
"""First time without burst workers: others are there in a second or two, and a burst does not wait."""
_LONGEST_PAUSE_MS = 300_000.0


class Burst:
    """Follows the bursts of one step.

    >>> burst = Burst(OffloadSettings(patience_ms=10_000.0))
    >>> for second in (0, 5, 11):
    ...     burst.note(1000.0 * second, helped=True, busy=2.0, hosts=2)
    ...     print(burst.lasts)
    False
    False
    True
    """

    def __init__(self, settings: OffloadSettings) -> None:
        self.settings = settings
        self.row = settings.in_a_row
        """Observations in a row after which a host is on its own again. More of them each time that
        this was too early: so who is at the edge does not go to and fro."""
        self.lasts = False
        """Whether it is time for hosts; until the burst is over."""
        self.since_ms: float | None = None
        """When burst workers began to carry this burst; None if there is none."""
        self.ended_ms = self._time_ms = float("-inf")
        self._even = BreakEven(settings.costs)
        self._spent = self._worker_seconds = self._busy = 0.0

    def note(
        self, now_ms: float, helped: bool, busy: float, hosts: int, spent: float | None = None
    ) -> None:
        """Take in whether burst workers help any host from now on.

        The work that they take keeps `busy` of them busy, and would take this many `hosts`; `spent` is
        what burst workers have cost so far, if known.
        """
        if not helped:
            if self.since_ms is not None:
                self.ended_ms = now_ms
            self.since_ms, self.lasts = None, False
            return
        if self.since_ms is None:
            soon = now_ms - self.ended_ms < _RELAPSE_MS
            self.row = (
                min(2 * self.row, _LONGEST_ROW)
                if soon
                else max(self.row // 2, self.settings.in_a_row)
            )
            self.since_ms, self._even = now_ms, BreakEven(self.settings.costs)
            self._spent, self._worker_seconds = spent or 0.0, 0.0
        else:
            self._worker_seconds += self._busy * (now_ms - self._time_ms) / 1000.0
        self._time_ms, self._busy = now_ms, busy
        cost = None if spent is None else spent - self._spent
        self._even.note(now_ms, hosts, self._worker_seconds, cost)
        if busy > 0 and (self.dearer or now_ms - self.since_ms > self.settings.patience_ms):
            self.lasts = True

    @property
    def dearer(self) -> bool:
        """Whether burst workers have cost more than hosts would have."""
        return self._even.reached


class Ready:
    """Follows how many burst workers are kept, and since when.

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
        """Time since when -> burst workers kept, each time more of them."""

    def keep(self, now_ms: float, count: int) -> None:
        """Note that this many are kept from now on."""
        known = self._asked[-1][1] if self._asked else 0
        if count > known:
            self._asked.append((now_ms, count))
        elif count < known:
            since = next(since for since, kept in self._asked if kept >= count)
            self._asked = [one for one in self._asked if one[1] < count] + [(since, count)]

    def at(self, now_ms: float, settings: OffloadSettings) -> int:
        """Burst workers that can be given rows now."""
        if settings.start_ms <= 0:
            return settings.at_most
        there = (count for since, count in self._asked if now_ms - since >= settings.start_ms)
        return min(max(there, default=0), settings.at_most)


class Trust:
    """Follows how many rows burst workers leave to the courier. Without a clock.

    Burst workers that did nothing for most rows of two epochs are left alone for a while, and for longer
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
        """Take in an epoch, and how many of the rows for burst workers were returned in it.

        Returns whether burst workers have lost trust by it.
        """
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
