"""The plan of aggregates in windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from penstock.errors import FlowError
from penstock.operators.aggregate.plan import Aggregate, AggregatePlan
from penstock.operators.changes import without_changes
from penstock.operators.operator import (
    CHANGE,
    Emit,
    EpochTime,
    OnError,
    Operator,
    Sender,
    StepPlan,
    Unfit,
)
from penstock.operators.window import sender as window_sender
from penstock.operators.window import session_step
from penstock.operators.window import step as window_step
from penstock.operators.window.row_windows import unfit_rows
from penstock.operators.window.windows import WINDOW_END, WINDOW_START, Window, bounds_type
from penstock.state.keys.codec import KeyCodec, Keys
from penstock.state.table.table import KEY


class WindowPlan(StepPlan):
    """Aggregates per key and window.

    `on` names the column of event times; None for a window by processing time. Rows are accepted until the
    watermark is `lateness_ms` milliseconds past the end of their last window. With `emit="close"` such late
    rows emit the window's row again; a session may have other bounds by then. Only `emit="changes"` takes
    back rows emitted before. With `nulls`, null is allowed in the key.

    With tumbling and hopping windows an entry of the table is a key in one window. With sessions it is a key
    with all its open sessions.

    >>> from penstock.operators.aggregate.aggregates import count
    >>> from penstock.operators.window.windows import tumbling
    >>> schema = pa.schema([("user", pa.string()), ("at", pa.timestamp("us"))])
    >>> plan = WindowPlan(schema, ["user"], {"n": count()}, tumbling("1s"), "at")
    >>> [f"{field.name} {field.type}" for field in plan.output]
    ['user string', 'window_start timestamp[us]', 'window_end timestamp[us]', 'n int64']
    """

    merges = True
    has_timers = True

    def __init__(
        self,
        input_schema: pa.Schema,
        key_names: Sequence[str],
        aggregates: dict[str, Aggregate],
        window: Window,
        on: str | None,
        lateness_ms: int = 0,
        emit: Emit = "close",
        nulls: bool = False,
    ) -> None:
        self.inputs, self.key_names = (input_schema,), list(key_names)
        self.aggregates = dict(aggregates)
        self.window, self.on, self.lateness_ms, self.emit = window, on, lateness_ms, emit
        self.time_type = bounds_type(input_schema, window, on, lateness_ms)
        """Type of the columns `window_start` and `window_end`."""
        self._check()
        self.sessions = window.kind == "session"
        self.start_name = WINDOW_START
        """Column with the start of a row's pane, and later of its window, in rows sent to a host."""
        rows, keys = input_schema, self.key_names
        if not self.sessions:
            if WINDOW_START in input_schema.names:
                self.start_name = f"__{WINDOW_START}"
            rows = input_schema.append(pa.field(self.start_name, self.time_type))
            keys = [*keys, self.start_name]
        self.inner = AggregatePlan(rows, keys, aggregates, nulls=nulls)
        self.codec = self.inner.codec
        fields = [input_schema.field(name) for name in self.key_names]
        self.user_codec = KeyCodec(pa.schema(fields), nulls)
        """The codec of the key columns alone."""
        bounds = [pa.field(name, self.time_type) for name in (WINDOW_START, WINDOW_END)]
        results = [self.inner.output.field(name) for name in aggregates]
        change = [pa.field(CHANGE, pa.int8())] if emit == "changes" else []
        self.output = pa.schema([*fields, *bounds, *results, *change])
        self.stays = emit == "close" and lateness_ms > 0
        """Whether windows stay in the table for late rows after they were emitted."""

    def __str__(self) -> str:
        return f"{self.window}: {self.inner}"

    def unfit(self, input: int, batch: pa.RecordBatch) -> Unfit | None:
        """Rows with a null in the key or in the event time."""
        return unfit_rows(self.user_codec, self.key_names, [self.on], batch)

    def sender(self, time: EpochTime, two_stage: bool = False) -> Sender:
        """Create a sender that combines the rows of each key and pane, or groups rows into sessions."""
        if self.sessions:
            return window_sender.SessionSender(self, time)
        return window_sender.WindowSender(self, time, two_stage)

    def sent_keys(self, batch: pa.RecordBatch) -> Keys:
        """The table keys of sent rows or states: key and window, or the key alone for sessions."""
        if self.sessions:
            return self.codec.from_storage(batch.column(KEY))
        return self.inner.sent_keys(batch)

    @property
    def code(self) -> tuple[Any, ...]:
        return self.inner.code

    def operator(
        self, slots: int, step_id: str, on_error: OnError, ordered: bool = False
    ) -> Operator:
        kind = session_step.SessionOperator if self.sessions else window_step.WindowOperator
        return kind(self, slots, step_id, ordered)

    def _check(self) -> None:
        clash = {WINDOW_START, WINDOW_END} & {*self.key_names, *self.aggregates}
        if clash:
            raise FlowError(
                f"the name {', '.join(sorted(clash))} is reserved for the bounds of windows",
                hint="rename the key columns or the aggregates",
            )
        without_changes(self.inputs[0], "a windowed aggregate")
        if self.emit not in ("close", "update", "changes"):
            raise FlowError(
                f"unknown emit {self.emit!r}", hint='use "close", "update" or "changes"'
            )
