"""A step that lets the first row of each key pass, and no other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import FlowError
from penstock.operators.operator import ROWS, Answer, EpochTime, OnError, Outgoing, Unfit
from penstock.operators.places import Places, taken
from penstock.operators.table_operator import (
    Given,
    TableOperator,
    due_column,
    due_entries,
    limits,
    stamp,
)
from penstock.operators.window.row_windows import (
    RowWindows,
    key_fields,
    unfit_rows,
    without_changes,
)
from penstock.operators.window.windows import WINDOW_START, Window
from penstock.state.arrays import Array, fixed_array
from penstock.state.keys.codec import KeyCodec, Keys
from penstock.state.keys.index import key_index
from penstock.state.table.table import ColumnTable

_JUDGED_FROM = 20_000
"""Rows after which a sender judges whether looking for equal keys is worth its while."""
_MOSTLY_NEW = 0.9


class DistinctPlan:
    """The first row of each key, or of each key and window; picklable.

    With `ttl_ms` a key is forgotten that long after its row came, by the time of day; with a window,
    when the window is over. Otherwise a key is kept for ever.

    >>> schema = pa.schema([("user", pa.string()), ("n", pa.int64())])
    >>> plan = DistinctPlan(schema, ["user"])
    >>> step = plan.operator(16, "once", "fail")
    >>> _ = step.open(EpochTime(0, 0))
    >>> rows = pa.RecordBatch.from_pydict({"user": ["a", "b", "a"], "n": [1, 2, 3]}, schema)
    >>> step.apply("rows", [rows]).batches[0].to_pylist()
    [{'user': 'a', 'n': 1}, {'user': 'b', 'n': 2}]
    """

    codec: KeyCodec
    output: pa.Schema
    merges = True

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
        self.input_schema, self.key_names = input_schema, list(key_names)
        self.ttl_ms, self.window, self.on = ttl_ms, window, on
        self.lateness_ms, self.nulls = lateness_ms, nulls
        without_changes(input_schema, "distinct")
        if ttl_ms is not None and (ttl_ms <= 0 or window is not None):
            raise FlowError(
                f"distinct cannot forget keys after {ttl_ms} ms",
                hint="give a ttl of at least a millisecond, and none with a window",
            )
        keys = key_fields(input_schema, self.key_names, "distinct")
        self.user_codec = self.codec = KeyCodec(keys, nulls)
        self.windows: RowWindows | None = None
        self.output = input_schema
        if window is not None:
            self.windows = RowWindows(input_schema, window, on, lateness_ms, "distinct")
            start, end = self.windows.bounds
            self.codec = KeyCodec(pa.schema([*keys, start]), nulls)
            self.output = pa.schema([*input_schema, start, end])

    def __str__(self) -> str:
        return "distinct" if self.window is None else f"distinct in each window, {self.window}"

    def __reduce__(self) -> tuple[Any, ...]:
        names = ("ttl_ms", "window", "on", "lateness_ms", "nulls")
        options = {name: getattr(self, name) for name in names}
        return (partial(DistinctPlan, **options), (self.input_schema, self.key_names))

    @property
    def inputs(self) -> tuple[pa.Schema, ...]:
        return (self.input_schema,)

    @property
    def has_timers(self) -> bool:
        """Whether keys are forgotten."""
        return self.ttl_ms is not None or self.window is not None

    def unfit(self, input: int, batch: pa.RecordBatch) -> Unfit | None:
        """Rows without a key or a time."""
        times = [] if self.on is None else [self.on]
        return unfit_rows(self.user_codec, self.key_names, times, batch)

    def sender(self, time: EpochTime, two_stage: bool = False) -> DistinctSender:
        """Sends the first row of each key, where there are many of a key, or in any case."""
        return DistinctSender(self, time, two_stage)

    def sent_keys(self, batch: pa.RecordBatch) -> Keys:
        """The keys of rows that may be the first of their key."""
        return self.codec.encode(batch)

    def operator(
        self, slots: int, step_id: str, on_error: OnError, ordered: bool = False
    ) -> DistinctOperator:
        """The host's part."""
        return DistinctOperator(self, slots, step_id, ordered)


