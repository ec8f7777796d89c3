"""When entries fall due: a column of times beside the state, found by one pass over plain numbers.

There is no index next to the table that a restore or a rollback would have to rebuild. A column
holds a time in milliseconds, moved so that zero can mean "never" (see `stamp`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
import pyarrow as pa

from penstock.operators.operator import EpochTime
from penstock.state.arrays import Array
from penstock.state.table.columns import Column
from penstock.state.table.table import ColumnTable
from penstock.state.variables.timers import ALL_TIMES, LIMIT

Clock = Literal["event", "processing"]
NEVER = 0


def due_column(clock: Clock) -> Column:
    """The column that says when an entry falls due by the watermark, or by the time of day."""
    return Column(f"__due_{clock}", pa.int64())


def stamp(times_ms: Array) -> Array:
    """What the column holds for times in milliseconds since 1970.

    >>> stamp(np.array([0])) == stamp(np.array([-1])) + 1
    array([ True])
    """
    return np.clip(times_ms, -LIMIT + 1, ALL_TIMES) + LIMIT


def limits(time: EpochTime, *clocks: Clock) -> dict[str, int]:
    """Per column, the greatest value that is due in an epoch; columns without a clock are left out.

    When a bounded input has ended, everything is due by both clocks.
    """
    now: dict[Clock, int | None] = {"event": time.watermark_ms, "processing": time.now_ms}
    if time.final:
        now = {"event": ALL_TIMES, "processing": ALL_TIMES}
    return {f"__due_{c}": at + LIMIT for c in clocks if (at := now[c]) is not None}


def due_entries(table: ColumnTable, limits: Mapping[str, int]) -> Array:
    """The host's own entries that are due, ascending."""
    found: Array = np.zeros(0, np.bool_)
    for name, limit in limits.items():
        when = table.column(name)
        due = (when != NEVER) & (when <= limit)
        found = found | due if len(found) else due
    return table.own(np.flatnonzero(found))
