"""The pool of local burst workers: which are idle or busy, when one is started or ended.

(none) ──start──► busy ──answered──► idle ──asked──► busy ...
                    └── died, or too late: ended     └── idle for long, and not kept warm: ended
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from penstock.offload.backends.backend import WorkerFailed
from penstock.wire.report import Usage


class PooledWorker(Protocol):
    """One burst worker that is up."""

    pid: int

    def answer(self, request: bytes, until: float) -> bytes:
        """The answer. `WorkerFailed` if the worker's code failed; it is still usable then.
        `TimeoutError`, `EOFError` or `OSError` if it is not."""
        ...

    def end(self) -> None:
        """End it, whether it works, waits or hangs."""
        ...


class WorkerPool:
    """At most `at_most` burst workers, started when needed and ended when idle for `idle_ms`.

    Calls may come from any number of threads. `tend` is to be called now and then.

    >>> class Echo:
    ...     pid = 1
    ...     def answer(self, request: bytes, until: float) -> bytes:
    ...         return request
    ...     def end(self) -> None: ...
    >>> pool = WorkerPool(Echo, at_most=1)
    >>> pool.invoke(b"rows", timeout_ms=1000), pool.used.invocations, pool.used.cold_starts
    (b'rows', 1, 1)
    """

    def __init__(
        self,
        start: Callable[[], PooledWorker],
        at_most: int,
        idle_ms: int = 60_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._start, self._at_most, self._idle_s = start, at_most, idle_ms / 1000
        self._clock = clock
        self._lock = threading.RLock()
        self._idle: list[tuple[PooledWorker, float]] = []
        """Each with the time since when it is idle, the longest first."""
        self._busy: dict[int, PooledWorker] = {}
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
            return {worker.pid: "idle" for worker, _ in self._idle} | dict.fromkeys(
                self._busy, "busy"
            )

    def warm(self, count: int) -> None:
        """Keep this many ready or busy, from the next `tend` on."""
        self._warm = min(count, self._at_most)

    def invoke(self, request: bytes, timeout_ms: int) -> bytes:
        """Have a burst worker answer. One that dies or is too late is ended."""
        began = self._clock()
        until = began + timeout_ms / 1000
        worker = self._take()
        if self._clock() >= until:  # its start took too long: the next request finds it warm
            self._give_back(worker, began, failed=1)
            raise _late(timeout_ms)
        try:
            answer = worker.answer(request, until)
        except WorkerFailed:
            self._give_back(worker, began, failed=1)
            raise
        except (EOFError, OSError) as gone:
            self._give_back(worker, began, failed=1, usable=False)
            if isinstance(gone, TimeoutError):
                raise _late(timeout_ms) from None
            raise WorkerFailed(f"a burst worker died: {gone!r}") from gone
        self._give_back(worker, began)
        return answer

    def tend(self) -> None:
        """Start those that are to be warm, and end those that were idle for long."""
        while self._reserve(self._warm):
            worker = self._started()
            with self._lock:
                self._idle.append((worker, self._clock()))
        now, ending = self._clock(), list[PooledWorker]()
        with self._lock:
            spare = len(self._idle) + len(self._busy) - self._warm
            while spare > len(ending) and self._idle and now - self._idle[0][1] >= self._idle_s:
                ending.append(self._idle.pop(0)[0])
        for worker in ending:
            worker.end()

    def _take(self) -> PooledWorker:
        """An idle burst worker, or a new one; it is busy from now on."""
        with self._lock:
            if self._idle:
                worker, _ = self._idle.pop()  # the one used last, so that others may be ended
                self._busy[worker.pid] = worker
                return worker
            if not self._reserve(self._at_most):
                self._used += Usage(throttled=1)
                message = f"all {self._at_most} burst workers are busy"
                raise WorkerFailed(message, failure="throttled")
        worker = self._started()
        with self._lock:
            self._busy[worker.pid] = worker
        return worker

    def _reserve(self, most: int) -> bool:
        """Count one more as starting, if that makes no more than `most`."""
        with self._lock:
            reserved = len(self._idle) + len(self._busy) + self._starting < most
            self._starting += reserved
            return reserved

    def _started(self) -> PooledWorker:
        """A burst worker that was counted as starting, up."""
        began = self._clock()
        try:
            worker = self._start()
        finally:
            with self._lock:
                self._starting -= 1
        with self._lock:
            took_ms = (self._clock() - began) * 1000
            self._used += Usage(cold_starts=1, cold_start_ms=took_ms)
        return worker

    def _give_back(
        self, worker: PooledWorker, began: float, failed: int = 0, usable: bool = True
    ) -> None:
        with self._lock:
            now = self._clock()
            del self._busy[worker.pid]
            self._used += Usage(invocations=1, seconds=now - began, failed=failed)
            if usable:
                self._idle.append((worker, now))
        if not usable:
            worker.end()


def _late(timeout_ms: int) -> WorkerFailed:
    return WorkerFailed(f"a burst worker gave no answer within {timeout_ms} ms", failure="timeout")
