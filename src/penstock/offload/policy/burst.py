"""Tracks whether a burst lasts, how many burst workers are ready, and whether they answer."""

from __future__ import annotations

from penstock.control.money import BreakEven
from penstock.control.treat.offloading import OffloadSettings

_RELAPSE_MS = 60_000.0
"""Milliseconds after a burst within which another burst means that the first was ended too early."""
_LONGEST_ROW = 32
"""Upper limit of the observations in a row that end a burst, however often it was ended too early."""
_IN_A_ROW = 2
"""Bad epochs in a row after which burst workers lose trust: a single one may be bad luck."""
_FIRST_PAUSE_MS = 1_000.0
"""First pause without burst workers, in milliseconds: new ones start in a second or two."""
_LONGEST_PAUSE_MS = 300_000.0
"""Longest pause without burst workers, in milliseconds."""


class Burst:
    """Tracks the bursts of one step.

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
        """Observations in a row after which a host takes all its rows again. The number doubles each time
        that this was too early, so that hosts at the limit do not flap."""
        self.lasts = False
        """Whether the burst has lasted long enough to add hosts. It stays true until the burst is over."""
        self.since_ms: float | None = None
        """Time at which burst workers began to help, in milliseconds; None if there is no burst."""
        self.ended_ms = self._time_ms = float("-inf")
        self._even = BreakEven(settings.costs)
        self._spent = self._worker_seconds = self._busy = 0.0

    def note(
        self, now_ms: float, helped: bool, busy: float, hosts: int, spent: float | None = None
    ) -> None:
        """Record whether burst workers help any host from now on.

        Their work keeps `busy` of them busy, and would need `hosts` hosts. `spent` is the cost of burst
        workers so far in dollars, if known.
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
    """Tracks how many burst workers are kept, and since when.

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
        """(time in milliseconds, burst workers kept since then), in ascending order."""

    def keep(self, now_ms: float, count: int) -> None:
        """Record that this many are kept from now on."""
        known = self._asked[-1][1] if self._asked else 0
        if count > known:
            self._asked.append((now_ms, count))
        elif count < known:
            since = next(since for since, kept in self._asked if kept >= count)
            self._asked = [entry for entry in self._asked if entry[1] < count] + [(since, count)]

    def at(self, now_ms: float, settings: OffloadSettings) -> int:
        """Number of burst workers that are ready now."""
        if settings.start_ms <= 0:
            return settings.at_most
        there = (count for since, count in self._asked if now_ms - since >= settings.start_ms)
        return min(max(there, default=0), settings.at_most)


class Trust:
    """Tracks how many rows burst workers leave unanswered. Callers pass the time.

    If burst workers do not answer for most of their rows in two epochs in a row, they get no rows for a
    while. One epoch is enough if they hang: then it has waited for them until the deadline. The pause doubles
    each time that they fail again after it.

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

    def note(self, now_ms: float, rows: int, returned: int, hung: bool = False) -> bool:
        """Add an epoch: the rows for burst workers, and how many of them were returned without an answer.
        `hung` says whether most of these missed their deadline.

        Returns whether burst workers lost trust in this epoch.
        """
        if rows == 0 or not self.at(now_ms):
            return False
        if 2 * returned <= rows:
            self._bad, self._pause_ms = 0, _FIRST_PAUSE_MS
            return False
        self._bad += _IN_A_ROW if hung else 1
        if self._bad < _IN_A_ROW:
            return False
        self._bad = _IN_A_ROW - 1  # after the pause, one bad epoch is enough
        self._until_ms = now_ms + self._pause_ms
        self._pause_ms = min(2 * self._pause_ms, _LONGEST_PAUSE_MS)
        return True

    def at(self, now_ms: float) -> bool:
        """Whether burst workers should get rows now."""
        return now_ms >= self._until_ms
