"""Time bounds of a join: how far apart matching rows may be, and so how long a row must be kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.errors import FlowError
from penstock.operators.operator import EpochTime
from penstock.operators.window.windows import (
    NO_HORIZON,
    WINDOW_END,
    WINDOW_START,
    Window,
    check_unit,
    event_times,
    time_field,
)
from penstock.state.arrays import Array, valid_mask

STARTS = "__window"
"""Column of rows sent to a host: the start of the row's window, in microseconds."""
Get = Callable[[str], pa.Array]
"""Function that maps the name of a column to its values, for some rows."""
_MOST_MS = 1 << 49
"""Largest bound of an interval, in milliseconds."""
_FAR = 1 << 61
"""Time in microseconds beyond every event time; small enough that sums do not overflow."""


@dataclass(frozen=True)
class Regular:
    """A join without time bounds: rows of one key match whenever they arrive. Rows are kept for ever, or
    for the TTL."""

    ttl_ms: int | None = None
    """Milliseconds that a row is kept after its arrival, by the epochs' time of day; None for ever."""

    def __str__(self) -> str:
        return "of all rows" if self.ttl_ms is None else f"of rows for {self.ttl_ms} ms"

    times = None
    """Event-time columns of both sides: none are needed."""

    def check(self, left: pa.Schema, right: pa.Schema) -> list[pa.Field]:
        """Check the bound against the inputs. Returns the columns that it adds to the output.

        Raises FlowError if it does not fit them.
        """
        if self.ttl_ms is not None and self.ttl_ms <= 0:
            raise FlowError(
                f"the join's TTL is {self.ttl_ms} ms",
                hint="use a TTL of at least 1 ms, or none to keep rows for ever",
            )
        return []


@dataclass(frozen=True)
class InWindow:
    """A join in which rows of one key match if they are in the same window."""

    window: Window
    left_time: str
    right_time: str

    def __str__(self) -> str:
        return f"in the same window, {self.window}"

    @property
    def times(self) -> tuple[str, str]:
        """Event-time columns of the left and the right side."""
        return self.left_time, self.right_time

    def check(self, left: pa.Schema, right: pa.Schema) -> list[pa.Field]:
        """Check the bound against the inputs. Returns the columns that it adds to the output.

        Raises FlowError if it does not fit them.
        """
        window = self.window
        if window.kind == "session" or window.clock != "event":
            raise FlowError(
                f"a join cannot use the window {window}",
                hint="use tumbling or hopping windows of event time",
            )
        type = time_field(left, self.left_time, "the join's left side").type
        time_field(right, self.right_time, "the join's right side")
        check_unit(window, type)
        return [pa.field(WINDOW_START, type), pa.field(WINDOW_END, type)]

    def late(self, times: Array, time: EpochTime, lateness_ms: int) -> Array | None:
        """Mask (bool) of the times whose windows have all closed; None if there are none."""
        return self.window.late(times, self.window.horizon(time, lateness_ms))


@dataclass(frozen=True)
class Interval:
    """A join in which rows of one key match if the right time is from `low_ms` to `high` after the left
    time."""

    left_time: str
    right_time: str
    low_ms: int
    high: int | str
    """Milliseconds after the left time, or the name of the left column that holds the latest right time."""

    def __str__(self) -> str:
        high = self.high if isinstance(self.high, str) else f"{self.left_time} + {self.high} ms"
        return f"{self.right_time} from {self.left_time} + {self.low_ms} ms to {high}"

    @property
    def times(self) -> tuple[str, str]:
        """Event-time columns of the left and the right side."""
        return self.left_time, self.right_time

    def check(self, left: pa.Schema, right: pa.Schema) -> list[pa.Field]:
        """Check the bound against the inputs. Returns the columns that it adds to the output.

        Raises FlowError if it does not fit them.
        """
        time_field(left, self.left_time, "the join's left side")
        time_field(right, self.right_time, "the join's right side")
        if isinstance(self.high, str):
            time_field(left, self.high, "the join's upper bound")
        ends = [self.low_ms] if isinstance(self.high, str) else [self.low_ms, self.high]
        if max(map(abs, ends)) > _MOST_MS:
            raise FlowError(
                f"the join's bound of {max(map(abs, ends))} ms is too large",
                hint=f"use bounds of at most {_MOST_MS} ms, or join without a bound",
            )
        if not isinstance(self.high, str) and self.high < self.low_ms:
            raise FlowError(
                f"the join's lower bound, {self.low_ms} ms, is above its upper bound, {self.high} ms",
                hint="pass the lower bound first",
            )
        return []

    def late(self, times: Array, time: EpochTime, lateness_ms: int) -> Array | None:
        """Mask (bool) of the times that are behind the watermark by more than the lateness; None if there are
        none."""
        if time.watermark_ms is None:
            return None
        mask: Array = times < max(NO_HORIZON, (time.watermark_ms - lateness_ms) * 1000)
        return mask if mask.any() else None

    def first(self, left: Get) -> Array:
        """The earliest right time that matches each left row, in microseconds."""
        return event_times(left(self.left_time)) + self.low_ms * 1000

    def last(self, left: Get) -> Array:
        """The latest right time that matches each left row, in microseconds. If the column is null, no
        right row matches."""
        if not isinstance(self.high, str):
            return event_times(left(self.left_time)) + self.high * 1000
        column = left(self.high)
        last, valid = event_times(column), valid_mask(column)
        return last if valid is None else np.where(valid, last, -_FAR)

    def right_times(self, right: Get) -> Array:
        """The time of each right row, in microseconds."""
        return event_times(right(self.right_time))

    def awaited(self, right: Get) -> Array:
        """The latest left time that matches each right row, in microseconds."""
        return self.right_times(right) - self.low_ms * 1000


Bound = Regular | InWindow | Interval
