"""Writes control's journal and events, and what observers see, to the checkpoint, in the background.

    <root>/journal/<time>-<number>.jsonl          entries of the journal
    <root>/events/<start>/<number>.jsonl-gz       parameters of the control machine, and its events
    <root>/moments/<start>/<number>.jsonl-gz      the query in each second: facts about it, and its moments

What one start writes has a limit. Beyond it, the oldest moments go, except for the first file, which has the
facts. Events stop instead: they are replayed from the first one on, and a gap would make them worthless.

Some file systems would compress a name that ends in .gz once more. If the store fails, entries are dropped:
they are not worth stopping a query for.
"""

from __future__ import annotations

import gzip
import itertools
import logging
import threading
import time
from collections import deque
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

_log = logging.getLogger("penstock.observe")

_KEPT = 10_000
"""Number of journal files to keep. A treatment makes one to three."""
_STARTS_KEPT = 5
"""Number of starts whose files are kept."""
_MOST_BYTES = 512 * 2**20
"""Most bytes of one kind to keep for one start."""
_FROM_THE_FIRST = ("events",)
"""Kinds that are of use only from their first item on."""
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
        self._kind, self._line, self._every_s = kind, line, every_s
        self._folder = start_folder(kind, started_ms)
        self._bytes, self._full = 0, False
        self._sizes: deque[tuple[str, int]] = deque()
        """Name and bytes of each file after the first, oldest first."""

    @property
    def store(self) -> Store:
        """The checkpoint that it writes to."""
        return self._store

    def _due(self) -> bool:
        waited_s = self._clock_s() - self._written_s
        due = len(self._waiting) >= _MANY or waited_s > self._every_s
        if due:
            self._written_s = self._clock_s()
        return due

    def _keep(self, number: int, items: list[T]) -> None:
        if number == 0:
            self._forget_old()
        data = gzip.compress(b"\n".join([*map(self._line, items), b""]), compresslevel=4)
        if self._full or not self._has_room(number, len(data)):
            return
        name = f"{self._folder}/{number:06d}.jsonl-gz"
        self._store.files.write(name, data, durable=False)
        self._bytes += len(data)
        if number > 0:
            self._sizes.append((name, len(data)))

    def _has_room(self, number: int, size: int) -> bool:
        """Make room for a file of this size, if this kind may lose its oldest ones."""
        if number == 0 or self._bytes + size <= _MOST_BYTES:
            return True
        if self._kind in _FROM_THE_FIRST:
            self._full = True
            _log.warning(
                "The %s of this start have reached %d MB. Later ones are not recorded.",
                self._kind,
                _MOST_BYTES // 2**20,
            )
            return False
        while self._sizes and self._bytes + size > _MOST_BYTES:
            name, old = self._sizes.popleft()
            self._bytes -= old
            self._store.files.remove(name)
        return True

    def _forget_old(self) -> None:
        starts = files_by_start(self._store, self._kind)
        for start in sorted(starts)[: 1 - _STARTS_KEPT]:
            for name in starts[start]:
                self._store.files.remove(name)


def control_line(item: Opening | Event) -> bytes:
    """The line of an item of the control machine's record."""
    return opening_line(item) if isinstance(item, Opening) else event_line(item)
