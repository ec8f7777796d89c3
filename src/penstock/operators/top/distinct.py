"""The distinct step: it emits the first row of each key and drops all others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from penstock.errors import FlowError
from penstock.operators.operator import Answer, EpochTime, OnError
from penstock.operators.places import Places, taken
from penstock.operators.table_operator import (
    Clock,
    OutputRows,
    TableOperator,
    due_column,
    due_entries,
    limits,
    stamp,
)
from penstock.operators.window.row_windows import PruningSender, RowPlan
from penstock.operators.window.windows import WINDOW_START, Window
from penstock.state.arrays import Array, fixed_array
from penstock.state.keys.codec import Keys
from penstock.state.keys.index import key_index
from penstock.state.table.table import ColumnTable


class DistinctPlan(RowPlan):
    """The first row of each key, or of each key and window.

    With `ttl_ms` a key is forgotten that many milliseconds after its first row arrived, by the time of day.
    With a window it is forgotten when the window has ended. Otherwise a key is kept for ever.

    >>> schema = pa.schema([("user", pa.string()), ("n", pa.int64())])
    >>> plan = DistinctPlan(schema, ["user"])
    >>> step = plan.operator(16, "once", "fail")
    >>> _ = step.open(EpochTime(0, 0))
    >>> rows = pa.RecordBatch.from_pydict({"user": ["a", "b", "a"], "n": [1, 2, 3]}, schema)
    >>> step.apply("rows", [rows]).batches[0].to_pylist()
    [{'user': 'a', 'n': 1}, {'user': 'b', 'n': 2}]
    """

    step = "distinct"

    def __init__(
        self,
        input_schema: pa.Schema,
        key_names: Sequence[str],
        *,
        ttl_ms: int | None = None,
        window: Window | None = None,
        on: str | None = None,
        lateness_ms: int = 0,
        nulls: bool = False,
    ) -> None:
        self.ttl_ms = ttl_ms
        if ttl_ms is not None and (ttl_ms <= 0 or window is not None):
            raise FlowError(
                f"distinct cannot use a ttl of {ttl_ms} ms here",
                hint="use a ttl of at least 1 ms, and none with a window",
            )
        clock: Clock | None = None if ttl_ms is None else "processing"
        super().__init__(input_schema, key_names, window, on, lateness_ms, nulls, clock)
        self.output = pa.schema([*input_schema, *self.bounds])

    def __str__(self) -> str:
        return "distinct" if self.window is None else f"distinct in each window, {self.window}"

    def sender(self, time: EpochTime, two_stage: bool = False) -> DistinctSender:
        """Create a sender that drops duplicates where that pays, or always with `two_stage`."""
        return DistinctSender(self, time, two_stage)

    def operator(
        self, slots: int, step_id: str, on_error: OnError, ordered: bool = False
    ) -> DistinctOperator:
        return DistinctOperator(self, slots, step_id, ordered)


class DistinctSender(PruningSender):
    """Drops rows whose key the task has sent already."""

    def __init__(self, plan: DistinctPlan, time: EpochTime, always: bool = False) -> None:
        super().__init__(plan, time, always)
        self._index = key_index(plan.codec.layout)

    def _needed(self, batch: pa.RecordBatch, keys: Keys) -> Array:
        before = self._index.size
        entries = self._index.upsert(keys)
        # entries are numbered by first appearance: a new one is greater than all before it
        highest = np.maximum.accumulate(np.append(before - 1, entries))
        return np.flatnonzero(entries > highest[:-1])


class DistinctOperator(TableOperator):
    """Keeps the keys that have been seen, and emits the first row of each new key at once."""

    def __init__(self, plan: DistinctPlan, slots: int, step_id: str, ordered: bool = False) -> None:
        self._due = None if plan.clock is None else due_column(plan.clock)
        columns = [] if self._due is None else [self._due]
        super().__init__(plan, ColumnTable(plan.codec, columns, slots), step_id, ordered)
        self.plan = plan

    def due(self, time: EpochTime) -> dict[str, int]:
        """Keys to forget. The end of the input does not count: its last rows may still arrive."""
        return (
            {} if self.plan.clock is None else limits(replace(time, final=False), self.plan.clock)
        )

    def fire(self) -> Answer:
        """Forget keys whose TTL or window has ended."""
        over = due_entries(self.table, self.due(self._time))
        if len(over):
            self.table.remove(over)
        return Answer()

    def _take(
        self, kind: str, batch: pa.RecordBatch, places: Places | None
    ) -> Iterable[OutputRows]:
        rows = self._new(batch)
        if len(rows):
            out = self._output_rows(batch.take(fixed_array(rows, pa.int64())))
            yield OutputRows(out, taken(places, rows))

    def _new(self, batch: pa.RecordBatch) -> Array:
        """Add the keys that are not in the table. Returns the number of the first row of each."""
        keys = self.plan.codec.encode(batch)
        unknown = np.flatnonzero(self.table.find(keys) < 0)
        if not len(unknown):
            return unknown
        entries = self.table.upsert(keys if len(unknown) == len(keys) else keys.take(unknown))
        entries, first = np.unique(entries, return_index=True)
        rows = unknown[np.sort(first)]
        if self._due is not None:
            until = self._until(batch, rows)
            self.table.column(self._due.name)[entries[np.argsort(first)]] = until
        return rows

    def _until(self, batch: pa.RecordBatch, rows: Array) -> Array:
        windows = self.plan.windows
        if windows is not None:
            starts = batch.column(WINDOW_START).take(fixed_array(rows, pa.int64()))
            return stamp(windows.due_ms(starts))
        assert self.plan.ttl_ms is not None
        return stamp(np.full(len(rows), self._time.now_ms + self.plan.ttl_ms, np.int64))

    def _output_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        windows = self.plan.windows
        columns = batch.columns
        if windows is not None:
            columns = [*columns, windows.ends(batch.column(WINDOW_START))]
        return pa.RecordBatch.from_arrays(columns, schema=self.output)
