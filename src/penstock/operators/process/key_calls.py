"""Calls of a processor's `handle_input_rows`: the rows of one key after another."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from operator import length_hint
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import FlowError
from penstock.operators.places import Places, taken
from penstock.operators.process.calls import (
    AT_ONCE,
    Caller,
    Results,
    collector_paused,
    give_up,
    json_text,
)
from penstock.state.arrays import Array
from penstock.state.keys.codec import Keys
from penstock.state.variables.handle import Timers
from penstock.state.variables.values import Row, RowForm
from penstock.state.variables.variable import distinct


class KeyCalls:
    """Calls `handle_input_rows`, for one piece of a channel after another.

    State changes are written to the table after each piece. If a piece fails, the operator must undo the
    pieces before it.
    """

    def __init__(self, caller: Caller, input: pa.Schema) -> None:
        self._caller, self._cells, self._input = caller, caller.cells, RowForm(input)
        self._method = caller.processor.handle_input_rows
        self._timers = Timers(0, None)
        self._ordered = False
        self._results = Results()

    def rows(self, batch: pa.RecordBatch, timers: Timers, places: Places | None = None) -> Results:
        """Make one call per key, in order of first appearance, with the key's rows in order.

        With the places of the rows, the results have places too: an output row has the place of the input row
        that the call had read last.
        """
        self._timers, self._ordered, self._results = timers, places is not None, Results()
        codec = self._cells.codec
        every = codec.encode(batch)
        groups, first = distinct(codec, every)
        keys = every.take(first)
        if len(first) < len(groups):
            order = np.argsort(groups, kind="stable")
            batch, places = batch.take(pa.array(order)), taken(places, order)
        ends = np.cumsum(np.bincount(groups, minlength=len(first)))
        key = row = 0
        while key < len(keys):
            last = max(int(np.searchsorted(ends, row + AT_ONCE, "right")), key + 1)
            end = int(ends[last - 1])
            with collector_paused():
                chosen = keys.take(np.arange(key, last))
                self._piece(chosen, batch.slice(row, end - row), ends[key:last] - row)
                where = None if places is None else places.slice(row, end - row)
                self._results.flush(self._caller.output, where)
            key, row = last, end
        return self._results

    def _piece(self, keys: Keys, batch: pa.RecordBatch, ends: Array) -> None:
        """Make the calls for these keys, whose rows are consecutive in the batch."""
        cells, timers, ordered = self._cells, self._timers, self._ordered
        out, causes = self._results.rows, self._results.causes
        method, write = self._method, self._caller.output.write
        rows = self._input.rows(batch.columns, batch.num_rows)
        names = self._caller.names(keys)
        start = 0
        with cells.work(keys, cells.table.find(keys)):
            for at, (key, end) in enumerate(zip(names, ends.tolist(), strict=True)):
                mark, before, answer = cells.begin(at), len(out), None
                feed = iter(rows[start:end])
                try:
                    answer = method(key, feed, timers)
                    if answer is not None and not ordered:
                        for row in answer:
                            out.append(write(row))
                    elif answer is not None:
                        last, unread = end - 1, partial(length_hint, feed)
                        for row in answer:
                            out.append(write(row))
                            causes.append(last - unread())
                        _from(causes, before, start)
                except Exception as error:
                    give_up(answer)
                    cells.undo(mark)
                    del out[before:], causes[before:]
                    self._without_bad_rows(at, key, start, rows[start:end], feed, error)
                start = end

    def _without_bad_rows(
        self,
        at: int,
        key: tuple[Any, ...],
        first: int,
        rows: list[Row],
        feed: Iterator[Row],
        error: Exception,
    ) -> None:
        """Handle a failed call with these rows, numbered from `first` on: turn the bad row into a dead
        letter and call again, until the call succeeds or no row is left. Raises StepError if bad rows
        fail the step."""
        caller, whose = self._caller, json_text(key)
        numbers, causes = list(range(first, first + len(rows))), self._results.causes

        def note() -> None:
            causes.append(numbers[max(len(rows) - length_hint(feed) - 1, 0)])

        while True:
            read = len(rows) - length_hint(feed)
            if not caller.sets_aside or isinstance(error, FlowError):
                text = _text(rows[read - 1]) if read else None
                raise caller.failure(self._method, whose, "row", text, error) from error
            bad, error = self._to_blame(at, key, rows, read, error)
            self._results.dead.append(caller.letter(whose, _text(rows.pop(bad)), error))
            del numbers[bad]
            if not rows:
                return
            feed, before = iter(rows), len(causes)
            try:
                call = partial(self._method, key, feed, self._timers)
                self._results.rows += caller.attempt(at, call, note=note if self._ordered else None)
                return
            except Exception as another:
                del causes[before:]
                error = another

    def _to_blame(
        self, at: int, key: tuple[Any, ...], rows: list[Row], read: int, error: Exception
    ) -> tuple[int, Exception]:
        """The number of the row on which a call failed, and the error.

        That is the last row read. If the call had read all rows, as with `list(rows)`, it is the last row
        of the shortest prefix of the rows that fails.
        """
        if read < len(rows):
            return max(read - 1, 0), error
        passes, fails = 0, len(rows)
        attempt = fails - 1  # most often the last row read is the bad one
        while fails - passes > 1:
            call = partial(self._method, key, iter(rows[:attempt]), self._timers)
            try:
                self._caller.attempt(at, call, keep=False)
                passes = attempt
            except Exception as earlier:
                fails, error = attempt, earlier
            attempt = (passes + fails) // 2
        return fails - 1, error


def _from(causes: list[int], since: int, start: int) -> None:
    """Attribute rows that a call emitted before it had read any row to its first row."""
    while since < len(causes) and causes[since] < start:
        causes[since] = start
        since += 1


def _text(row: Row) -> str:
    return json_text(Row.as_dict(row))  # a column may be named as_dict
