"""Faults of a running flow, tracked until all is well again."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

_log = logging.getLogger("penstock.epochs")


class Recovery:
    """Tracks lost hosts and couriers and epochs that must be run again, and logs one line when none is left.
    Safe to use from any thread.

    >>> recovery = Recovery(iter([0.0, 1_900.0]).__next__)
    >>> recovery.begin(3)
    >>> recovery.lost("host sum/1")
    >>> recovery.run_again(3)
    >>> recovery.back("host sum/1")
    ''
    >>> recovery.durable(3)
    'All is well again after 1.9 s: host sum/1 is back, and epoch 3 is durable after 2 runs.'
    """

    def __init__(self, clock_ms: Callable[[], float] = lambda: time.monotonic() * 1000) -> None:
        self._clock_ms = clock_ms
        self._lock = threading.Lock()
        self._epoch: int | None = None
        """Current epoch; None between two epochs."""
        self._forget()

    def _forget(self) -> None:
        self._since_ms: float | None = None
        """Time of the first fault in milliseconds; None while all is well."""
        self._missing: set[str] = set()
        self._returned: list[str] = []
        self._broken: int | None = None
        """Epoch that a fault has hit. It, or the next one, must become durable."""
        self._reruns = 0
        self._rerun = ""
        """Text about an epoch that was run again."""

    def begin(self, epoch: int) -> None:
        """Note that an epoch begins. The loss of a host may break it from now on."""
        with self._lock:
            self._epoch = epoch

    def lost(self, member: str) -> None:
        """Note that a host or a courier, such as "host sum/1", is lost and restarts."""
        with self._lock:
            self._note_fault()
            self._missing.add(member)
            if self._broken is None:
                self._broken = self._epoch

    def run_again(self, epoch: int) -> None:
        """Note that an epoch has failed and is run again."""
        with self._lock:
            self._note_fault()
            self._broken, self._reruns = epoch, self._reruns + 1

    def back(self, member: str) -> str:
        """Note that a member has registered. Returns the line that was logged, or ""."""
        with self._lock:
            if member not in self._missing:
                return ""
            self._missing.discard(member)
            self._returned.append(member)
            return self._conclude()

    def dismissed(self, member: str) -> str:
        """Note that a member is no longer needed. Returns the line that was logged, or ""."""
        with self._lock:
            known = member in self._missing
            self._missing.discard(member)
            return self._conclude() if known else ""

    def durable(self, epoch: int) -> str:
        """Note that an epoch is durable. Returns the line that was logged, or ""."""
        with self._lock:
            self._epoch = None
            if self._broken is None or (epoch <= self._broken and not self._reruns):
                # It may have been nearly done when the host was lost. The next epoch will show.
                return ""
            runs, self._broken = self._reruns + 1, None
            self._rerun = f"epoch {epoch} is durable after {runs} runs" if self._reruns else ""
            return self._conclude(epoch)

    def _note_fault(self) -> None:
        if self._since_ms is None:
            self._since_ms = self._clock_ms()

    def _conclude(self, epoch: int | None = None) -> str:
        if self._since_ms is None or self._missing or self._broken is not None:
            return ""
        took_ms = self._clock_ms() - self._since_ms
        names = list(dict.fromkeys(self._returned))
        back = f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} back" if names else ""
        story = ", and ".join(filter(None, (back, self._rerun)))
        line = f"All is well again after {took_ms / 1000:.1f} s{': ' if story else ''}{story}."
        fields = {"took_ms": round(took_ms), "returned": names, "runs": self._reruns + 1}
        _log.warning("%s", line, extra=fields if epoch is None else fields | {"epoch": epoch})
        self._forget()
        return line
