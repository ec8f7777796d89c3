"""What a query is waiting for, as status messages show it."""

from __future__ import annotations

import time

_WORTH_TELLING_S = 1.0
"""Seconds of waiting after which users are told."""


class Awaiting:
    """The current wait and its start. One thread sets it, any thread may read it."""

    def __init__(self) -> None:
        self._now: tuple[str, float] | None = None

    def waits(self, what: str) -> None:
        self._now = (what, time.monotonic())

    def goes_on(self) -> None:
        """Clear the wait."""
        self._now = None

    def __str__(self) -> str:
        """A description of the current wait, or "" if it has been short."""
        now = self._now
        if now is None or time.monotonic() - now[1] < _WORTH_TELLING_S:
            return ""
        return f"{now[0]} ({time.monotonic() - now[1]:.0f} s)"
