"""Upkeep of the store while a query runs: chains of deltas are merged, what nobody needs is removed.

Two chores, each in a thread of its own, so that neither waits for the other nor an epoch for them. If
one fails, the store is as good as before; it is told (`trouble`, and a line in the log `penstock.store`)
and tried again after some epochs. Only one compaction is under way at a time, however long it takes.
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
"""Intervals of `compact_epochs` after which a compaction no longer yields to epochs: a chain that grows
faster than it is merged would have no bound."""
_END_S = 6.0
"""Seconds that the end of a query waits for a chore to break off: longer than a call takes."""

_log = logging.getLogger("penstock.store")


class Chore(Generic[T]):
    """Work that is done now and then, in the background, and may fail."""

    def __init__(self, what: str, after: int) -> None:
        self._what, self._after = what, after
        self._thread: threading.Thread | None = None
        self._result: list[T] = []
        self.trouble: BaseException | None = None
        """Why it failed the last time; None if it did not."""

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def begin(self, work: Callable[[], T]) -> None:
        """Do it, unless it is being done."""
        if not self.busy:
            self._thread = threading.Thread(
                target=self._do, args=(work,), name=f"upkeep: {self._what}", daemon=True
            )
            self._thread.start()

    def take(self) -> T | None:
        """What came of it, once."""
        return self._result.pop() if self._result and not self.busy else None

    def join(self, timeout_s: float | None = None) -> None:
        """Wait until it is not being done."""
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
                    told(failed),
                    self._after,
                    extra={"chore": self._what, "reason": told(failed)},
                )
            return
        self.trouble = None
        if failed_before:
            _log.warning("The store is %s again.", self._what, extra={"chore": self._what})


class Upkeep:
    """Watches epochs being committed; every so often has their deltas merged, and old files removed."""

    def __init__(self, store: Store, fleet: Fleet, settings: Settings) -> None:
        self._store, self._fleet, self._settings = store, fleet, settings
        self._stopping = threading.Event()
        every = settings.compact_epochs
        self._compacting: Chore[tuple[int, str]] = Chore("compacted", every)
        self._cleaning: Chore[Cleaned] = Chore("cleaned up", every)
        self._compaction: Compaction | None = None
        """The one that no manifest names yet, be it that its last attempt failed."""
        self._tried = self._cleaned = -1
        """The epochs after which these were last begun."""

    @property
    def trouble(self) -> str:
        """Which chores failed the last time they were tried, and why; empty if none."""
        return "; ".join(
            f"the store could not be {what}: {told(chore.trouble)}"
            for what, chore in (("compacted", self._compacting), ("cleaned up", self._cleaning))
            if chore.trouble is not None
        )

    def newest_layout(self) -> tuple[int, str] | None:
        """The version and file of a layout made since this was last asked; the next manifest names it."""
        layout = self._compacting.take()
        if layout is not None:
            self._compaction = None
        return layout

    def committed(self, version: int, base: int, owners: Owners) -> None:
        """An epoch's manifest is written. Begins what is due and not under way."""
        every = self._settings.compact_epochs
        if version - max(base, self._tried) >= every and not self._compacting.busy:
            self._tried = version
            self._compact(version, soft=version - base < _URGENT * every, owners=owners)
        if version - self._cleaned >= every and not self._cleaning.busy:
            self._cleaned = version
            # A compaction that begins later is of a later version, and its files stay for that.
            active = [] if self._compaction is None else [self._compaction.tag]
            self._cleaning.begin(lambda: self._clean(version, active))

    def stop(self) -> None:
        """Give up what is under way; nothing is written or removed after this."""
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


def told(failed: BaseException) -> str:
    """An error as a sentence."""
    return (
        str(failed) if isinstance(failed, PenstockError) else f"{type(failed).__name__}: {failed}"
    )
