"""Windows of steps that keep whole rows: they cut the rows in the courier, before they are sent.

A row that is in several windows is sent once for each, with the start of the window behind its own
columns; key columns and that start are the key of the step's table.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.errors import FlowError
from penstock.operators.operator import CHANGE, EpochTime, Unfit, without_key
from penstock.operators.window.windows import (
    WINDOW_END,
    WINDOW_START,
    Window,
    bounds_type,
    event_times,
    time_array,
)
from penstock.state.arrays import Array, fixed_array, fixed_values
from penstock.state.keys.codec import KeyCodec


@dataclass(frozen=True)
class RowWindows:
    """The windows of a step's rows: tumbling or hopping ones.

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
    """The column of event times; None with a window by processing time."""
    lateness_ms: int
    step: str
    """What the step is called in messages."""

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
                    f"there is a column {name!r} already, and windows give one of that name",
                    hint="rename the column before this step",
                )

    @property
    def type(self) -> pa.DataType:
        """The type of the bounds of windows."""
        return bounds_type(self.schema, self.window, self.on, self.lateness_ms)

    @property
    def sent(self) -> pa.Schema:
        """The schema of the rows that are sent."""
        return self.schema.append(pa.field(WINDOW_START, self.type))

    @property
    def bounds(self) -> list[pa.Field]:
        """The columns that a step puts behind its rows."""
        return [pa.field(WINDOW_START, self.type), pa.field(WINDOW_END, self.type)]

    def cut(
        self, batch: pa.RecordBatch, time: EpochTime
    ) -> tuple[pa.RecordBatch | None, pa.RecordBatch]:
        """The rows that are late, if there are any, and the others as they are sent."""
        if self.on is None:
            times = np.full(batch.num_rows, time.now_ms * 1000, np.int64)
        else:
            times = event_times(batch.column(self.on))
        horizon = self.window.horizon(time, self.lateness_ms)
        mask = self.window.late(times, horizon)
        late = None if mask is None else batch.filter(fixed_array(mask, pa.bool_()))
        rows, starts = self.window.spread(times, horizon)
        if self.window.kind != "tumbling" or mask is not None:
            batch = batch.take(fixed_array(rows, pa.int64()))
        columns = [*batch.columns, time_array(starts, self.type)]
        return late, pa.RecordBatch.from_arrays(columns, schema=self.sent)

    def ends(self, starts: pa.Array) -> pa.Array:
        """The column of ends for one of starts."""
        return time_array(event_times(starts) + self.window.size_us, self.type)

    def due_ms(self, starts: pa.Array) -> Array:
        """When windows are over, and all rows that may come after that have come."""
        ends = event_times(starts) + self.window.size_us
        due: Array = -(-ends // 1000) + self.lateness_ms
        return due


def unfit_rows(
    codec: KeyCodec, names: list[str], times: list[str], batch: pa.RecordBatch
) -> Unfit | None:
    """Rows that have no key by this codec, or no time in one of these columns."""
    found = without_key(codec, names, batch)
    for name in times:
        if not batch.column(name).null_count:
            continue
        rows, reason = (
            fixed_values(batch.column(name).is_null()),
            f"a null in the event time ({name})",
        )
        if found is not None:
            rows, reason = rows | found.rows, f"{found.reason} or {reason}"
        found = Unfit(rows, reason)
    return found


def key_fields(schema: pa.Schema, names: list[str], step: str) -> pa.Schema:
    """The key columns; FlowError if one is missing."""
    for name in names:
        if len(schema.get_all_field_indices(name)) != 1:
            raise FlowError(
                f"{step} has no one column {name!r} to key by",
                hint=f"the columns here are {', '.join(schema.names)}",
            )
    return pa.schema([schema.field(name) for name in names])


def without_changes(schema: pa.Schema, step: str) -> None:
    """FlowError if rows may be taken back: a step that forgets rows cannot follow that."""
    if CHANGE in schema.names:
        raise FlowError(
            f"{step} cannot take a stream of changes ({CHANGE})",
            hint='let the step before it emit on "close", or keep the newest row of each key there',
        )
