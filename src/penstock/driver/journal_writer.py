"""Keeps in the checkpoint what control decided, and what it was told, without anybody waiting for it.

    <root>/journal/<time>-<number>.jsonl          entries of the journal
    <root>/events/<start>/<number>.jsonl-gz       what the control machine was made from, and its events

A name that ends in .gz would be packed once more by some file systems. What a store does not take is not
worth stopping a query for: it is left out.
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
from penstock.state.store.store import Store

_KEPT = 10_000
"""Files of the journal that stay; a treatment makes one to three."""
_STARTS_KEPT = 5
"""Starts whose events stay."""
_MOST_BYTES = 512 * 2**20
"""Bytes of the events of one start: what comes after that is not recorded."""
_MANY, _LONG_S = 500, 10.0
"""Events are written when there are so many of them, or the oldest waits for so long."""

T = TypeVar("T")


class _Writer(Generic[T]):
    """Hands what comes to a thread of its own. What comes while that writes goes into the next file."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._waiting: list[T] = []
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix=name)

    def __call__(self, told: T) -> None:
        with self._lock:
            self._waiting.append(told)
            if self._due():
                self._writer.submit(self._write)

    def _due(self) -> bool:
        """Whether it is time to write."""
        return len(self._waiting) == 1

    def _write(self) -> None:
        with self._lock:
            told, self._waiting = self._waiting, []
        if told:
            with suppress(PenstockError, OSError):
                self._keep(next(self._numbers), told)

    def _keep(self, number: int, told: list[T]) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        """Write what is left."""
        self._writer.submit(self._write)
        self._writer.shutdown()


class JournalWriter(_Writer[Entry]):
    """A sink of journal entries."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, "journal")

    def _keep(self, number: int, told: list[Entry]) -> None:
        name = f"{told[0].time_ms:016.0f}-{number:06d}"
        self._store.write_journal(name, told)
        if number % 100 == 0:
            for old in self._store.journal_files()[:-_KEPT]:
                self._store.files.remove(old)


class EventWriter(_Writer[Opening | Event]):
    """Records what the control machine of one start is told; the first that comes is its opening."""

    def __init__(self, store: Store, clock_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__(store, "events")
        self._clock_s, self._written_s = clock_s, clock_s()
        self._folder, self._bytes = "", 0

    def _due(self) -> bool:
        waited_s = self._clock_s() - self._written_s
        due = len(self._waiting) >= _MANY or waited_s > _LONG_S
        if due:
            self._written_s = self._clock_s()
        return due

    def _keep(self, number: int, told: list[Opening | Event]) -> None:
        if isinstance(told[0], Opening):
            self._folder = f"events/{told[0].started_ms:016.0f}"
            self._forget_old()
        if self._bytes < _MOST_BYTES:
            lines = [opening_line(t) if isinstance(t, Opening) else event_line(t) for t in told]
            data = gzip.compress(b"\n".join([*lines, b""]), compresslevel=4)
            self._store.files.write(f"{self._folder}/{number:06d}.jsonl-gz", data, durable=False)
            self._bytes += len(data)

    def _forget_old(self) -> None:
        files = [found.name for found in self._store.files.below("events")]
        starts = sorted({name.split("/")[1] for name in files})
        for name in files:
            if name.split("/")[1] in starts[: 1 - _STARTS_KEPT]:
                self._store.files.remove(name)
