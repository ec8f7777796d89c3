"""What a query is waiting for, to be told to people."""

from __future__ import annotations

import time

_WORTH_TELLING_S = 1.0
"""Seconds of waiting that a user should hear of."""


class Awaiting:
    """What is waited for just now, and since when. Set by one thread, read by any."""

    def __init__(self) -> None:
        self._now: tuple[str, float] | None = None

    def waits(self, what: str) -> None:
        self._now = (what, time.monotonic())

    def goes_on(self) -> None:
        """Nothing is waited for."""
        self._now = None

    def __str__(self) -> str:
        """What has been waited for, if for long; else empty."""
        now = self._now
        if now is None or time.monotonic() - now[1] < _WORTH_TELLING_S:
            return ""
        return f"{now[0]} ({time.monotonic() - now[1]:.0f} s)"
