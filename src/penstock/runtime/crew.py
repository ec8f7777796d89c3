"""Threads that rest until there is something to do.

Each worker has a *bell*, a lock that is taken while nobody rings. Who rests puts its bell on the
list of the idle, looks once more whether there is something to do, and waits for the bell; who
makes work looks at that list, takes a bell off it and rings. One of the two sees the other, so no
call is lost, and only whoever took a bell off the list rings it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable


class Bell:
    """What one worker waits for."""

    __slots__ = ("ring", "wait")

    def __init__(self) -> None:
        lock = threading.Lock()
        lock.acquire()
        self.wait: Callable[[], bool] = lock.acquire
        self.ring: Callable[[], None] = lock.release


class Crew:
    """The idle workers of a runtime, and those that wait for its end or for room in it."""

    def __init__(self) -> None:
        self.idle: deque[Bell] = deque()
        self.watchers: deque[Bell] = deque()
        self.threads: list[threading.Thread] = []
        self.leaving = False

    def hire(self, number: int, serve: Callable[[Bell], bool]) -> None:
        """Start threads until there are this many; all are idle.

        `serve(bell)` is called by a thread whose bell was rung: it works until there is nothing to
        do, and puts the bell back on the list; False ends the thread. It must not keep the runtime
        alive, so that one that nobody uses any more ends its threads.
        """
        while len(self.threads) < number:
            bell = Bell()
            self.idle.append(bell)
            name = f"penstock-worker-{len(self.threads)}"
            thread = threading.Thread(target=_live, args=(bell, serve), name=name, daemon=True)
            self.threads.append(thread)
            thread.start()

    def wake(self) -> None:
        """Ring for one idle worker, if there is one."""
        try:
            bell = self.idle.pop()
        except IndexError:
            return
        bell.ring()

    def rest(self, bell: Bell, *, watch: bool = False) -> None:
        """Be idle (or only watch) from now on. Look once more, then `leave` or `bell.wait()`."""
        (self.watchers if watch else self.idle).append(bell)
        if self.leaving:
            self.ring(bell)

    def leave(self, bell: Bell) -> bool:
        """Be idle no more; False if somebody is ringing: the bell must be waited for."""
        for waiting in (self.idle, self.watchers):
            try:
                waiting.remove(bell)
            except ValueError:
                continue
            return True
        return False

    def ring(self, bell: Bell) -> None:
        """Ring one bell, if it is on a list."""
        if self.leave(bell):
            bell.ring()

    def send_home(self) -> None:
        """End the threads: idle ones now, others when they come to rest."""
        self.leaving = True
        for waiting in (self.idle, self.watchers):
            for bell in tuple(waiting):
                self.ring(bell)

    def dismiss(self) -> None:
        """End the threads, and wait until they have ended; others may be hired then."""
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
