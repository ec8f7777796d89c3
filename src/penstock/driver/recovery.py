"""Faults of a running flow, followed until all is well again: pure but for its clock and its log lines."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

_log = logging.getLogger("penstock.epochs")


class Recovery:
    """Knows which hosts and couriers are missing and which epoch must be run again, and logs one line when
    none is left. Safe to use from any thread.

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
        """The epoch that is under way; None between two epochs."""
        self._forget()

    def _forget(self) -> None:
        self._since_ms: float | None = None
        """When the first fault was noticed; None: all is well."""
        self._missing: set[str] = set()
        self._returned: list[str] = []
        self._broken: int | None = None
        """The epoch that a fault has hit, and that must become durable, or the one after it."""
        self._reruns = 0
        self._rerun = ""
        """What became of an epoch that was run again."""

    def begin(self, epoch: int) -> None:
        """An epoch begins. It needs all hosts, so a loss from now on may break it."""
        with self._lock:
            self._epoch = epoch

    def lost(self, member: str) -> None:
        """A host or a courier ("host sum/1") is lost, and is started again."""
        with self._lock:
            self._note_fault()
            self._missing.add(member)
            if self._broken is None:
                self._broken = self._epoch

    def run_again(self, epoch: int) -> None:
        """An epoch has failed, and begins again."""
        with self._lock:
            self._note_fault()
            self._broken, self._reruns = epoch, self._reruns + 1

    def back(self, member: str) -> str:
        """A member has registered. Returns the line that was logged; empty if all is not well yet."""
        with self._lock:
            if member not in self._missing:
                return ""
            self._missing.discard(member)
            self._returned.append(member)
            return self._conclude()

    def dismissed(self, member: str) -> str:
        """Nobody needs this member any more. Returns the line that was logged, as `back` does."""
        with self._lock:
            known = member in self._missing
            self._missing.discard(member)
            return self._conclude() if known else ""

    def durable(self, epoch: int) -> str:
        """An epoch is durable. Returns the line that was logged, if any was."""
        with self._lock:
            self._epoch = None
            if self._broken is None or (epoch <= self._broken and not self._reruns):
                # It may have been all but done when a host was lost: the next one shows.
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
