"""The plan of a step that keeps aggregates of windows."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from penstock.errors import FlowError
from penstock.operators.aggregate.plan import Aggregate, AggregatePlan
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
from penstock.operators.window.row_windows import unfit_rows, without_changes
from penstock.operators.window.windows import WINDOW_END, WINDOW_START, Window, bounds_type
from penstock.state.keys.codec import KeyCodec, Keys
from penstock.state.table.table import KEY


def window_aggregate_plan(
    input_schema: pa.Schema,
    key_names: Sequence[str],
    aggregates: dict[str, Aggregate],
    window: Window,
    on: str | None,
    lateness_ms: int = 0,
    emit: Emit = "close",
    nulls: bool = False,
) -> StepPlan:
    """Aggregates per key and window.

    `on` names the column of event times; None with a window that goes by processing time. Rows may
    come up to `lateness_ms` after the watermark has passed the end of their last window; with
    `emit="close"` the window's row is then given again; a session may have other bounds by then.
    Only `emit="changes"` takes back what was given before. `nulls`: a null in the key is a value.
    """
    kind = SessionPlan if window.kind == "session" else WindowPlan
    return kind(input_schema, key_names, aggregates, window, on, lateness_ms, emit, nulls)


class _Windowed:
    """What both kinds of plans are made of."""

    codec: KeyCodec
    user_codec: KeyCodec
    """The codec of the key columns alone."""
    output: pa.Schema
    merges = True
    has_timers = True

    def __init__(
        self,
        input_schema: pa.Schema,
        key_names: Sequence[str],
        aggregates: dict[str, Aggregate],
        window: Window,
        on: str | None,
        lateness_ms: int,
        emit: Emit,
        nulls: bool,
    ) -> None:
        self.input_schema, self.key_names = input_schema, list(key_names)
        self.aggregates, self.window, self.on = dict(aggregates), window, on
        self.lateness_ms, self.emit, self.nulls = lateness_ms, emit, nulls
        self.time_type = bounds_type(input_schema, window, on, lateness_ms)
        self._check()

    def __str__(self) -> str:
        kept = ", ".join(f"{name}={what}" for name, what in self.aggregates.items())
        return f"{self.window}: {kept}"

    def __reduce__(self) -> tuple[Any, ...]:
        given = (self.input_schema, self.key_names, self.aggregates, self.window, self.on)
        return (type(self), (*given, self.lateness_ms, self.emit, self.nulls))

    @property
    def inputs(self) -> tuple[pa.Schema, ...]:
        return (self.input_schema,)

    def unfit(self, input: int, batch: pa.RecordBatch) -> Unfit | None:
        """Rows without a key or a time."""
        times = [] if self.on is None else [self.on]
        return unfit_rows(self.user_codec, self.key_names, times, batch)

    def _check(self) -> None:
        clash = {WINDOW_START, WINDOW_END} & {*self.key_names, *self.aggregates}
        if clash:
            raise FlowError(
                f"{', '.join(sorted(clash))}: windows give columns of that name",
                hint="rename the key columns or the aggregates",
            )
        without_changes(self.input_schema, "a windowed aggregate")
        if self.emit not in ("close", "update", "changes"):
            raise FlowError(
                f"emit={self.emit!r} is not known", hint='use "close", "update" or "changes"'
            )

    def _output(self, inner: AggregatePlan) -> pa.Schema:
        bounds = [(WINDOW_START, self.time_type), (WINDOW_END, self.time_type)]
        results = [inner.output.field(name) for name in self.aggregates]
        change = [pa.field(CHANGE, pa.int8())] if self.emit == "changes" else []
        keys = [inner.output.field(name) for name in self.key_names]
        return pa.schema([*keys, *itertools.starmap(pa.field, bounds), *results, *change])


class WindowPlan(_Windowed):
    """Tumbling and hopping windows: an entry of the table is a key in one window.

    >>> from penstock.operators.aggregate.aggregates import count
    >>> from penstock.operators.window.windows import tumbling
    >>> schema = pa.schema([("user", pa.string()), ("at", pa.timestamp("us"))])
    >>> plan = window_aggregate_plan(schema, ["user"], {"n": count()}, tumbling("1s"), "at")
    >>> [f"{field.name} {field.type}" for field in plan.output]  # doctest: +ELLIPSIS
    ['user string', 'window_start timestamp[us]', 'window_end timestamp[us]', 'n int64']
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        taken = WINDOW_START in self.input_schema.names
        self.start_name = f"__{WINDOW_START}" if taken else WINDOW_START
        start = pa.field(self.start_name, self.time_type)
        self.inner = AggregatePlan(
            pa.schema([*self.input_schema, start]),
            [*self.key_names, self.start_name],
            self.aggregates,
            nulls=self.nulls,
        )
        self.codec = self.inner.codec
        keys = pa.schema([self.input_schema.field(name) for name in self.key_names])
        self.user_codec = KeyCodec(keys, self.nulls)
        self.output = self._output(self.inner)
        self.stays = self.emit == "close" and self.lateness_ms > 0
        """Whether windows stay for late rows after they were given."""

    def sender(self, time: EpochTime, two_stage: bool = False) -> Sender:
        """Combines the rows of each key and pane before they go to their windows."""
        return window_sender.WindowSender(self, time, two_stage)

    def sent_keys(self, batch: pa.RecordBatch) -> Keys:
        """Keys and windows, of rows or of combined states."""
        return self.inner.sent_keys(batch)

    def operator(
        self, slots: int, step_id: str, on_error: OnError, ordered: bool = False
    ) -> Operator:
        """The host's part."""
        return window_step.WindowOperator(self, slots, step_id, ordered)


class SessionPlan(_Windowed):
    """Sessions: an entry of the table is a key with all its sessions that have not closed."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.inner = AggregatePlan(
            self.input_schema, self.key_names, self.aggregates, nulls=self.nulls
        )
        self.codec = self.user_codec = self.inner.codec
        self.output = self._output(self.inner)

    def sender(self, time: EpochTime, two_stage: bool = False) -> Sender:
        """Makes sessions of its own rows first."""
        return window_sender.SessionSender(self, time)

    def sent_keys(self, batch: pa.RecordBatch) -> Keys:
        """The keys that the sessions are of."""
        return self.codec.from_storage(batch.column(KEY))

    def operator(
        self, slots: int, step_id: str, on_error: OnError, ordered: bool = False
    ) -> Operator:
        """The host's part."""
        return session_step.SessionOperator(self, slots, step_id, ordered)
