"""Calls of a processor for one key after another: its rows, and its timers."""

from __future__ import annotations

import gc
import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import length_hint
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import FlowError
from penstock.operators.evidence import Evidence, json_text
from penstock.operators.operator import Answer, DeadLetter
from penstock.operators.processor import KeyedProcessor
from penstock.state.buffers import Array
from penstock.state.cells import distinct
from penstock.state.keyed import ExpiredTimer, StateHandle, Timers
from penstock.state.keys import Keys
from penstock.state.rows import Row
from penstock.state.timers import TimeKind
from penstock.state.values import RowForm, python_values

Limits = Mapping[TimeKind, int | None]
"""Up to which time, inclusive, timers of each kind are due; None: none of them."""


_AT_ONCE = 4096
"""Rows that are Python objects at a time, at most, unless one key has more."""


@dataclass
class Results:
    """What calls gave: rows of the output, and what was set aside."""

    rows: list[tuple[Any, ...]] = field(default_factory=list)
    batches: list[pa.RecordBatch] = field(default_factory=list)
    dead: list[DeadLetter] = field(default_factory=list)

    def flush(self, form: RowForm) -> None:
        """Turn the rows into a batch."""
        if self.rows:
            self.batches.append(form.batch(self.rows))
            self.rows.clear()

    def answer(self) -> Answer:
        whole = len(self.batches) < 2
        return Answer(self.batches if whole else [pa.concat_batches(self.batches)], self.dead)


