"""A host's part of a compaction: begun by one call, asked about by others, broken off by another."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from penstock.errors import HostLostError, ProtocolError
from penstock.state.arrays import Array
from penstock.state.store.compaction import Compacted


@dataclass(frozen=True)
class CompactOrder:
    """What a host is to compact."""

    slots: tuple[int, ...]
    upto: int
    """The version that the files of these slots are brought to."""
    tag: str
    """Names this order, and is in the names of its files."""
    soft: bool = True
    """Whether the work yields to what epochs wait for."""


_END_S = 1.0


@dataclass(frozen=True)
class CompactionStanding:
    """How far an order has come."""

    files: int
    """Files that were read or written so far."""
    part: Compacted | None = None
    """What came of it, when it is done."""


Work = Callable[[Array, int, str, Callable[[], None]], Compacted]
"""Compacts slots up to a version under a tag; calls the last argument before each file."""


class Compactor:
    """Carries out one order at a time, in a thread of its own. Safe to call from several threads."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._job: _Job | None = None

    def begin(self, order: CompactOrder) -> None:
        """Begin an order; one that is under way is broken off. Refused until that one has ended."""
        with self._lock:
            if self._job is not None:
                self._job.cancelled.set()
                if self._job.is_alive():
                    raise ProtocolError(
                        f"compaction {self._job.order.tag} has not ended yet",
                        hint="ask again later",
                    )
            self._job = _Job(self._work, order)
            self._job.start()

    def standing(self, tag: str) -> CompactionStanding:
        """How far an order has come; raises what it failed with."""
        job = self._job
        if job is None or job.order.tag != tag:
            raise ProtocolError(f"there is no compaction {tag} here", hint="begin it again")
        if job.failed is not None:
            raise job.failed
        return CompactionStanding(job.files, job.part)

    def cancel(self, tag: str | None = None) -> None:
        """Break off this order, or whichever is under way, before its next file."""
        job = self._job
        if job is not None and tag in (None, job.order.tag):
            job.cancelled.set()

    def end(self) -> None:
        """Break off whatever is under way, and wait a moment for its file to be written: nothing should
        be written to a store whose query has ended."""
        self.cancel()
        with self._lock:
            job = self._job
        if job is not None and job is not threading.current_thread():
            job.join(_END_S)


class _Job(threading.Thread):
    """One order."""

    def __init__(self, work: Work, order: CompactOrder) -> None:
        super().__init__(name="compactor", daemon=True)
        self._work, self.order = work, order
        self.cancelled = threading.Event()
        self.files = 0
        self.part: Compacted | None = None
        self.failed: BaseException | None = None

    def run(self) -> None:
        order = self.order
        try:
            if order.soft:
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
            slots = np.array(order.slots, np.int64)
            self.part = self._work(slots, order.upto, order.tag, self._next_file)
        except BaseException as failed:
            self.failed = failed

    def _next_file(self) -> None:
        if self.cancelled.is_set():
            raise HostLostError(f"compaction {self.order.tag} was broken off")
        self.files += 1
