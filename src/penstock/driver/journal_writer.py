"""Keeps the journal in the checkpoint, without anybody waiting for it."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from penstock.control.journal.entry import Entry
from penstock.errors import PenstockError
from penstock.state.store.store import Store

_KEPT = 10_000
"""Files of the journal that stay; a treatment makes one to three."""


class JournalWriter:
    """A sink of journal entries. What comes while a file is written goes into the next one.

    An entry that the store does not take is not worth stopping a query for: it is left out.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: list[Entry] = []
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="journal")

    def __call__(self, entry: Entry) -> None:
        with self._lock:
            self._waiting.append(entry)
            if len(self._waiting) == 1:
                self._writer.submit(self._write)

    def _write(self) -> None:
        with self._lock:
            entries, self._waiting = self._waiting, []
        number = next(self._numbers)
        name = f"{entries[0].time_ms:016.0f}-{number:06d}"
        with suppress(PenstockError, OSError):
            self._store.write_journal(name, entries)
            if number % 100 == 0:
                for old in self._store.journal_files()[:-_KEPT]:
                    self._store.files.remove(old)

    def stop(self) -> None:
        """Write what is left."""
        self._writer.shutdown()