class DistinctSender:
    """Leaves out rows whose key the task has sent already, unless hardly any key comes again.

    With `always`, even then.
    """

    def __init__(self, plan: DistinctPlan, time: EpochTime, always: bool = False) -> None:
        self._plan, self._time, self._always = plan, time, always
        self._index = key_index(plan.codec.layout)
        self._rows, self.combines = 0, True
        self.late: list[tuple[int, pa.RecordBatch]] = []

    def add(self, input: int, batch: pa.RecordBatch) -> Iterable[Outgoing]:
        if self._plan.windows is not None:
            late, batch = self._plan.windows.cut(batch, self._time)
            if late is not None:
                self.late.append((input, late))
        keys = self._plan.codec.encode(batch)
        if not self.combines:
            return [Outgoing(batch, keys.hashes)]
        before = self._index.size
        entries = self._index.upsert(keys)
        # entries are numbered as they come: a new one is greater than all before it
        highest = np.maximum.accumulate(np.append(before - 1, entries))
        first = np.flatnonzero(entries > highest[:-1])
        self._rows += batch.num_rows
        mostly_new = self._index.size > self._rows * _MOSTLY_NEW
        if self._rows >= _JUDGED_FROM and mostly_new and not self._always:
            self.combines = False
            self._index.clear()
        if len(first) == batch.num_rows:
            return [Outgoing(batch, keys.hashes)]
        return [Outgoing(batch.take(fixed_array(first, pa.int64())), keys.hashes[first])]

    def finish(self) -> tuple[str, Iterable[Outgoing]]:
        return ROWS, ()


class DistinctOperator(TableOperator):
    """Knows which keys have come; gives the rows of those that had not, at once."""

    def __init__(self, plan: DistinctPlan, slots: int, step_id: str, ordered: bool = False) -> None:
        super().__init__(step_id, ordered)
        self.plan = plan
        self.output = plan.output
        clock = "event" if plan.window is None else plan.window.clock
        due = due_column("processing" if plan.ttl_ms is not None else clock)
        self._due = due if plan.has_timers else None
        self._clock: Any = due.name.removeprefix("__due_")
        self.table = ColumnTable(plan.codec, [due] if plan.has_timers else [], slots)
        self._now_ms = 0

    def keys(self, kind: str, batches: list[pa.RecordBatch]) -> list[Keys]:
        """The keys of these batches."""
        return [self.plan.codec.encode(batch) for batch in batches]

    def due(self, time: EpochTime) -> dict[str, int]:
        """Keys that are forgotten. Not at the end of the input: its last rows may still come."""
        if self._due is None:
            return {}
        return limits(EpochTime(time.epoch, time.now_ms, time.watermark_ms), self._clock)

    def open(self, time: EpochTime) -> Answer:
        """Forget what is over."""
        self._now_ms = time.now_ms
        over = due_entries(self.table, self.due(time))
        if len(over):
            self.table.remove(over)
        return Answer()

    def close(self) -> Answer:
        """Everything was given already."""
        return Answer()

    def _take(self, kind: str, batch: pa.RecordBatch, places: Places | None) -> Iterable[Given]:
        rows = self._new(batch)
        if len(rows):
            given = self._given(batch.take(fixed_array(rows, pa.int64())))
            yield Given(given, taken(places, rows))

    def _new(self, batch: pa.RecordBatch) -> Array:
        """The first row of each key that is not in the table, which then is."""
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
        return stamp(np.full(len(rows), self._now_ms + self.plan.ttl_ms, np.int64))

    def _given(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        windows = self.plan.windows
        columns = batch.columns
        if windows is not None:
            columns = [*columns, windows.ends(batch.column(WINDOW_START))]
        return pa.RecordBatch.from_arrays(columns, schema=self.output)
