"""The current wait of a query, for status messages."""

from __future__ import annotations

import time

_WORTH_TELLING_S = 1.0
"""Seconds after which status messages mention a wait."""


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
