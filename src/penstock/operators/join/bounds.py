"""How far apart rows of a join may be, and so how long a row must be kept."""

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
"""Beside rows on their way to a host: the start of the window that the row goes to."""
Get = Callable[[str], pa.Array]
"""Columns of some rows by name."""
_MOST_MS = 1 << 49
_FAR = 1 << 61
"""In microseconds: beyond every time, with room for sums."""


@dataclass(frozen=True)
class Regular:
    """Rows of one key match whenever they come. Each is kept for ever, or for the TTL."""

    ttl_ms: int | None = None
    """By the epochs' time of day since the row came."""

    def __str__(self) -> str:
        return "of all rows" if self.ttl_ms is None else f"of rows for {self.ttl_ms} ms"

    times = None
    """The columns of event time of both sides: none are needed."""

    def check(self, left: pa.Schema, right: pa.Schema) -> list[pa.Field]:
        """FlowError if it does not fit these inputs; gives the columns that it adds to the output."""
        if self.ttl_ms is not None and self.ttl_ms <= 0:
            raise FlowError(
                f"a join cannot keep its rows for {self.ttl_ms} ms",
                hint="give a TTL of at least a millisecond, or none to keep rows for ever",
            )
        return []


@dataclass(frozen=True)
class InWindow:
    """Rows of one key match when they are in one window."""

    window: Window
    left_time: str
    right_time: str

    def __str__(self) -> str:
        return f"in the same window, {self.window}"

    @property
    def times(self) -> tuple[str, str]:
        """The columns of event time of both sides."""
        return self.left_time, self.right_time

    def check(self, left: pa.Schema, right: pa.Schema) -> list[pa.Field]:
        """FlowError if it does not fit these inputs; gives the columns that it adds to the output."""
        window = self.window
        if window.kind == "session" or window.clock != "event":
            raise FlowError(
                f"a join cannot go by {window}",
                hint="use tumbling or hopping windows of event time",
            )
        type = time_field(left, self.left_time, "the join's left side").type
        time_field(right, self.right_time, "the join's right side")
        check_unit(window, type)
        return [pa.field(WINDOW_START, type), pa.field(WINDOW_END, type)]

    def late(self, times: Array, time: EpochTime, lateness_ms: int) -> Array | None:
        """Which times are in no window that is open; None: all are in one."""
        return self.window.late(times, self.window.horizon(time, lateness_ms))


@dataclass(frozen=True)
class Interval:
    """Rows of one key match when the right time is from `low_ms` to `high` after the left one."""

    left_time: str
    right_time: str
    low_ms: int
    high: int | str
    """Milliseconds after the left time, or the left column that holds the last time itself."""

    def __str__(self) -> str:
        high = self.high if isinstance(self.high, str) else f"{self.left_time} + {self.high} ms"
        return f"{self.right_time} from {self.left_time} + {self.low_ms} ms to {high}"

    @property
    def times(self) -> tuple[str, str]:
        """The columns of event time of both sides."""
        return self.left_time, self.right_time

    def check(self, left: pa.Schema, right: pa.Schema) -> list[pa.Field]:
        """FlowError if it does not fit these inputs; gives the columns that it adds to the output."""
        time_field(left, self.left_time, "the join's left side")
        time_field(right, self.right_time, "the join's right side")
        if isinstance(self.high, str):
            time_field(left, self.high, "the join's upper bound")
        ends = [self.low_ms] if isinstance(self.high, str) else [self.low_ms, self.high]
        if max(map(abs, ends)) > _MOST_MS:
            raise FlowError(
                f"no two rows can be {max(map(abs, ends))} ms apart",
                hint=f"give bounds of at most {_MOST_MS} ms, or join without a bound",
            )
        if not isinstance(self.high, str) and self.high < self.low_ms:
            raise FlowError(
                f"no time is both at least {self.low_ms} ms and at most {self.high} ms later",
                hint="give the lower bound first",
            )
        return []

    def late(self, times: Array, time: EpochTime, lateness_ms: int) -> Array | None:
        """Which times are behind the watermark by more than the lateness; None: no one is."""
        if time.watermark_ms is None:
            return None
        mask: Array = times < max(NO_HORIZON, (time.watermark_ms - lateness_ms) * 1000)
        return mask if mask.any() else None

    def first(self, left: Get) -> Array:
        """The earliest right time (microseconds) that matches each left row."""
        return event_times(left(self.left_time)) + self.low_ms * 1000

    def last(self, left: Get) -> Array:
        """The latest right time that matches each left row; where it is null, none matches."""
        if not isinstance(self.high, str):
            return event_times(left(self.left_time)) + self.high * 1000
        column = left(self.high)
        last, valid = event_times(column), valid_mask(column)
        return last if valid is None else np.where(valid, last, -_FAR)

    def right_times(self, right: Get) -> Array:
        """The time of each right row."""
        return event_times(right(self.right_time))

    def awaited(self, right: Get) -> Array:
        """The latest left time that matches each right row."""
        return self.right_times(right) - self.low_ms * 1000


Bound = Regular | InWindow | Interval
