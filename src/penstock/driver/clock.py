"""The time of epochs: the time of day, but it never goes back.

Timers, TTLs, windows by processing time and idle sources go by it, and the manifest keeps it, so that
what fired once does not fire again when the machine's clock is set back, or when the driver starts
anew on a machine whose clock is behind.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from penstock.faults import point

PACE = 0.9
"""How fast time goes on while the clock is behind it, beside a clock that is never set. A clock that was
wrong by a day, and was set right, must not hold timers up for a day; and the two come together again."""
_TELL_MS = 1_000
"""Milliseconds that the clock must be behind to be told of."""

_log = logging.getLogger("penstock.epochs")


def wall_ms() -> float:
    """The driver's time of day, in milliseconds since 1970. A trial may let it be wrong."""
    return 1000 * (time.time() + point("driver.clock"))


class EpochClock:
    """Gives times that never go back. Used by one thread: the query's.

    >>> wall, steady = [5_000.0], [0.0]
    >>> clock = EpochClock(lambda: wall[0], lambda: steady[0])
    >>> clock.now_ms()
    5000
    >>> wall[0], steady[0] = 1_000.0, 100.0  # set back by 4 s and a bit
    >>> clock.now_ms()
    5090
    >>> wall[0], steady[0] = 9_000.0, 200.0
    >>> clock.now_ms()
    9000
    """

    def __init__(
        self,
        wall_ms: Callable[[], float] = wall_ms,
        steady_ms: Callable[[], float] = lambda: time.monotonic() * 1000,
    ) -> None:
        self._wall_ms, self._steady_ms = wall_ms, steady_ms
        self._last_ms, self._steady = wall_ms(), steady_ms()
        self._behind = False

    def not_before(self, time_ms: int | None) -> None:
        """Times are this one or later: an epoch had it, as a manifest says."""
        if time_ms is not None:
            self._last_ms = max(self._last_ms, float(time_ms))

    def now_ms(self) -> int:
        wall, steady = self._wall_ms(), self._steady_ms()
        self._last_ms = max(wall, self._last_ms + PACE * max(0.0, steady - self._steady))
        self._steady = steady
        behind_ms = self._last_ms - wall
        if behind_ms > _TELL_MS and not self._behind:
            _log.warning(
                "The clock of this machine is %.0f s behind the time of the last epoch. Time goes on "
                "from there, at %g of its pace, until the clock has caught up.",
                behind_ms / 1000,
                PACE,
            )
        self._behind = behind_ms > _TELL_MS
        return int(self._last_ms)
