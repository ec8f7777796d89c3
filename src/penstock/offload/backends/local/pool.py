"""The pool of local burst workers: starts and ends them, and tracks which are idle or busy.

(none) ──start──► busy ──answered──► idle ──request──► busy ...
                    └── died or timed out: ended     └── idle for long, and not kept warm: ended
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from penstock.offload.backends.backend import WorkerFailed
from penstock.wire.report import Usage


class PooledWorker(Protocol):
    """One running burst worker."""

    pid: int

    def answer(self, request: bytes, until: float) -> bytes:
        """Send a request, and return the answer. Raises `WorkerFailed` if the worker's code failed; the
        worker is still usable then. Raises `TimeoutError`, `EOFError` or `OSError` if it is not usable any
        more."""
        ...

    def end(self) -> None:
        """Kill it, whether it works, waits or hangs."""
        ...


class WorkerPool:
    """At most `at_most` burst workers, started when needed and ended when idle for `idle_ms` milliseconds.

    Safe to use from several threads. `tend` must be called periodically.

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
        """Idle workers, each with the time since which it is idle, longest idle first."""
        self._busy: dict[int, PooledWorker] = {}
        self._starting = 0
        self._warm = 0
        self._used = Usage()

    @property
    def used(self) -> Usage:
        """Usage so far."""
        return self._used

    @property
    def up(self) -> dict[int, str]:
        """Process id -> "idle" or "busy"."""
        with self._lock:
            return {worker.pid: "idle" for worker, _ in self._idle} | dict.fromkeys(
                self._busy, "busy"
            )

    def warm(self, count: int) -> None:
        """Keep this many ready or busy, from the next `tend` on."""
        self._warm = min(count, self._at_most)

    def invoke(self, request: bytes, timeout_ms: int) -> bytes:
        """Have a burst worker answer a request. A worker that dies or times out is ended."""
        began = self._clock()
        until = began + timeout_ms / 1000
        worker = self._take()
        if self._clock() >= until:  # its start took too long: it stays warm for the next request
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
        """Start burst workers that should be warm, and end those that were idle for too long."""
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
        """Take an idle burst worker, or start one. It counts as busy from now on."""
        with self._lock:
            if self._idle:
                worker, _ = self._idle.pop()  # the one used last: others may end
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
        """Count one more worker as starting, if there are fewer than `most`. Returns whether it was."""
        with self._lock:
            reserved = len(self._idle) + len(self._busy) + self._starting < most
            self._starting += reserved
            return reserved

    def _started(self) -> PooledWorker:
        """Start a burst worker that was counted as starting, and wait until it is up."""
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
    return WorkerFailed(f"a burst worker did not answer within {timeout_ms} ms", failure="timeout")
