"""Profiles burst workers: the same requests on both sides, for their speed relative to this machine.

Couriers run on the machines of hosts. Now and then one of them does a request itself that a burst worker has
answered, when its rows are done. The CPU times of both give the speed: rho in Sponge's equation 3.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from penstock.offload.backends.worker import BurstWorker
from penstock.plan.steps import FlowPlan

_EVERY_S = 30.0
"""Seconds between two requests that a process does again."""
_MOST_MS = 50.0
"""CPU milliseconds of a request above which it is not done again: rows wait meanwhile."""
_LEAST_MS = 0.2
"""CPU milliseconds below which the clock says little."""


@dataclass(frozen=True)
class Profiled:
    """CPU milliseconds of the same requests: here, and on burst workers."""

    here_ms: float = 0.0
    workers_ms: float = 0.0


class Profiler:
    """Does requests again. Threads that ask burst workers call `note`. The thread of the courier's steps
    calls `run`, since code of the user need not bear several threads."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        cpu: Callable[[], float] = time.thread_time,
    ) -> None:
        self._clock, self._cpu = clock, cpu
        self._lock = threading.Lock()
        self._next = float("-inf")
        self._worker: tuple[FlowPlan, BurstWorker] | None = None
        self._pending: tuple[str, bytes, float] | None = None
        """Segment, request, and CPU milliseconds of its burst worker."""
        self._sums: dict[str, Profiled] = {}

    def note(self, flow: FlowPlan, segment: str, body: bytes, worker_ms: float) -> None:
        """Keep a request that a burst worker has answered with this much CPU, if it is time for one."""
        if not _LEAST_MS <= worker_ms <= _MOST_MS or self._clock() < self._next:
            return
        with self._lock:
            if self._clock() < self._next:
                return
            self._next = self._clock() + _EVERY_S
            if self._worker is None or self._worker[0] is not flow:
                self._worker = flow, BurstWorker(flow)
                self._worker[1].rehearse()
            self._pending = segment, body, worker_ms

    def run(self) -> None:
        """Do the request that was kept, if there is one. Never raises: its rows are done already."""
        with self._lock:
            kept, self._pending = self._pending, None
            if kept is None or self._worker is None:
                return
            worker = self._worker[1]
        segment, body, worker_ms = kept
        began = self._cpu()
        with suppress(Exception):
            worker.answer(body)
            here_ms = 1000 * (self._cpu() - began)
            with self._lock:
                sums = self._sums.get(segment, Profiled())
                self._sums[segment] = Profiled(sums.here_ms + here_ms, sums.workers_ms + worker_ms)

    def taken(self, segment: str) -> Profiled:
        """What was measured for a segment since the last call."""
        with self._lock:
            return self._sums.pop(segment, Profiled())


profiler = Profiler()
"""The profiler of this process."""
