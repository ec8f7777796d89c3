"""Records a running query: takes a moment every second, keeps the newest ones, and writes all of them."""

from __future__ import annotations

import logging
import threading
import zlib
from collections import deque
from collections.abc import Callable, Sequence

from penstock import codec
from penstock.control.journal.entry import Entry
from penstock.driver.journal_writer import StartWriter
from penstock.driver.progress import EpochProgress
from penstock.errors import PenstockError
from penstock.observe.moment import Look, Moment, MomentMaker, bare
from penstock.observe.recording import FlowFacts, Recording, kept_recording

_log = logging.getLogger("penstock.observe")

_EVERY_S = 1.0
_KEPT = 3_600
"""Moments kept in memory: an hour. They are packed, since a step may have thousands of slots."""


class Recorder:
    """The recording of a running query (see `Recording`). Its thread takes a moment every second.

    `look` shows the query, and `epochs` and `journal` return its newest epochs and entries. `judged` returns
    the number of the SLA's windows that have ended, and of those that were kept. `write` gets the facts and
    then every moment. An error in one of them costs a moment, never the query. Watchers get moments with the
    spans of their epochs, which are not recorded.
    """

    def __init__(
        self,
        facts: FlowFacts,
        look: Callable[[], Look],
        epochs: Callable[[], Sequence[EpochProgress]],
        journal: Callable[[], Sequence[Entry]],
        write: Callable[[FlowFacts | Moment], None],
        judged: Callable[[], tuple[int, int]] = lambda: (0, 0),
    ) -> None:
        self.facts = facts
        self._look, self._epochs, self._journal, self._write = look, epochs, journal, write
        self._maker = MomentMaker(facts.started_ms)
        self._judged, self._before = judged, (0, 0)
        self._newest_epoch = -1
        self._kept: deque[tuple[float, bytes]] = deque(maxlen=_KEPT)
        """The newest moments: when each ended, and its packed JSON."""
        self._watchers: list[Callable[[Moment], None]] = []
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="recorder", daemon=True)
        write(facts)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Take a last moment, and end the thread."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def running(self) -> bool:
        return not self._ended.is_set()

    def moments(self, since_ms: float = 0.0) -> list[Moment]:
        """Moments of the last hour that ended after `since_ms`, oldest first."""
        with self._lock:
            packed = [data for time_ms, data in self._kept if time_ms > since_ms]
        return [codec.decode(zlib.decompress(data), Moment) for data in packed]

    def whole(self) -> Recording:
        """The recording from the start of the query on: what is older than an hour comes from the checkpoint.
        If that cannot be read, only the last hour."""
        moments = self.moments()
        if len(moments) < _KEPT or not isinstance(self._write, StartWriter):
            return self
        try:
            return kept_recording(self._write.store, self.facts.started_ms, moments)
        except (PenstockError, OSError) as failed:
            _log.warning("Only the last hour of the recording can be read: %s", failed)
            return self

    def entries(self, since_ms: float = 0.0) -> list[Entry]:
        return [entry for entry in self._journal() if entry.time_ms > since_ms]

    def watch(self, watcher: Callable[[Moment], None]) -> Callable[[], None]:
        """Call `watcher` with every new moment, in the recorder's thread. Returns a function that ends it."""
        with self._lock:
            self._watchers.append(watcher)
        return lambda: self._forget(watcher)

    def _forget(self, watcher: Callable[[Moment], None]) -> None:
        with self._lock:
            if watcher in self._watchers:
                self._watchers.remove(watcher)

    def take(self) -> Moment:
        """Take a moment now: from the end of the last one."""
        look = self._look()
        epochs = [epoch for epoch in self._epochs() if epoch.epoch > self._newest_epoch]
        if epochs:
            self._newest_epoch = epochs[-1].epoch
        before, self._before = self._before, self._judged()
        windows, kept = (now - then for now, then in zip(self._before, before, strict=True))
        moment = self._maker.make(look, epochs, windows, kept)
        recorded = bare(moment)
        with self._lock:
            self._kept.append((moment.time_ms, zlib.compress(codec.encode(recorded), 1)))
            watchers = list(self._watchers)
        self._write(recorded)
        for watcher in watchers:
            watcher(moment)
        return moment

    def _work(self) -> None:
        while not self._ended.wait(_EVERY_S):
            self._take_safely()
        self._take_safely()

    def _take_safely(self) -> None:
        try:
            self.take()
        except Exception as failed:
            _log.warning("A second of the query was not recorded: %s", failed, exc_info=failed)
