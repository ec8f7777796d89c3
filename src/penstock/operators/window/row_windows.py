"""Base classes of steps that keep whole rows (`top`, `distinct`): windows, plans, and senders that drop rows.

Couriers assign rows to windows before they send them. A row that is in several windows is sent once for
each, with the start of the window as an additional last column. The key of the step's table is the key
columns and that start.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import pyarrow as pa

from penstock.errors import FlowError
from penstock.operators.changes import without_changes
from penstock.operators.operator import (
    ROWS,
    EpochTime,
    Outgoing,
    StepPlan,
    Unfit,
    one_field,
    without_key,
)
from penstock.operators.table_operator import Clock
from penstock.operators.window.windows import (
    WINDOW_END,
    WINDOW_START,
    Window,
    bounds_type,
    event_times,
    time_array,
)
from penstock.state.arrays import Array, fixed_array, fixed_values
from penstock.state.keys.codec import KeyCodec, Keys


@dataclass(frozen=True)
class RowWindows:
    """The tumbling or hopping windows of a step's rows.

    >>> from penstock.operators.window.windows import tumbling
    >>> schema = pa.schema([("at", pa.timestamp("ms"))])
    >>> windows = RowWindows(schema, tumbling("1s"), "at", 0, "distinct")
    >>> rows = pa.RecordBatch.from_pydict({"at": [500, 1500, 1700]}, schema)
    >>> late, cut = windows.cut(rows, EpochTime(0, 0, watermark_ms=1000))
    >>> late.num_rows, [str(start) for start in cut.column("window_start").to_pylist()]
    (1, ['1970-01-01 00:00:01', '1970-01-01 00:00:01'])
    """

    schema: pa.Schema
    window: Window
    on: str | None
    """Name of the event-time column; None for a window by processing time."""
    lateness_ms: int
    """Milliseconds after the end of a window for which late rows are accepted."""
    step: str
    """Name of the step in error messages."""

    def __post_init__(self) -> None:
        window = self.window
        if window.kind == "session":
            raise FlowError(
                f"{self.step} cannot use a {window.kind} window",
                hint="use a tumbling or a hopping window, or aggregate the sessions",
            )
        bounds_type(self.schema, window, self.on, self.lateness_ms)
        for name in (WINDOW_START, WINDOW_END):
            if name in self.schema.names:
                raise FlowError(
                    f"the input of {self.step} has a column {name!r}, which is reserved for windows",
                    hint="rename the column before this step",
                )

    @cached_property
    def type(self) -> pa.DataType:
        """Type of the columns `window_start` and `window_end`."""
        return bounds_type(self.schema, self.window, self.on, self.lateness_ms)

    @cached_property
    def sent(self) -> pa.Schema:
        """Schema of the rows sent to hosts."""
        return self.schema.append(pa.field(WINDOW_START, self.type))

    @property
    def bounds(self) -> list[pa.Field]:
        """The columns that windows add to the output."""
        return [pa.field(WINDOW_START, self.type), pa.field(WINDOW_END, self.type)]

    def cut(
        self, batch: pa.RecordBatch, time: EpochTime
    ) -> tuple[pa.RecordBatch | None, pa.RecordBatch]:
        """Split a batch into late rows (None if there are none) and the rows to send, with their windows."""
        horizon = self.window.horizon(time, self.lateness_ms)
        late, batch, times = self.window.in_time(batch, self.on, time, horizon)
        rows, starts = self.window.spread(times, horizon)
        if self.window.kind != "tumbling":
            batch = batch.take(fixed_array(rows, pa.int64()))
        columns = [*batch.columns, time_array(starts, self.type)]
        return late, pa.RecordBatch.from_arrays(columns, schema=self.sent)

    def ends(self, starts: pa.Array) -> pa.Array:
        """The column of window ends for a column of window starts."""
        return time_array(event_times(starts) + self.window.size_us, self.type)

    def due_ms(self, starts: pa.Array) -> Array:
        """The times, in milliseconds, at which windows have ended and their lateness has passed."""
        ends = event_times(starts) + self.window.size_us
        due: Array = -(-ends // 1000) + self.lateness_ms
        return due


def unfit_rows(
    codec: KeyCodec, names: list[str], times: Sequence[str | None], batch: pa.RecordBatch
) -> Unfit | None:
    """Rows with a null in the key or in one of these time columns; a name of None is skipped."""
    unfit = without_key(codec, names, batch)
    for name in times:
        if name is not None and batch.column(name).null_count:
            rows = fixed_values(batch.column(name).is_null())
            reason = f"a null in the event time ({name})"
            if unfit is not None:
                rows, reason = rows | unfit.rows, f"{unfit.reason} or {reason}"
            unfit = Unfit(rows, reason)
    return unfit


class RowPlan(StepPlan):
    """Base class of plans of steps that keep whole rows.

    Keys end by the window's clock, or without a window by `clock`. If that is None, they never end.
    """

    merges = True
    step: ClassVar[str]
    """Name of the step in error messages."""

    def __init__(
        self,
        input_schema: pa.Schema,
        key_names: Sequence[str],
        window: Window | None,
        on: str | None,
        lateness_ms: int,
        nulls: bool,
        clock: Clock | None,
    ) -> None:
        self.inputs, self.key_names = (input_schema,), list(key_names)
        self.window, self.on, self.lateness_ms = window, on, lateness_ms
        self.clock = clock if window is None else window.clock
        self.has_timers = self.clock is not None
        without_changes(input_schema, self.step)
        keys = [one_field(input_schema, name, self.step, "the key") for name in self.key_names]
        self.user_codec = self.codec = KeyCodec(pa.schema(keys), nulls)
        """Codecs of the key columns alone (`user_codec`), and of key and window (`codec`)."""
        self.windows: RowWindows | None = None
        self.rows = input_schema
        """Schema of the rows sent to hosts."""
        self.bounds: list[pa.Field] = []
        """The columns that windows add to the output."""
        if window is not None:
            self.windows = RowWindows(input_schema, window, on, lateness_ms, self.step)
            self.rows, self.bounds = self.windows.sent, self.windows.bounds
            self.codec = KeyCodec(pa.schema([*keys, self.bounds[0]]), nulls)

    def unfit(self, input: int, batch: pa.RecordBatch) -> Unfit | None:
        """Rows with a null in the key or in the event time."""
        return unfit_rows(self.user_codec, self.key_names, [self.on], batch)


_JUDGED_FROM = 20_000
"""Rows after which a sender decides whether dropping rows pays."""
_MOSTLY_KEPT = 0.9
"""Share of kept rows above which dropping rows does not pay."""


class PruningSender(ABC):
    """Drops rows that a step does not need. If hardly any can be dropped, it gives up and sends all rows,
    unless `always` is set."""

    def __init__(self, plan: RowPlan, time: EpochTime, always: bool = False) -> None:
        self._codec, self._windows = plan.codec, plan.windows
        self._time, self._always = time, always
        self._rows = self._kept = 0
        self.combines = True
        self.late: list[tuple[int, pa.RecordBatch]] = []

    def add(self, input: int, batch: pa.RecordBatch) -> Iterable[Outgoing]:
        batch = self._in_time(input, batch)
        keys = self._codec.encode(batch)
        if not self.combines:
            return [Outgoing(batch, keys.hashes)]
        rows = self._needed(batch, keys)
        self._rows += batch.num_rows
        self._kept += len(rows)
        few = self._rows < _JUDGED_FROM or self._kept <= self._rows * _MOSTLY_KEPT
        self.combines = self._always or few
        if len(rows) == batch.num_rows:
            return [Outgoing(batch, keys.hashes)]
        return [Outgoing(batch.take(fixed_array(rows, pa.int64())), keys.hashes[rows])]

    def finish(self) -> tuple[str, Iterable[Outgoing]]:
        return ROWS, ()

    def _in_time(self, input: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Set late rows aside, and return the others with their windows."""
        late, batch = self._cut(batch)
        if late is not None:
            self.late.append((input, late))
        return batch

    def _cut(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch | None, pa.RecordBatch]:
        """Split a batch into late rows (None if there are none) and the rows to send."""
        return (None, batch) if self._windows is None else self._windows.cut(batch, self._time)

    @abstractmethod
    def _needed(self, batch: pa.RecordBatch, keys: Keys) -> Array:
        """The numbers of the rows that must be sent, ascending."""
