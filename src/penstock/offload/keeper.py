"""Manages the burst workers of a run, in the driver: starts them beside the hosts, ends them at the end.

    starting ──up──► up ──renew──► starting ...           any ──stop──► ended
        └── a start that fails: failed, there are no burst workers, and `trouble` says why

One separate thread does everything that may take time, so that no epoch waits for it. While there are no
burst workers, hosts do all the work.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Literal

from penstock.offload.backends.backend import BurstWorkers
from penstock.wire.report import Usage

KeeperState = Literal["starting", "up", "failed", "ended"]


class WorkerKeeper:
    """Manages the burst workers of one run. Safe to use from any thread."""

    def __init__(self, bring_up: Callable[[], BurstWorkers]) -> None:
        self._bring_up = bring_up
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="burst-workers")
        self._lock = threading.Lock()
        self._started: BurstWorkers | None = None
        self._reach: str | None = None
        self._warm: int | None = None
        self._before = Usage()
        """Usage of burst workers that have ended."""
        self._used = Usage()
        self._asking: Future[None] | None = None
        self._stopped = False
        self.trouble = ""
        """Error message if burst workers could not be started; else empty."""

    @property
    def reach(self) -> str | None:
        """Text by which couriers connect to burst workers; None while there are none."""
        return self._reach

    @property
    def state(self) -> KeeperState:
        """Current state, as shown to users."""
        if self._reach is not None:
            return "up"
        if self.trouble:
            return "failed"
        return "ended" if self._stopped else "starting"

    @property
    def used(self) -> Usage:
        """Usage so far, as of the last update. `ask` starts an update."""
        with self._lock:
            return self._before + self._used

    def start(self) -> None:
        """Start burst workers in the background."""
        self._submit(self._begin)

    def renew(self) -> None:
        """Replace burst workers that do not answer, in the background."""
        self._reach = None
        self._submit(self._end)
        self._submit(self._begin)

    def warm(self, count: int) -> None:
        """Keep `count` burst workers ready from now on."""
        if count != self._warm:
            self._warm = count
            self._submit(self._keep_warm)

    def note(self, usage: Usage) -> None:
        """Add the usage that a courier reported."""
        started = self._started
        if started is not None and usage != Usage():
            started.note(usage)

    def ask(self) -> None:
        """Update `used` in the background."""
        if self._asking is None or self._asking.done():
            self._asking = self._submit(self._find_used)

    def stop(self) -> None:
        """End all burst workers, and wait until that is done. `used` stays available."""
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
        self._reach = None
        self._worker.submit(self._end)
        self._worker.shutdown()

    # -- called by the separate thread

    def _submit(self, work: Callable[[], None]) -> Future[None] | None:
        with self._lock:
            return None if self._stopped else self._worker.submit(work)

    def _begin(self) -> None:
        if self._stopped:
            return
        try:
            self._started = self._bring_up()
        except Exception as failed:
            self.trouble = str(failed)
            return
        self.trouble = ""
        self._reach = self._started.reach
        self._keep_warm()

    def _keep_warm(self) -> None:
        if self._started is not None and self._warm is not None:
            self._started.warm(self._warm)

    def _find_used(self) -> None:
        if self._started is not None:
            used = self._started.used()
            with self._lock:
                self._used = used

    def _end(self) -> None:
        started, self._started, self._reach = self._started, None, None
        if started is None:
            return
        started.stop()
        used = started.used()
        with self._lock:
            self._before, self._used = self._before + used, Usage()
