"""Calls of a processor's `handle_expired_timer`."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import Any

import numpy as np

from penstock.errors import FlowError
from penstock.operators.places import Places
from penstock.operators.process.calls import AT_ONCE, Caller, Results, collector_paused
from penstock.operators.user_errors import json_text
from penstock.state.arrays import Array
from penstock.state.keys.codec import Keys
from penstock.state.variables.handle import ExpiredTimer, Timers
from penstock.state.variables.timers import TimeKind, TimerQueue

Limits = Mapping[TimeKind, int | None]
"""Per kind of timer, the time in milliseconds up to which (inclusive) timers are due; None if none are."""


class TimerCalls:
    """Calls `handle_expired_timer`. State changes are written to the table after the last call."""

    def __init__(self, caller: Caller, queue: TimerQueue) -> None:
        self._caller, self._queue, self._cells = caller, queue, caller.cells
        self._method = caller.processor.handle_expired_timer
        self._names: list[tuple[Any, ...]] = []
        self._results = Results()
        self._fired: list[tuple[int, int]] = []
        """(expiry in milliseconds, number of the key) of timers whose output rows have not been flushed."""

    def expired(self, due: Limits, again: Limits, timers: Timers, ordered: bool = False) -> Results:
        """Make one call per timer that is due, in order of expiry and then of key.

        A timer that a handler registers fires in the same round if it is due by `again` and later than the
        timer being handled. So a handler can catch up, but cannot loop for ever. With `ordered`, the results
        have places: by expiry, and then by the hash of the key.
        """
        return self._expired(self._queue.due(due), due, again, timers, ordered)

    def _expired(
        self, entries: Array, due: Limits, again: Limits, timers: Timers, ordered: bool
    ) -> Results:
        """Make the calls for the timers of these entries."""
        self._results, self._fired = Results(), []
        results = self._results
        cells, queue = self._cells, self._queue
        if not len(entries):
            return results
        keys = cells.table.keys(entries)
        self._names, order = self._caller.names(keys), cells.codec.to_storage(keys).to_pylist()
        with cells.work(keys, entries):
            agenda = [
                (expiry, order[at], kind, at)
                for at, of_key in enumerate(queue.fetch())
                for expiry, kind in of_key
                if _is_due(expiry, kind, due)
            ]
            heapq.heapify(agenda)
            while agenda:
                with collector_paused():
                    for _ in range(min(AT_ONCE, len(agenda))):
                        expiry, place, kind, at = heapq.heappop(agenda)
                        for more, of in self._fire(at, ExpiredTimer(expiry, kind), timers):
                            if more > expiry and _is_due(more, of, again):
                                heapq.heappush(agenda, (more, place, of, at))
                    results.flush(self._caller.output, self._places(keys) if ordered else None)
                    results.causes.clear()
                    self._fired.clear()
        return results

    def _fire(self, at: int, expired: ExpiredTimer, timers: Timers) -> list[tuple[int, TimeKind]]:
        """Make one call, unless an earlier call has deleted the timer. Returns the timers that it registered.

        The timer is deleted before its handler runs, and stays deleted if the handler fails.
        """
        self._cells.begin(at)
        if not self._queue.delete(expired.expiry_ms, expired.kind):
            return []
        known, key = self._queue.timers(), self._names[at]
        try:
            rows = self._caller.attempt(at, lambda: self._method(key, timers, expired))
            self._results.rows += rows
            self._results.causes += [len(self._fired)] * len(rows)
            self._fired.append((expired.expiry_ms, at))
        except Exception as error:
            self._failed(key, expired, error)
        left = self._queue.timers()
        return [] if left is known else [timer for timer in left if timer not in known]

    def _places(self, keys: Keys) -> Places:
        """The places of the timers that fired since the last flush."""
        expiries, at = np.array(self._fired, np.int64).reshape(-1, 2).T
        return Places.of_due(expiries, keys.hashes[at])

    def _failed(self, key: tuple[Any, ...], expired: ExpiredTimer, error: Exception) -> None:
        caller, whose = self._caller, json_text(key)
        timer = json_text({"expiry_ms": expired.expiry_ms, "time": expired.kind})
        if not caller.sets_aside or isinstance(error, FlowError):
            raise caller.failure(self._method, whose, "timer", timer, error) from error
        self._results.dead.append(caller.letter(whose, timer, error))


def _is_due(expiry: int, kind: TimeKind, limits: Limits) -> bool:
    limit = limits[kind]
    return limit is not None and expiry <= limit
