"""Waiting for something to become so."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(holds: Callable[[], object], seconds: float = 20.0) -> None:
    """Returns as soon as it holds; fails if it does not in time."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not become so in time"
        time.sleep(0.005)
