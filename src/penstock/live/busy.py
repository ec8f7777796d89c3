"""How busy a live courier is: the time on a core that the threads of a run have taken."""

from __future__ import annotations

import threading
import time


class BusyTime:
    """Adds up what threads have worked. Each thread notes its own time, whenever it has done something."""

    def __init__(self) -> None:
        self._worked: dict[int, float] = {}
        """Thread -> seconds on a core, since it began."""
        self._told = 0.0

    def note(self) -> None:
        """The calling thread has done something."""
        self._worked[threading.get_ident()] = time.thread_time()

    def taken_ms(self) -> float:
        """Milliseconds that threads have worked since this was last asked, by one of them."""
        self.note()
        worked = sum(list(self._worked.values()))
        taken, self._told = worked - self._told, worked
        return max(0.0, taken * 1000)
