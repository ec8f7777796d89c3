"""The clock of epochs: the time of day, but it never goes back.

Timers, TTLs, processing-time windows and idle sources use it. The manifest records it, so nothing fires twice
when the machine's clock is set back, or when the driver restarts on a machine whose clock is behind.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from penstock.faults import point

PACE = 0.9
"""Speed of epoch time while the machine's clock is behind it, as a share of real time. Time must not stand
still for a day because a clock was a day ahead, and the machine's clock must be able to catch up."""
_TELL_MS = 1_000
"""Milliseconds that the machine's clock must be behind before a warning is logged."""

_log = logging.getLogger("penstock.epochs")


def wall_ms() -> float:
    """The driver's time of day, in milliseconds since 1970. A fault test may shift it."""
    return 1000 * (time.time() + point("driver.clock"))


class EpochClock:
    """A clock that never goes back. Used by one thread: the query's.

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
        """Return no times before this one, which a manifest has recorded."""
        if time_ms is not None:
            self._last_ms = max(self._last_ms, float(time_ms))

    def now_ms(self) -> int:
        wall, steady = self._wall_ms(), self._steady_ms()
        self._last_ms = max(wall, self._last_ms + PACE * max(0.0, steady - self._steady))
        self._steady = steady
        behind_ms = self._last_ms - wall
        if behind_ms > _TELL_MS and not self._behind:
            _log.warning(
                "The clock of this machine is %.0f s behind the time of the last epoch. Until it has "
                "caught up, epoch time continues from there, at %g of real time.",
                behind_ms / 1000,
                PACE,
                extra={"behind_ms": round(behind_ms)},
            )
        self._behind = behind_ms > _TELL_MS
        return int(self._last_ms)
