"""Time windows: their definition, and the windows that a row is in.

Times are int64 microseconds since 1970 and may be negative. A window is [start, end). The rows of a
hopping window are first divided into *panes*: intervals whose rows are all in the same windows. There
are two panes between one start and the next, or one if the size is a multiple of the step.

    starts   |       |       |       |       every 2, size 3
    windows  [----------)    [----------)
                     [----------)    [---
    panes    |   |   |   |   |   |   |   |   length 1; in two windows and in one window, by turns
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from penstock.errors import FlowError
from penstock.model import milliseconds
from penstock.operators.operator import EpochTime, one_field
from penstock.operators.window import kernels
from penstock.state.arrays import Array, fixed_array, fixed_values, one_chunk, valid_mask

WINDOW_START, WINDOW_END = "window_start", "window_end"
UTC_TIME = pa.timestamp("us", "UTC")
"""Type of the bounds of windows by processing time."""

_MOST = 1 << 60
"""Greatest distance of a time from 1970, in microseconds. Sums of a few such times do not overflow."""
NO_HORIZON = -(1 << 62)
"""Horizon, in microseconds, before all times: no window has closed."""
_UNITS = {"s": 1_000_000, "ms": 1_000, "us": 1}
"""Unit of a timestamp type -> its length in microseconds."""


@dataclass(frozen=True)
class Window:
    """A kind of time window. Made by `tumbling`, `hopping` and `session_window`.

    >>> str(tumbling("10s")), str(hopping("10s", "2s")), str(session_window("1 minute"))
    ('tumbling 10 s', 'hopping 10 s every 2 s', 'session 60 s')
    """

    kind: Literal["tumbling", "hopping", "session"]
    size_us: int
    """Length of a window, or the gap of a session, in microseconds."""
    every_us: int
    """Microseconds from the start of one window to the next."""
    offset_us: int = 0
    """Microseconds by which all windows are shifted."""
    clock: Literal["event", "processing"] = "event"

    def __post_init__(self) -> None:
        if not 0 < self.size_us <= _MOST or self.every_us <= 0:
            raise FlowError(
                f"a {self.kind} window cannot be {self.size_us / 1e6:g} s long, "
                f"every {self.every_us / 1e6:g} s",
                hint="use durations of at least 1 ms",
            )
        if self.every_us > self.size_us:
            raise FlowError(
                f"windows of {self.size_us / 1e6:g} s every {self.every_us / 1e6:g} s leave out "
                "the rows between them",
                hint="make `every` at most the size, or filter the rows and use a tumbling window",
            )

    def __str__(self) -> str:
        every = f" every {self.every_us / 1e6:g} s" if self.kind == "hopping" else ""
        offset = f" from {self.offset_us / 1e6:g} s" if self.offset_us else ""
        clock = " of processing time" if self.clock == "processing" else ""
        return f"{self.kind} {self.size_us / 1e6:g} s{every}{offset}{clock}"

    def horizon(self, time: EpochTime, lateness_ms: int = 0) -> int:
        """The time, in microseconds, up to which windows have closed in an epoch: windows that end at or
        before it take no more rows."""
        if self.clock == "processing" or time.watermark_ms is None:
            return NO_HORIZON
        return max(NO_HORIZON, min(_MOST * 2, (time.watermark_ms - lateness_ms) * 1000))

    def panes(self, times: Array) -> Array:
        """The start of each time's pane. For a tumbling window that is the window's start, for a session
        the time itself.

        >>> hopping("3s", "2s").panes(np.array([0, 900_000, 1_000_000, 1_999_999]))
        array([      0,       0, 1000000, 1000000])
        """
        if self.kind == "session":
            return times
        rest = self.size_us % self.every_us
        out: Array = kernels.panes(times, self.every_us, self.offset_us, rest)
        return out

    def late(self, times: Array, horizon: int) -> Array | None:
        """Mask (bool) of the times (or panes) whose windows all end at or before the horizon; None if
        there are none."""
        # the last window of a time begins no earlier than `every` before it
        certain = horizon - self.size_us + self.every_us
        if not len(times) or int(times.min()) >= certain:
            return None
        every = 1 if self.kind == "session" else self.every_us
        mask: Array = kernels.late(times, self.size_us, every, self.offset_us, horizon)
        return mask if mask.any() else None

    def in_time(
        self, batch: pa.RecordBatch, on: str | None, time: EpochTime, horizon: int
    ) -> tuple[pa.RecordBatch | None, pa.RecordBatch, Array]:
        """Split a batch into late rows (None if there are none) and other rows, and return the times of
        the latter.

        Times are event times (column `on`), or the time of the epoch, in microseconds.
        """
        if on is None:
            return None, batch, np.full(batch.num_rows, time.now_ms * 1000, np.int64)
        times = event_times(batch.column(on))
        late = self.late(times, horizon)
        if late is None:
            return None, batch, times
        rows = batch.filter(fixed_array(~late, pa.bool_()))
        return batch.filter(fixed_array(late, pa.bool_())), rows, times[~late]

    def spread(self, times: Array, horizon: int = NO_HORIZON) -> tuple[Array, Array]:
        """The windows of times (or panes) that end after the horizon: indexes of times, and window starts.

        >>> rows, starts = hopping("3s", "2s").spread(np.array([0, 1_000_000]))
        >>> rows.tolist(), starts.tolist()
        ([0, 0, 1], [-2000000, 0, 0])
        """
        every = 1 if self.kind == "session" else self.every_us
        size = every if self.kind == "session" else self.size_us
        beyond = horizon if self.kind != "session" else horizon - self.size_us + 1
        rows, starts = kernels.spread(times, size, every, self.offset_us, beyond)
        return rows, starts


def tumbling(
    size: str | float, *, offset: str | float = 0, clock: Literal["event", "processing"] = "event"
) -> Window:
    """Windows of one size, one after the other. Each row is in exactly one window.

    They are aligned to 1970-01-01T00:00 UTC, shifted by `offset`. By event time a window closes when the
    watermark reaches its end; by processing time, at the first epoch that begins after its end.
    """
    size_us = _microseconds(size)
    return Window("tumbling", size_us, size_us, _moved(offset, size_us), clock)


def hopping(
    size: str | float,
    every: str | float,
    *,
    offset: str | float = 0,
    clock: Literal["event", "processing"] = "event",
) -> Window:
    """Windows of one size that begin at intervals of `every`. A row may be in several windows."""
    every_us = _microseconds(every)
    return Window("hopping", _microseconds(size), every_us, _moved(offset, every_us), clock)


def session_window(gap: str | float, *, clock: Literal["event", "processing"] = "event") -> Window:
    """Session windows: rows of a key that are less than `gap` apart are in one window. It lasts from the
    first row to `gap` after the last one."""
    gap_us = _microseconds(gap)
    return Window("session", gap_us, gap_us, 0, clock)


def time_field(schema: pa.Schema, name: str, whose: str) -> pa.Field:
    """The event-time column of this name. Raises FlowError if it is missing or is not a timestamp."""
    hint = "name a timestamp column of this step's input"
    field = one_field(schema, name, whose, "the event time", hint)
    if not pa.types.is_timestamp(field.type):
        raise FlowError(
            f"the event time {name!r} of {whose} is of type {field.type}, not a timestamp",
            hint="cast it to a timestamp before this step",
        )
    return field


def bounds_type(schema: pa.Schema, window: Window, on: str | None, lateness_ms: int) -> pa.DataType:
    """The type of a step's window_start and window_end: that of its event time `on`.

    Raises FlowError if the window's clock, event time and lateness do not fit together.
    """
    if lateness_ms < 0:
        raise FlowError(f"the lateness is {lateness_ms} ms", hint="use 0 or more")
    if window.clock == "processing":
        if on is not None or lateness_ms:
            raise FlowError(
                f"a window by processing time ({window}) takes no event time and no lateness",
                hint='leave out `on` and `lateness`, or use clock="event"',
            )
        return UTC_TIME
    if on is None:
        raise FlowError(
            f"a window by event time ({window}) needs a column of event times",
            hint='name it with on="...", or use clock="processing"',
        )
    type = time_field(schema, on, "the window").type
    check_unit(window, type)
    return type


def event_times(column: pa.Array | pa.ChunkedArray) -> Array:
    """A timestamp column as int64 microseconds; undefined for nulls.

    >>> event_times(pa.array([-1, 2500], pa.timestamp("ns")))
    array([-1,  2])
    """
    array = one_chunk(column)
    values = fixed_values(array)
    valid = valid_mask(array)
    if valid is not None:
        values = np.where(valid, values, 0)
    if not len(values):
        return values
    if array.type.unit == "ns":
        out: Array = values // 1000
        return out
    scale = _UNITS[array.type.unit]
    if int(values.min()) < -_MOST // scale or int(values.max()) > _MOST // scale:
        raise FlowError(
            f"an event time is further from 1970 than {_MOST // 31_557_600_000_000:,} years",
            hint="filter out such rows, or correct their time, before this step",
        )
    return values * scale if scale > 1 else values


def time_array(times: Array, type: pa.DataType) -> pa.Array:
    """Times in microseconds as a column of a timestamp type; the inverse of `event_times`."""
    if type.unit == "ns":
        if len(times) and max(-int(times.min()), int(times.max())) >= (1 << 63) // 1000:
            raise FlowError(
                f"a window's bound is out of the range of {type}",
                hint='cast the event time to timestamp("us") before this step',
            )
        return fixed_array(times * 1000, type)
    scale = _UNITS[type.unit]
    return fixed_array(times if scale == 1 else times // scale, type)


def check_unit(window: Window, type: pa.DataType) -> None:
    """Raise FlowError if the window's bounds are not whole units of the event time's type."""
    scale = _UNITS.get(type.unit, 1)
    if window.size_us % scale or window.every_us % scale or window.offset_us % scale:
        raise FlowError(
            f"the bounds of windows ({window}) are finer than the event time of type {type}",
            hint='cast the event time to timestamp("us") before this step',
        )


def _microseconds(duration: str | float) -> int:
    return milliseconds(duration) * 1000


def _moved(offset: str | float, every_us: int) -> int:
    return _microseconds(offset) % every_us if every_us > 0 else 0
