"""Upkeep of the store while a query runs: deltas are compacted, and files that no version needs are removed.

Each chore has its own thread, so neither waits for the other and no epoch waits for them. A chore that fails
does no harm: the failure is reported (`trouble`, and the logger `penstock.store`), and the chore is repeated
after some epochs. Only one compaction runs at a time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from penstock.driver.compacting import Compaction, Owners, Stopped
from penstock.driver.fleet import Fleet
from penstock.errors import PenstockError
from penstock.faults import point
from penstock.settings import Settings
from penstock.state.store import dead_letters
from penstock.state.store.retention import Cleaned, clean
from penstock.state.store.store import Store

T = TypeVar("T")

_URGENT = 4
"""Multiple of `Settings.compact_epochs` after which a compaction no longer yields to epochs. Otherwise deltas
could grow faster than they are merged."""
_END_S = 6.0
"""Most seconds that a stopping query waits for a chore: longer than a call takes."""

_log = logging.getLogger("penstock.store")


class Chore(Generic[T]):
    """Background work that is repeated from time to time, and may fail."""

    def __init__(self, what: str, after: int) -> None:
        self._what, self._after = what, after
        self._thread: threading.Thread | None = None
        self._result: list[T] = []
        self.trouble: BaseException | None = None
        """Error of the last attempt; None if it succeeded."""

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def begin(self, work: Callable[[], T]) -> None:
        """Start the work, unless it is running."""
        if not self.busy:
            self._thread = threading.Thread(
                target=self._do, args=(work,), name=f"upkeep: {self._what}", daemon=True
            )
            self._thread.start()

    def take(self) -> T | None:
        """Remove and return the result; None if there is none."""
        return self._result.pop() if self._result and not self.busy else None

    def join(self, timeout_s: float | None = None) -> None:
        """Wait until the work has ended."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _do(self, work: Callable[[], T]) -> None:
        failed_before, self._result = self.trouble is not None, []
        try:
            self._result = [work()]
        except Stopped:
            return
        except BaseException as failed:
            self.trouble = failed
            if not failed_before:
                _log.warning(
                    "The store could not be %s: %s. It is tried again every %d epochs.",
                    self._what,
                    error_text(failed),
                    self._after,
                    extra={"chore": self._what, "reason": error_text(failed)},
                )
            return
        self.trouble = None
        if failed_before:
            _log.warning("The store is %s again.", self._what, extra={"chore": self._what})


class Upkeep:
    """Compacts deltas and removes old files, every `Settings.compact_epochs` epochs."""

    def __init__(self, store: Store, fleet: Fleet, settings: Settings) -> None:
        self._store, self._fleet, self._settings = store, fleet, settings
        self._stopping = threading.Event()
        every = settings.compact_epochs
        self._compacting: Chore[tuple[int, str]] = Chore("compacted", every)
        self._cleaning: Chore[Cleaned] = Chore("cleaned up", every)
        self._compaction: Compaction | None = None
        """Compaction whose layout is in no manifest yet, even if its last attempt failed."""
        self._tried = self._cleaned = -1
        """Epochs after which the last compaction and the last clean-up were started."""

    @property
    def trouble(self) -> str:
        """Chores whose last attempt failed, with reasons; "" if there are none."""
        return "; ".join(
            f"the store could not be {what}: {error_text(chore.trouble)}"
            for what, chore in (("compacted", self._compacting), ("cleaned up", self._cleaning))
            if chore.trouble is not None
        )

    def newest_layout(self) -> tuple[int, str] | None:
        """Version and file of a new layout, which the next manifest must name; None if there is none."""
        layout = self._compacting.take()
        if layout is not None:
            self._compaction = None
        return layout

    def committed(self, version: int, base: int, owners: Owners) -> None:
        """Start the chores that are due, after the commit of a version."""
        every = self._settings.compact_epochs
        if version - max(base, self._tried) >= every and not self._compacting.busy:
            self._tried = version
            self._compact(version, soft=version - base < _URGENT * every, owners=owners)
        if version - self._cleaned >= every and not self._cleaning.busy:
            self._cleaned = version
            # The files of a later compaction are kept, since they are of a later version.
            active = [] if self._compaction is None else [self._compaction.tag]
            self._cleaning.begin(lambda: self._clean(version, active))

    def stop(self) -> None:
        """End the chores. Nothing is written or removed after this."""
        self._stopping.set()
        for chore in (self._compacting, self._cleaning):
            chore.join(_END_S)

    def _compact(self, version: int, soft: bool, owners: Owners) -> None:
        compaction = self._compaction
        if compaction is None:
            stalled_ms = self._settings.compact_stalled_ms
            compaction = Compaction(self._store, self._fleet, version, owners, stalled_ms)
            self._compaction = compaction
        self._compacting.begin(lambda: compaction.attempt(soft, self._stopping))

    def _clean(self, version: int, active: list[str]) -> Cleaned:
        point("driver.clean", version=version)
        keep = max(2, self._settings.keep_epochs)
        cleaned = clean(self._store, keep, version, active, self._check)
        self._check()
        dead_letters.tidy(self._store, version, self._settings.dead_letters_mb << 20)
        return cleaned

    def _check(self) -> None:
        if self._stopping.is_set():
            raise Stopped


def error_text(failed: BaseException) -> str:
    """The text of an error; with the name of its class, unless it is Penstock's own."""
    return (
        str(failed) if isinstance(failed, PenstockError) else f"{type(failed).__name__}: {failed}"
    )
