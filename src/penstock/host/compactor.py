"""A host's share of a compaction: one call begins it, others ask for its progress or cancel it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from penstock.errors import HostLostError, ProtocolError
from penstock.host.load import Load, Rests
from penstock.state.arrays import Array
from penstock.state.store.compaction import Compacted


@dataclass(frozen=True)
class CompactOrder:
    """An order to compact some slots."""

    slots: tuple[int, ...]
    upto: int
    """Version that the files of these slots are merged up to."""
    tag: str
    """Name of this order, and part of its files' names."""
    soft: bool = True
    """Whether the work runs at a lower priority than epochs, and rests by the load."""


_END_S = 1.0
"""Seconds that an ending host waits for a step of its compaction."""


@dataclass(frozen=True)
class CompactionStanding:
    """Progress of an order."""

    steps: int
    """Number of steps so far, which grows with every file and with every part of a large file."""
    part: Compacted | None = None
    """Result; None until the order is done."""


Work = Callable[[Array, int, str, Callable[[], None], Callable[[], None]], Compacted]
"""A function that compacts slots up to a version under a tag. It calls the first function before each file,
and the second one between small steps."""


class Compactor:
    """Runs one order at a time, in its own thread, at a pace set by the load. Thread-safe."""

    def __init__(self, work: Work, load: Load) -> None:
        self._work, self._load = work, load
        self._lock = threading.Lock()
        self._job: _Job | None = None

    def begin(self, order: CompactOrder) -> None:
        """Begin an order. If another one is running, cancel it; refuse the new one until it has ended."""
        with self._lock:
            if self._job is not None:
                self._job.cancelled.set()
                if self._job.is_alive():
                    raise ProtocolError(
                        f"compaction {self._job.order.tag} is still being cancelled",
                        hint="try again in a second",
                    )
            self._job = _Job(self._work, order, self._load)
            self._job.start()

    def standing(self, tag: str) -> CompactionStanding:
        """Return the progress of an order, or raise the error that it failed with."""
        job = self._job
        if job is None or job.order.tag != tag:
            raise ProtocolError(f"this host has no compaction {tag}", hint="begin it again")
        if job.failed is not None:
            raise job.failed
        return CompactionStanding(job.steps, job.part)

    def cancel(self, tag: str | None = None) -> None:
        """Cancel this order, or any order if no tag is given, before its next step."""
        job = self._job
        if job is not None and tag in (None, job.order.tag):
            job.cancelled.set()

    def end(self) -> None:
        """Cancel the order that is running, and wait a moment for its current step.

        Nothing should be written to a store after its query has ended.
        """
        self.cancel()
        with self._lock:
            job = self._job
        if job is not None and job is not threading.current_thread():
            job.join(_END_S)


class _Job(threading.Thread):
    """The thread that runs one order."""

    def __init__(self, work: Work, order: CompactOrder, load: Load) -> None:
        super().__init__(name="compactor", daemon=True)
        self._work, self.order, self._load = work, order, load
        self.cancelled = threading.Event()
        self.steps = 0
        self.part: Compacted | None = None
        self.failed: BaseException | None = None
        self._rests: Rests | None = None

    def run(self) -> None:
        order = self.order
        try:
            if order.soft:
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
                self._rests = Rests(self._load, self.cancelled.wait)
            slots = np.array(order.slots, np.int64)
            self.part = self._work(slots, order.upto, order.tag, self._step, self._rest)
        except BaseException as failed:
            self.failed = failed

    def _step(self) -> None:
        if self.cancelled.is_set():
            raise HostLostError(f"compaction {self.order.tag} was cancelled")
        self.steps += 1

    def _rest(self) -> None:
        if self._rests is not None:
            self._rests()
        self._step()
