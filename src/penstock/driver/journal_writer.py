"""Writes control's journal and events, and what observers see, to the checkpoint, in the background.

    <root>/journal/<time>-<number>.jsonl          entries of the journal
    <root>/events/<start>/<number>.jsonl-gz       parameters of the control machine, and its events
    <root>/moments/<start>/<number>.jsonl-gz      the query in each second: facts about it, and its moments

Some file systems would compress a name that ends in .gz once more. If the store fails, entries are dropped:
they are not worth stopping a query for.
"""

from __future__ import annotations

import gzip
import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Generic, TypeVar

from penstock.control.events import Event
from penstock.control.journal.entry import Entry
from penstock.control.record import Opening, event_line, opening_line
from penstock.errors import PenstockError
from penstock.state.store.start_files import files_by_start, start_folder
from penstock.state.store.store import Store

_KEPT = 10_000
"""Number of journal files to keep. A treatment makes one to three."""
_STARTS_KEPT = 5
"""Number of starts whose files are kept."""
_MOST_BYTES = 512 * 2**20
"""Most bytes of one kind to keep for one start."""
_MANY = 500
"""Number of items of a start after which they are written to a file."""

T = TypeVar("T")


class _Writer(Generic[T]):
    """Writes items to files in its own thread. Items that come while it writes go to the next file."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._waiting: list[T] = []
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix=name)

    def __call__(self, item: T) -> None:
        with self._lock:
            self._waiting.append(item)
            if self._due():
                self._writer.submit(self._write)

    def _due(self) -> bool:
        """Whether to write the waiting items now."""
        return len(self._waiting) == 1

    def _write(self) -> None:
        with self._lock:
            items, self._waiting = self._waiting, []
        if items:
            with suppress(PenstockError, OSError):
                self._keep(next(self._numbers), items)

    def _keep(self, number: int, items: list[T]) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        """Write the remaining items, and end the thread."""
        self._writer.submit(self._write)
        self._writer.shutdown()


class JournalWriter(_Writer[Entry]):
    """Writes journal entries."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, "journal")

    def _keep(self, number: int, items: list[Entry]) -> None:
        name = f"{items[0].time_ms:016.0f}-{number:06d}"
        self._store.write_journal(name, items)
        if number % 100 == 0:
            for old in self._store.journal_files()[:-_KEPT]:
                self._store.files.remove(old)


class StartWriter(_Writer[T]):
    """Writes the items of one start of a flow to packed files of its own. Keeps the newest starts' files."""

    def __init__(
        self,
        store: Store,
        kind: str,
        started_ms: float,
        line: Callable[[T], bytes],
        every_s: float = 10.0,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`kind` is the folder. `line` makes a line of JSON of an item. Files are `every_s` seconds apart, or
        less if there are many items."""
        super().__init__(store, kind)
        self._clock_s, self._written_s = clock_s, clock_s()
        self._kind, self._line, self._every_s, self._bytes = kind, line, every_s, 0
        self._folder = start_folder(kind, started_ms)

    def _due(self) -> bool:
        waited_s = self._clock_s() - self._written_s
        due = len(self._waiting) >= _MANY or waited_s > self._every_s
        if due:
            self._written_s = self._clock_s()
        return due

    def _keep(self, number: int, items: list[T]) -> None:
        if number == 0:
            self._forget_old()
        if self._bytes < _MOST_BYTES:
            data = gzip.compress(b"\n".join([*map(self._line, items), b""]), compresslevel=4)
            self._store.files.write(f"{self._folder}/{number:06d}.jsonl-gz", data, durable=False)
            self._bytes += len(data)

    def _forget_old(self) -> None:
        starts = files_by_start(self._store, self._kind)
        for start in sorted(starts)[: 1 - _STARTS_KEPT]:
            for name in starts[start]:
                self._store.files.remove(name)


def control_line(item: Opening | Event) -> bytes:
    """The line of an item of the control machine's record."""
    return opening_line(item) if isinstance(item, Opening) else event_line(item)
