"""CPU time that the threads of a live courier's run have used."""

from __future__ import annotations

import threading
import time


class BusyTime:
    """Adds up the CPU time of threads. Each thread calls `note` after it has done some work."""

    def __init__(self) -> None:
        self._worked: dict[int, float] = {}
        """Thread id -> seconds of CPU time since the thread began."""
        self._reported = 0.0
        """Seconds of CPU time that `taken_ms` has returned so far."""

    def note(self) -> None:
        """Record the CPU time of the calling thread."""
        self._worked[threading.get_ident()] = time.thread_time()

    def taken_ms(self) -> float:
        """Milliseconds of CPU time since the last call. Must be called by one of the threads."""
        self.note()
        worked = sum(list(self._worked.values()))
        taken, self._reported = worked - self._reported, worked
        return max(0.0, taken * 1000)
