"""One burst after another: when functions began to carry one, and whether it lasts."""

from __future__ import annotations

from penstock.control.money import BreakEven
from penstock.control.treat.offloading import OffloadSettings

_RELAPSE_MS = 60_000.0
"""Who needs functions again so soon after it did without them was let go of too early."""
_LONGEST_ROW = 32
"""So many observations in a row are asked for at most, however often that happened."""


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
        """Whether it is time for hosts. So until the burst is over."""
        self.since_ms: float | None = None
        """When functions began to carry this burst; None if there is none."""
        self.ended_ms = self._time_ms = float("-inf")
        self._even = BreakEven(settings.costs)
        self._spent = self._function_seconds = self._busy = 0.0

    def note(
        self, now_ms: float, helped: bool, busy: float, hosts: int, spent: float | None = None
    ) -> None:
        """Whether functions help any host from now on, with so much work as keeps `busy` of them
        busy, or so many hosts; `spent` is what functions have cost so far, if known."""
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
            self._spent, self._function_seconds = spent or 0.0, 0.0
        else:
            self._function_seconds += self._busy * (now_ms - self._time_ms) / 1000.0
        self._time_ms, self._busy = now_ms, busy
        cost = None if spent is None else spent - self._spent
        self._even.note(now_ms, hosts, self._function_seconds, cost)
        if busy > 0 and (self.dearer or now_ms - self.since_ms > self.settings.patience_ms):
            self.lasts = True

    @property
    def dearer(self) -> bool:
        """Whether functions have cost more than hosts would have."""
        return self._even.reached
