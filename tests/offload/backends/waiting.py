"""Waiting for a condition."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(holds: Callable[[], object], seconds: float = 20.0) -> None:
    """Wait until a condition is true. Fails on a timeout."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "timed out waiting for a condition"
        time.sleep(0.005)
