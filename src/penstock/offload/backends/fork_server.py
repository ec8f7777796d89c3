"""Where local functions are born: a process with everything loaded and one thread, which forks them.

It is apart from the service, which has threads that a fork would leave in the middle of something.
Each function is a process with one pipe, to the service, and nothing else. When the service is gone,
the nursery ends all functions that it bore, those that hang included, and itself.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from penstock.faults import point
from penstock.offload.backends.pipe import Pipe

FORK, KILL = b"fork", b"kill"
PID = struct.Struct("<q")
READY, DONE, FAILED = b"ready", b"+", b"-"
"""What a function says: once, that it is up; then before each answer or text of an error."""

_LOOK_S = 0.5
"""How often those that have ended are put to rest."""

Answer = Callable[[bytes], tuple[int, bytes]]
"""A request in; how many records it had, and the answer."""


class Body:
    """What each function does: answers requests, at its speed, until the service lets it go."""

    def __init__(self, answer: Answer, start_ms: int = 0, speed: float = 1.0) -> None:
        self._answer, self._start_ms, self._speed = answer, start_ms, speed

    def live(self, pipe: Pipe) -> None:
        """The whole life of one function."""
        time.sleep(self._start_ms / 1000)
        pipe.send(READY)
        while True:
            pipe.send(self._said(pipe.receive()))

    def _said(self, request: bytes) -> bytes:
        begun = time.perf_counter()
        try:
            records, answer = self._answer(request)
        except Exception as failed:
            return FAILED + f"{type(failed).__name__}: {failed}".encode()
        if self._speed < 1:
            time.sleep((time.perf_counter() - begun) * (1 / self._speed - 1))
        point("burst.work", records=records, took_s=time.perf_counter() - begun)
        return DONE + answer


def fork_nursery(body: Body) -> Pipe:
    """Fork a nursery off this process, which must have one thread only. Returns the pipe to it."""
    gc.collect()
    gc.freeze()  # what all functions share stays shared
    here, there = Pipe.pair()
    if os.fork() == 0:
        here.close()
        _leave(lambda: _Nursery(there, body).live())
    there.close()
    return here


class _Nursery:
    def __init__(self, service: Pipe, body: Body) -> None:
        self._service, self._body = service, body
        self._children: set[int] = set()

    def live(self) -> None:
        try:
            while True:
                self._bury()
                if select.select([self._service.number], [], [], _LOOK_S)[0]:
                    self._obey(self._service.receive())
        finally:
            for pid in self._children:
                os.kill(pid, signal.SIGKILL)

    def _obey(self, order: bytes) -> None:
        if order == FORK:
            self._bear()
        elif order.startswith(KILL):
            (pid,) = PID.unpack(order[len(KILL) :])
            if pid in self._children:  # else it is buried, and the number may be another's
                os.kill(pid, signal.SIGKILL)

    def _bear(self) -> None:
        end, own = Pipe.pair()
        pid = os.fork()
        if pid == 0:
            self._service.close()
            end.close()
            _leave(lambda: self._body.live(own))
        self._children.add(pid)
        self._service.send_end(PID.pack(pid), end)
        end.close()
        own.close()

    def _bury(self) -> None:
        for pid in list(self._children):
            if os.waitpid(pid, os.WNOHANG)[0]:
                self._children.discard(pid)


def _leave(life: Callable[[], None]) -> NoReturn:
    """Live, and leave without what the parent would do at its end."""
    with suppress(EOFError, OSError, KeyboardInterrupt):
        life()
    os._exit(0)
