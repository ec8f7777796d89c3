"""The recording of a query that runs in another process, and orders to it, for `penstock dashboard`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from penstock.console.checkpoint.checkpoint import open_checkpoint
from penstock.console.running.query import RunningQuery
from penstock.control.elastic import Steering
from penstock.control.journal.entry import Entry
from penstock.errors import SettingError
from penstock.observe.moment import Moment
from penstock.observe.recording import FlowFacts, KeptRecording, kept_recording
from penstock.plan.slots import slots_to_text

_EVERY_S = 0.5
"""Seconds between two requests to the query at least, however many people look."""
_AT_ONCE = 600
"""Moments per request. A moment of a step with thousands of slots has tens of kilobytes."""
_ENTRIES = 1_000


class RemoteRecording:
    """The recording of a running query (see `Recording`). After its end, that of its checkpoint."""

    def __init__(
        self, checkpoint: str, query: RunningQuery, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._checkpoint, self._query, self._clock = checkpoint, query, clock
        self._moments: list[Moment] = []
        self._entries: list[Entry] = []
        self._kept: KeptRecording | None = None
        self._asked_s = float("-inf")
        self._lock = threading.Lock()
        self.facts: FlowFacts = query.moments(0.0, most=0)[0]

    @property
    def running(self) -> bool:
        self._ask()
        return self._kept is None

    def moments(self, since_ms: float = 0.0) -> list[Moment]:
        self._ask()
        known = self._moments if self._kept is None else self._kept.kept
        return [moment for moment in known if moment.time_ms > since_ms]

    def entries(self, since_ms: float = 0.0) -> list[Entry]:
        self._ask()
        known = self._entries if self._kept is None else self._kept.journal
        return [entry for entry in known if entry.time_ms > since_ms]

    def _ask(self) -> None:
        with self._lock:
            if self._kept is not None or self._clock() < self._asked_s + _EVERY_S:
                return
            self._asked_s = self._clock()
            try:
                self._catch_up()
            except SettingError:  # it does not answer: it has ended, or will answer again
                if self._query.has_ended():
                    store, _ = open_checkpoint(self._checkpoint)
                    self._kept = kept_recording(store, self.facts.started_ms)

    def _catch_up(self) -> None:
        while True:
            since_ms = self._moments[-1].time_ms if self._moments else 0.0
            _, more = self._query.moments(since_ms, _AT_ONCE)
            self._moments = [*self._moments, *more]
            if len(more) < _AT_ONCE:
                break
        self._entries = self._query.journal(_ENTRIES)


class RemoteOrders:
    """Orders to a running query (see `Orders`)."""

    def __init__(self, query: RunningQuery) -> None:
        self._query = query

    def steer(self, steering: Steering) -> dict[str, Any]:
        return self._query.steer(steering)

    def move(self, step: str, slots: Sequence[int], to: str) -> None:
        self._query.move(slots_to_text(slots), to, step)

    def scale(self, step: str, hosts: int) -> None:
        self._query.scale(hosts, step)
