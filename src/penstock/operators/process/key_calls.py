"""Calls of a processor's `handle_input_rows`: the rows of one key after another."""

from __future__ import annotations

from functools import partial
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
)
from penstock.operators.user_errors import json_text
from penstock.state.arrays import Array
from penstock.state.keys.codec import Keys
from penstock.state.variables.handle import Timers
from penstock.state.variables.values import Row, RowForm, Rows
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
        self._at_once = AT_ONCE

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
            last = max(int(np.searchsorted(ends, row + self._at_once, "right")), key + 1)
            end = int(ends[last - 1])
            with collector_paused():
                chosen = keys.take(np.arange(key, last))
                where = None if places is None else places.slice(row, end - row)
                self._piece(chosen, batch.slice(row, end - row), ends[key:last] - row, where)
                self._results.flush(self._caller.output, where)
            key, row = last, end
        return self._results

    def _piece(self, keys: Keys, batch: pa.RecordBatch, ends: Array, places: Places | None) -> None:
        """Make the calls for these keys, whose rows are consecutive in the batch. Output rows that are
        not in a batch yet get their places later."""
        cells, timers, ordered = self._cells, self._timers, self._ordered
        out, causes = self._results.rows, self._results.causes
        method, write = self._method, self._caller.output.write
        feed = Rows(self._input, batch)
        names = self._caller.names(keys)
        start = 0
        with cells.work(keys, cells.table.find(keys)):
            for at, (key, end) in enumerate(zip(names, ends.tolist(), strict=True)):
                # as in `cells.begin` and `feed.choose`, without function calls
                cells.at, answer = at, None
                cells.call += 1
                before = len(out)
                feed.start, feed.end, feed.left = start, end, None
                try:
                    answer = method(key, feed, timers)
                    if answer is not None and not ordered:
                        for row in answer:
                            out.append(write(row))
                    elif answer is not None:
                        for row in answer:
                            out.append(write(row))
                            causes.append(end - 1 - feed.unread)
                        _from(causes, before, start)
                except Exception as error:
                    read = end - start - feed.unread
                    give_up(answer)
                    cells.undo(cells.call)
                    del out[before:], causes[before:]
                    self._without_bad_rows(at, key, batch, list(range(start, end)), read, error)
                start = end

    def _without_bad_rows(
        self,
        at: int,
        key: tuple[Any, ...],
        batch: pa.RecordBatch,
        numbers: list[int],
        read: int,
        error: Exception,
    ) -> None:
        """Handle a call with the rows of these numbers that failed when it had read the first `read` of them:
        turn the bad row into a dead letter and call again, until the call succeeds or no row is left.
        Raises StepError if bad rows fail the step."""
        caller, whose, causes = self._caller, json_text(key), self._results.causes
        feed = self._feed(batch, numbers)

        def note() -> None:
            causes.append(numbers[max(len(feed) - feed.unread - 1, 0)])

        while True:
            if not caller.sets_aside or isinstance(error, FlowError):
                text = self._text(batch, numbers[read - 1]) if read else None
                raise caller.failure(self._method, whose, "row", text, error) from error
            bad, error = self._to_blame(at, key, feed, read, error)
            letter = caller.letter(whose, self._text(batch, numbers.pop(bad)), error)
            self._results.dead.append(letter)
            if not numbers:
                return
            feed, before = self._feed(batch, numbers), len(causes)
            try:
                call = partial(self._method, key, feed, self._timers)
                self._results.rows += caller.attempt(at, call, note=note if self._ordered else None)
                return
            except Exception as another:
                read = len(feed) - feed.unread
                del causes[before:]
                error = another

    def _to_blame(
        self, at: int, key: tuple[Any, ...], feed: Rows, read: int, error: Exception
    ) -> tuple[int, Exception]:
        """The number of the row on which a call failed, and the error.

        That is the last row read. If the call had read all rows, as with `list(rows)`, it is the last row
        of the shortest prefix of the rows that fails.
        """
        if read < len(feed):
            return max(read - 1, 0), error
        passes, fails = 0, len(feed)
        attempt = fails - 1  # most often the last row read is the bad one
        while fails - passes > 1:
            feed.choose(0, attempt)
            try:
                call = partial(self._method, key, feed, self._timers)
                self._caller.attempt(at, call, keep=False)
                passes = attempt
            except Exception as earlier:
                fails, error = attempt, earlier
            attempt = (passes + fails) // 2
        return fails - 1, error

    def _feed(self, batch: pa.RecordBatch, numbers: list[int]) -> Rows:
        return Rows(self._input, batch.take(pa.array(numbers, pa.int64())))

    def _text(self, batch: pa.RecordBatch, number: int) -> str:
        (row,) = self._input.rows(batch.slice(number, 1).columns, 1)
        return json_text(Row.as_dict(row))  # a column may be named as_dict


def _from(causes: list[int], since: int, start: int) -> None:
    """Attribute rows that a call emitted before it had read any row to its first row."""
    while since < len(causes) and causes[since] < start:
        causes[since] = start
        since += 1