class KeyCalls:
    """Calls `handle_input_rows` and `handle_expired_timer`. One channel or opening at a time.

    Nothing reaches the table before every key has been served; an exception leaves it as it was.
    """

    def __init__(
        self,
        processor: KeyedProcessor,
        handle: StateHandle,
        input: pa.Schema,
        output: pa.Schema,
        evidence: Evidence,
        sets_aside: bool,
    ) -> None:
        self._processor, self._handle, self._cells = processor, handle, handle.cells
        self._input, self._output = RowForm(input), RowForm(output)
        self._evidence, self._sets_aside = evidence, sets_aside

    def rows(self, batch: pa.RecordBatch, timers: Timers) -> Results:
        """One call per key, in order of first appearance, with the key's rows in order."""
        codec = self._cells.codec
        every = codec.encode(batch)
        groups, first = distinct(codec, every)
        keys = every.take(first)
        if len(first) < len(groups):
            batch = batch.take(pa.array(np.argsort(groups, kind="stable")))
        ends = np.cumsum(np.bincount(groups, minlength=len(first)))
        results = Results()
        key = row = 0
        while key < len(keys):
            last = max(int(np.searchsorted(ends, row + _AT_ONCE, "right")), key + 1)
            piece = batch.slice(row, int(ends[last - 1]) - row)
            self._piece(
                keys.take(np.arange(key, last)), piece, ends[key:last] - row, timers, results
            )
            results.flush(self._output)
            key, row = last, int(ends[last - 1])
        return results

    def _piece(
        self, keys: Keys, batch: pa.RecordBatch, ends: Array, timers: Timers, results: Results
    ) -> None:
        """Serve these keys, whose rows lie one after the other in the batch."""
        cells = self._cells
        columns = [batch.column(name) for name in self._input.names]
        rows = self._input.rows(columns, batch.num_rows)
        handle, write = self._processor.handle_input_rows, self._output.write
        given = results.rows
        start = 0
        with cells.work(keys, cells.table.find(keys)):
            for at, (key, end) in enumerate(zip(self._names(keys), ends.tolist(), strict=True)):
                mark, before = cells.begin(at), len(given)
                feed = iter(rows[start:end])
                try:
                    answer = handle(key, feed, timers)
                    if answer is not None:
                        for row in answer:
                            given.append(write(row))
                except Exception as error:
                    cells.undo(mark)
                    del given[before:]
                    self._without_bad_rows(at, key, rows[start:end], feed, error, timers, results)
                start = end

    def _without_bad_rows(
        self,
        at: int,
        key: tuple[Any, ...],
        rows: list[Row],
        feed: Iterator[Row],
        error: Exception,
        timers: Timers,
        results: Results,
    ) -> None:
        """A call with these rows failed: set the row to blame aside and call again, until it passes
        or no row is left. Or end the step."""
        while True:
            read = len(rows) - length_hint(feed)
            if not self._sets_aside or isinstance(error, FlowError):
                row = json_text(rows[read - 1].as_dict()) if read else None
                method = self._processor.handle_input_rows
                raise self._evidence.failure(method, json_text(key), "row", row, error) from error
            bad, error = self._to_blame(at, key, rows, read, error, timers)
            row = json_text(rows.pop(bad).as_dict())
            results.dead.append(self._evidence.letter(json_text(key), row, error))
            if not rows:
                return
            feed = iter(rows)
            try:
                results.rows += self._call(at, key, feed, timers)
                return
            except Exception as another:
                error = another

    def _to_blame(
        self,
        at: int,
        key: tuple[Any, ...],
        rows: list[Row],
        read: int,
        error: Exception,
        timers: Timers,
    ) -> tuple[int, Exception]:
        """Which row a failed call failed on, and how.

        It is the last one read; unless the call had read them all, as with `list(rows)`: then it is
        the last row of the shortest beginning of the rows that fails.
        """
        if read < len(rows):
            return max(read - 1, 0), error
        passes, fails = 0, len(rows)
        attempt = fails - 1  # most often a call did fail on the last row that it read
        while fails - passes > 1:
            try:
                self._call(at, key, iter(rows[:attempt]), timers, keep=False)
                passes = attempt
            except Exception as earlier:
                fails, error = attempt, earlier
            attempt = (passes + fails) // 2
        return fails - 1, error

    def _call(
        self,
        at: int,
        key: tuple[Any, ...],
        feed: Iterator[Row],
        timers: Timers,
        keep: bool = True,
    ) -> list[tuple[Any, ...]]:
        handle = self._processor.handle_input_rows
        return self._attempt(at, lambda: handle(key, feed, timers), keep)

    def expired(self, due: Limits, again: Limits, timers: Timers) -> Results:
        """One call per timer that is due, in order of expiry and then of key.

        A timer that a handler registers fires in the same opening if it is due by `again` and
        later than the one being handled: so a handler can catch up, but not turn in circles.
        """
        results = Results()
        queue = self._handle.timers
        entries = None if queue is None else queue.due(due)
        if queue is None or entries is None or not len(entries):
            return results
        cells = self._cells
        keys = cells.table.keys(entries)
        names, order = self._names(keys), cells.codec.to_storage(keys).to_pylist()
        handle = self._processor.handle_expired_timer
        with cells.work(keys, entries):
            agenda = [
                (expiry, order[at], kind, at)
                for at, of_key in enumerate(queue.fetch())
                for expiry, kind in of_key or ()
                if _is_due(expiry, kind, due)
            ]
            heapq.heapify(agenda)
            while agenda:
                expiry, place, kind, at = heapq.heappop(agenda)
                cells.begin(at)
                if not queue.delete(expiry, kind):
                    continue  # an earlier call has deleted it
                known = queue.timers()
                expired = ExpiredTimer(expiry, kind)
                try:
                    results.rows += self._attempt(
                        at,
                        lambda: handle(names[at], timers, expired),  # noqa: B023 - called at once
                    )
                except Exception as error:
                    self._timer_failed(names[at], expired, error, results)
                for other, of in queue.timers():
                    if other > expiry and (other, of) not in known and _is_due(other, of, again):
                        heapq.heappush(agenda, (other, place, of, at))
        results.flush(self._output)
        return results

    def _attempt(
        self, at: int, call: Callable[[], Iterable[Any] | None], keep: bool = True
    ) -> list[tuple[Any, ...]]:
        """One call; what it changed is undone if it fails, or is not to be kept."""
        mark = self._cells.begin(at)
        try:
            answer = call()
            rows = [] if answer is None else [self._output.write(row) for row in answer]
        except BaseException:
            self._cells.undo(mark)
            raise
        if not keep:
            self._cells.undo(mark)
        return rows

    def _timer_failed(
        self, key: tuple[Any, ...], expired: ExpiredTimer, error: Exception, results: Results
    ) -> None:
        timer = json_text({"expiry_ms": expired.expiry_ms, "time": expired.kind})
        if not self._sets_aside or isinstance(error, FlowError):
            method = self._processor.handle_expired_timer
            raise self._evidence.failure(method, json_text(key), "timer", timer, error) from error
        results.dead.append(self._evidence.letter(json_text(key), timer, error))

    def _names(self, keys: Keys) -> list[tuple[Any, ...]]:
        columns = [python_values(column) for column in self._cells.codec.decode(keys)]
        return list(zip(*columns, strict=True)) if columns else [()] * len(keys)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Keep the garbage collector away from the rows of a piece.

    They die by reference count soon, but before that it would go through them again and again, and
    promote them: half of the time of a call for a key with one row.
    """
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


def _is_due(expiry: int, kind: TimeKind, limits: Limits) -> bool:
    limit = limits[kind]
    return limit is not None and expiry <= limit
