"""Threads that sleep until there is work.

Each worker has a *bell*, a lock that is held until it is rung. An idle worker puts its bell on the
list of idle workers, checks once more for work, and waits for the bell. A thread that adds work takes a
bell off that list and rings it. One of the two always sees the other, so no wake-up is lost. Only the
thread that took a bell off the list rings it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable


class Bell:
    """A wake-up signal for one worker."""

    __slots__ = ("ring", "wait")

    def __init__(self) -> None:
        lock = threading.Lock()
        lock.acquire()
        self.wait: Callable[[], bool] = lock.acquire
        self.ring: Callable[[], None] = lock.release


class Crew:
    """The threads of a runtime, its idle workers, and the callers that wait for its end or for room in it."""

    def __init__(self) -> None:
        self.idle: deque[Bell] = deque()
        """Bells of idle workers."""
        self.watchers: deque[Bell] = deque()
        """Bells of callers that wait but do not work."""
        self.threads: list[threading.Thread] = []
        self.leaving = False
        """Whether the threads are to end."""

    def hire(self, number: int, serve: Callable[[Bell], bool]) -> None:
        """Start threads until there are `number` of them. New threads are idle.

        A thread whose bell was rung calls `serve(bell)`, which works until there is nothing to do and puts
        the bell back on the list. If it returns False, the thread ends. It must not hold a strong reference
        to the runtime, so that an unused runtime is freed and ends its threads.
        """
        while len(self.threads) < number:
            bell = Bell()
            self.idle.append(bell)
            name = f"penstock-worker-{len(self.threads)}"
            thread = threading.Thread(target=_live, args=(bell, serve), name=name, daemon=True)
            self.threads.append(thread)
            thread.start()

    def wake(self) -> None:
        """Wake one idle worker, if there is one."""
        try:
            bell = self.idle.pop()
        except IndexError:
            return
        bell.ring()

    def rest(self, bell: Bell, *, watch: bool = False) -> None:
        """Put the bell on the idle list (or on that of watchers). The caller must then check for work
        once more, and call `leave` or `bell.wait()`."""
        (self.watchers if watch else self.idle).append(bell)
        if self.leaving:
            self.ring(bell)

    def leave(self, bell: Bell) -> bool:
        """Take the bell off its list. Returns False if another thread has taken it: then wait for the
        bell."""
        for waiting in (self.idle, self.watchers):
            try:
                waiting.remove(bell)
            except ValueError:
                continue
            return True
        return False

    def ring(self, bell: Bell) -> None:
        """Ring this bell, if it is on a list."""
        if self.leave(bell):
            bell.ring()

    def send_home(self) -> None:
        """End the threads: idle ones now, busy ones when they become idle."""
        self.leaving = True
        for waiting in (self.idle, self.watchers):
            for bell in tuple(waiting):
                self.ring(bell)

    def dismiss(self) -> None:
        """End the threads and wait for them. New threads can be started after that."""
        self.send_home()
        for thread in self.threads:
            thread.join()
        self.threads.clear()
        self.leaving = False


def _live(bell: Bell, serve: Callable[[Bell], bool]) -> None:
    while True:
        bell.wait()
        if not serve(bell):
            return
