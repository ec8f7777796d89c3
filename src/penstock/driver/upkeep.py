"""Upkeep of the store while a query runs: chains of deltas are merged, what nobody needs is removed.

All of it happens in a thread of its own, and on the hosts in threads of low priority: an epoch never
waits for it. If it fails, the store is as good as before, and it is tried again later.
"""

from __future__ import annotations

import secrets
from concurrent.futures import Future, ThreadPoolExecutor

from penstock import codec
from penstock.driver.fleet import Fleet
from penstock.errors import PenstockError
from penstock.faults import point
from penstock.model import HostId
from penstock.settings import Settings
from penstock.state.store import dead_letters
from penstock.state.store.compaction import Compacted, merged_layout
from penstock.state.store.retention import clean
from penstock.state.store.store import Store

Owners = list[tuple[str, HostId, list[int]]]
"""(step, host, its slots)."""


class Upkeep:
    """Watches epochs being committed, and has their deltas merged every so often."""

    def __init__(self, store: Store, fleet: Fleet, settings: Settings) -> None:
        self._store, self._fleet, self._settings = store, fleet, settings
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="upkeep")
        self._parts = ThreadPoolExecutor(16, thread_name_prefix="compaction")
        self._task: Future[tuple[int, str]] | None = None
        self._tries_after = -1
        self.trouble: PenstockError | None = None
        """Why the last upkeep failed; None if it did not."""

    def newest_layout(self) -> tuple[int, str] | None:
        """The version and file of a layout made since this was last asked."""
        if self._task is None or not self._task.done():
            return None
        task, self._task = self._task, None
        failed = task.exception()
        self.trouble = failed if isinstance(failed, PenstockError) else None
        return task.result() if failed is None else None

    def committed(self, version: int, base: int, owners: Owners) -> None:
        """An epoch's manifest is written. Begins a compaction if one is due and none is under way."""
        due = version - max(base, self._tries_after) >= self._settings.compact_epochs
        if due and self._task is None:
            self._tries_after = version
            self._task = self._worker.submit(self._work, version, owners)

    def stop(self) -> None:
        """Give up what is under way."""
        self._worker.shutdown(wait=False, cancel_futures=True)
        self._parts.shutdown(wait=False, cancel_futures=True)

    def _work(self, version: int, owners: Owners) -> tuple[int, str]:
        tag = secrets.token_hex(4)
        futures = [
            self._parts.submit(self._fleet.compact, host, slots, version, tag)
            for _, host, slots in owners
        ]
        parts = [codec.from_plain(future.result(), Compacted) for future in futures]
        layout = merged_layout(self._store.chain(version).layout, parts, version, tag)
        file = self._store.write_layout(layout)
        point("driver.layout", version=version)
        point("driver.clean", version=version)
        clean(self._store, max(2, self._settings.keep_epochs), version, active_tags={tag})
        dead_letters.tidy(self._store, version, self._settings.dead_letters_mb << 20)
        return version, file
