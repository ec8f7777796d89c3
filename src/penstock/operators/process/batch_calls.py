"""Calls of a processor's `handle_batch`: all rows of some slots at once, on the table itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import FlowError, StepError
from penstock.operators.places import Places, taken
from penstock.operators.process.calls import Caller, NoRows, Results
from penstock.operators.user_errors import json_text
from penstock.state.arrays import Array
from penstock.state.keys.codec import Keys, slots_of
from penstock.state.variables.handle import Timers
from penstock.state.variables.values import in_type

ENOUGH = 1 << 14
"""Rows that one call gets, if the channel has so many: fewer would not pay for the numpy and Arrow calls that
user code makes, whatever the number of rows."""


class BatchCalls:
    """Calls `handle_batch`. A failed call is undone, and its rows are halved until the bad rows are found.
    If the whole channel fails, the operator undoes the earlier calls."""

    def __init__(self, caller: Caller) -> None:
        self._method = caller.processor.handle_batch  # type: ignore[attr-defined]
        self._cells, self._output = caller.cells, caller.output.schema
        self._caller = caller
        self._timers = Timers(0, None)
        self._results = Results()

    def rows(self, batch: pa.RecordBatch, timers: Timers, places: Places | None = None) -> Results:
        """Make calls for whole slots, of `ENOUGH` rows or more. Rows of a key are in order of arrival.

        With the places of the rows, the results have places too. If a call returns as many rows as it got,
        output row i has the place of input row i. Otherwise all output has the place of the last input row.
        There is one call per slot then: which slots share a channel depends on the number of hosts, and the
        order of the output must not.
        """
        self._timers, self._results = timers, Results()
        keys = self._cells.codec.encode(batch)
        slots = slots_of(keys.hashes, self._cells.table.slots)
        parts = shares(slots, ENOUGH if places is None else 1)
        if len(parts) == 1:
            self._serve(batch, keys, places)
            return self._results
        for rows in parts:
            self._serve(batch.take(pa.array(rows)), keys.take(rows), taken(places, rows))
        return self._results

    def _serve(self, batch: pa.RecordBatch, keys: Keys, places: Places | None) -> None:
        error = self._call(batch, keys, places)
        if error is None:
            return
        if isinstance(error, FlowError):
            raise self._failure(batch, keys, error) from error
        if batch.num_rows > 1:
            half = batch.num_rows // 2
            for rows in (np.arange(half), np.arange(half, batch.num_rows)):
                part = batch.slice(int(rows[0]), len(rows))
                self._serve(part, keys.take(rows), taken(places, rows))
            if self._caller.sets_aside:
                return
            # every row succeeds in a smaller batch: no single row is to blame
        failure = self._failure(batch, keys, error)
        if not self._caller.sets_aside:
            raise failure from error
        self._results.dead.append(self._caller.letter(failure.key, failure.row, error))

    def _call(self, batch: pa.RecordBatch, keys: Keys, places: Places | None) -> Exception | None:
        """Make one call and return its error, if any. On an error the table is as it was before."""
        table = self._cells.table
        mark = table.savepoint()
        try:
            with self._cells.batch(batch, keys):
                reply = self._method(batch, self._timers)
            batches = conformed(reply, self._output)
            if batches and isinstance(self._caller.output, NoRows):
                self._caller.output.write(batches)
        except Exception as error:
            table.undo(mark)
            return error
        self._results.batches += batches
        if places is not None:
            self._results.places += [_belonging(some, places) for some in batches]
        return None

    def _failure(self, batch: pa.RecordBatch, keys: Keys, error: Exception) -> StepError:
        if batch.num_rows > 1:
            rows = f"{batch.num_rows} rows"
            return self._caller.failure(self._method, "", "a batch of", rows, error)
        key, row = json_text(self._cells.codec.one(keys, 0)), json_text(batch.to_pylist()[0])
        return self._caller.failure(self._method, key, "row", row, error)


def shares(slots: Array, enough: int) -> list[Array]:
    """Row numbers of each call, for rows of these slots: whole slots with `enough` rows or more together,
    except in the last call. A slot's rows stay in order.

    >>> [rows.tolist() for rows in shares(np.array([2, 0, 1, 2, 0]), 3)]
    [[1, 4, 2], [0, 3]]
    """
    order = np.argsort(slots, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(slots[order])) + 1, len(order))
    cuts: list[int] = []
    for end in ends[:-1].tolist():
        if end - (cuts[-1] if cuts else 0) >= enough:
            cuts.append(end)
    return np.split(order, cuts)


def _belonging(rows: pa.RecordBatch, places: Places) -> Places:
    """The places of a call's output rows, for input rows with these places."""
    if rows.num_rows == len(places):
        return places
    return places.take(np.full(rows.num_rows, len(places) - 1))


def conformed(reply: Any, output: pa.Schema) -> list[pa.RecordBatch]:
    """Convert the return value of `handle_batch` to batches of the step's output schema."""
    if reply is None:
        return []
    if not isinstance(reply, (pa.RecordBatch, pa.Table)):
        raise TypeError(f"{type(reply).__name__} returned: return a RecordBatch, a Table or None")
    if set(reply.schema.names) != set(output.names) or len(reply.schema) != len(output):
        raise TypeError(
            f"the returned columns are {', '.join(reply.schema.names)}, not {', '.join(output.names)}"
        )
    arrays = []
    for field in output:
        arrays.append(in_type(reply.column(field.name), field))
        if arrays[-1].null_count and not field.nullable:
            raise TypeError(f"the column {field.name!r} must not be null")
    if not reply.num_rows:
        return []
    return [pa.RecordBatch.from_arrays(arrays, schema=output)]
