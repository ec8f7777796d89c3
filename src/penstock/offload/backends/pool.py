"""The local functions that are up: who is idle, who is started, who is let go."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from penstock.offload.backends.fork_server import DONE, FORK, KILL, PID, READY
from penstock.offload.backends.pipe import Pipe
from penstock.offload.backends.port import FunctionFailed, Usage

_START_S = 60.0
"""A function that is not up after so long, beyond what it shall take, never will be."""


class Worker(Protocol):
    """One function that is up."""

    pid: int

    def answer(self, request: bytes, until: float) -> bytes:
        """A `FunctionFailed` whose failure is "failed" with the function alive: its code failed."""
        ...

    def end(self) -> None:
        """Whether it works or hangs."""
        ...


class ForkedWorker:
    """A function that the nursery has borne. See `Worker`."""

    def __init__(self, pid: int, pipe: Pipe, kill: Callable[[int], None]) -> None:
        self.pid, self._pipe, self._kill = pid, pipe, kill

    def answer(self, request: bytes, until: float) -> bytes:
        self._pipe.send(request, until)
        said = self._pipe.receive(until)
        if said[:1] != DONE:
            raise FunctionFailed(f"a function failed: {said[1:].decode(errors='replace')}")
        return said[1:]

    def end(self) -> None:
        self._pipe.close()
        self._kill(self.pid)


class Midwife:
    """The service's side of the nursery. Safe to use from several threads."""

    def __init__(self, nursery: Pipe, start_ms: int) -> None:
        self._nursery, self._start_s = nursery, start_ms / 1000 + _START_S
        self._lock = threading.Lock()

    def start(self) -> ForkedWorker:
        """A new function, up and ready."""
        until = time.monotonic() + self._start_s
        try:
            with self._lock:
                self._nursery.send(FORK)
                told, pipe = self._nursery.receive_end(PID.size, until)
            worker = ForkedWorker(PID.unpack(told)[0], pipe, self._kill)
            if pipe.receive(until) != READY:
                raise EOFError
        except (EOFError, OSError) as failed:
            raise FunctionFailed(f"a function did not start: {failed!r}") from failed
        return worker

    def _kill(self, pid: int) -> None:
        with self._lock:
            self._nursery.send(KILL + PID.pack(pid))


@dataclass
class _Idle:
    worker: Worker
    since: float


class Pool:
    """Functions, at most so many, that are started when needed and let go when idle for long.

    Calls may come from any number of threads. `tend` is to be called now and then.

    >>> class Echo:
    ...     pid = 1
    ...     def answer(self, request: bytes, until: float) -> bytes:
    ...         return request
    ...     def end(self) -> None: ...
    >>> pool = Pool(Echo, at_most=1)
    >>> pool.invoke(b"rows", timeout_ms=1000), pool.used.invocations, pool.used.cold_starts
    (b'rows', 1, 1)
    """

    def __init__(
        self,
        start: Callable[[], Worker],
        at_most: int,
        idle_ms: int = 60_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._start, self._at_most, self._idle_s = start, at_most, idle_ms / 1000
        self._clock = clock
        self._lock = threading.Lock()
        self._idle: list[_Idle] = []
        self._busy: dict[int, Worker] = {}
        self._starting = 0
        self._warm = 0
        self._used = Usage()

    @property
    def used(self) -> Usage:
        return self._used

    @property
    def up(self) -> dict[int, str]:
        """Process number -> "idle" or "busy"."""
        with self._lock:
            return {one.worker.pid: "idle" for one in self._idle} | dict.fromkeys(
                self._busy, "busy"
            )

    def warm(self, count: int) -> None:
        """Keep so many ready, or busy: at the next `tend`."""
        self._warm = min(count, self._at_most)

    def invoke(self, request: bytes, timeout_ms: int) -> bytes:
        """Let a function answer. One that dies or is too late is ended; the next one is a new one."""
        begun = self._clock()
        until = begun + timeout_ms / 1000
        worker = self._taken()
        if self._clock() >= until:  # its start took too long: the next request finds it warm
            self._give_back(worker, begun, failed=1)
            raise _late(timeout_ms)
        try:
            answer = worker.answer(request, until)
        except FunctionFailed:
            self._give_back(worker, begun, failed=1)
            raise
        except TimeoutError:
            self._give_up(worker, begun)
            raise _late(timeout_ms) from None
        except (EOFError, OSError) as gone:
            self._give_up(worker, begun)
            raise FunctionFailed(f"a function died: {gone!r}") from gone
        self._give_back(worker, begun)
        return answer

    def tend(self) -> None:
        """Start those that shall be warm, and let those go that were idle for long, the oldest first."""
        while self._room_for_warm():
            self._add(self._begun())
        now, going = self._clock(), []
        with self._lock:
            spare = len(self._idle) + len(self._busy) - self._warm
            while spare > 0 and self._idle and now - self._idle[0].since >= self._idle_s:
                going.append(self._idle.pop(0).worker)
                spare -= 1
        for worker in going:
            worker.end()

    def _taken(self) -> Worker:
        with self._lock:
            if self._idle:
                worker = self._idle.pop().worker  # the one used last: others may be let go
                self._busy[worker.pid] = worker
                return worker
            if len(self._busy) + self._starting >= self._at_most:
                self._used = replace(self._used, throttled=self._used.throttled + 1)
                raise FunctionFailed(f"all {self._at_most} functions are busy", failure="throttled")
            self._starting += 1
        worker = self._begun()
        with self._lock:
            self._busy[worker.pid] = worker
        return worker

    def _room_for_warm(self) -> bool:
        with self._lock:
            there = len(self._idle) + len(self._busy) + self._starting
            if there >= self._warm:
                return False
            self._starting += 1
            return True

    def _begun(self) -> Worker:
        """One that was counted as starting, up."""
        begun = self._clock()
        try:
            worker = self._start()
        finally:
            with self._lock:
                self._starting -= 1
        took = (self._clock() - begun) * 1000
        with self._lock:
            self._used += Usage(cold_starts=1, cold_start_ms=took)
        return worker

    def _add(self, worker: Worker) -> None:
        with self._lock:
            self._idle.append(_Idle(worker, self._clock()))

    def _give_back(self, worker: Worker, begun: float, failed: int = 0) -> None:
        with self._lock:
            self._note(worker, begun, failed)
            self._idle.append(_Idle(worker, self._clock()))

    def _give_up(self, worker: Worker, begun: float) -> None:
        with self._lock:
            self._note(worker, begun, failed=1)
        worker.end()

    def _note(self, worker: Worker, begun: float, failed: int) -> None:
        del self._busy[worker.pid]
        seconds = self._clock() - begun
        self._used += Usage(invocations=1, seconds=seconds, failed=failed)


def _late(timeout_ms: int) -> FunctionFailed:
    return FunctionFailed(f"a function gave no answer within {timeout_ms} ms", failure="timeout")
