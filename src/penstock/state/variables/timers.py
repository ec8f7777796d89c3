"""Timers of keys, and their columns in the step's table.

A key's timers are one cell. Two more columns have the earliest expiry of each kind, so that due entries
are found by a scan of plain numbers. There is no separate index that a restore or a rollback would have to
rebuild.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import index
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from penstock.errors import FlowError
from penstock.state.arrays import Array
from penstock.state.table.columns import Column
from penstock.state.variables.variable import Cells, Variable

TimeKind = Literal["processing", "event"]
Timer = tuple[int, TimeKind]
"""(expiry in Unix milliseconds, kind of time)."""

_KINDS: tuple[TimeKind, ...] = ("processing", "event")
LIMIT = 1 << 62
ALL_TIMES = LIMIT - 1
"""Limit in milliseconds that is after every timer."""
_TYPE = pa.list_(pa.struct([("expiry_ms", pa.int64()), ("time", pa.string())]))


@dataclass(frozen=True)
class Timers:
    """The times of the current epoch, in Unix milliseconds. They are the same in every retry."""

    processing_time_ms: int
    """Time of day of the epoch, in Unix milliseconds."""
    watermark_ms: int | None
    """Watermark of the step, in Unix milliseconds; None if it has none yet."""

    def get_current_processing_time_in_ms(self) -> int:
        """The epoch's time of day, in Unix milliseconds."""
        return self.processing_time_ms

    def get_current_watermark_in_ms(self) -> int:
        """The watermark, in Unix milliseconds; -1 if there is none yet."""
        return -1 if self.watermark_ms is None else self.watermark_ms


@dataclass(frozen=True)
class ExpiredTimer:
    """The timer that `handle_expired_timer` is called for."""

    expiry_ms: int
    """Time for which it was set, in Unix milliseconds."""
    kind: TimeKind

    def get_expiry_time_in_ms(self) -> int:
        """Time for which the timer was set, in Unix milliseconds."""
        return self.expiry_ms


class TimerQueue(Variable):
    """A variable with all timers of a step. A cell is the sorted tuple of a key's timers."""

    kind = "timers"

    def __init__(self, cells: Cells) -> None:
        super().__init__("__timers", cells)
        self.columns = [Column("__timers", _TYPE, restore=_restored)]
        # the earliest expiry plus LIMIT; 0 where there is no timer of the kind
        self.columns += [Column(f"__due_{kind}", pa.int64()) for kind in _KINDS]

    def register(self, expiry_ms: int, kind: TimeKind) -> None:
        timer = _timer(expiry_ms, kind)
        timers = self.timers()
        if timer not in timers:
            self._replace(tuple(sorted((*timers, timer))))

    def delete(self, expiry_ms: int, kind: TimeKind) -> bool:
        """Delete a timer, and return whether it existed."""
        timer = _timer(expiry_ms, kind)
        timers = self.timers()
        if timer not in timers:
            return False
        self._replace(tuple(t for t in timers if t != timer))
        return True

    def expiries(self, kind: TimeKind) -> Iterator[int]:
        _known(kind)
        return iter([expiry for expiry, of in self.timers() if of == kind])

    def timers(self) -> tuple[Timer, ...]:
        """The timers of the current call's key, earliest first."""
        timers: tuple[Timer, ...] | None = self.fetch()[self._cells.at]
        return timers or ()

    def due_columns(self, limits: Mapping[TimeKind, int | None]) -> dict[str, int]:
        """Column of earliest expiries -> highest value that is due. Zero in such a column means no timer."""
        return {f"__due_{k}": limit + LIMIT for k, limit in limits.items() if limit is not None}

    def due(self, limits: Mapping[TimeKind, int | None]) -> Array:
        """Entries with a timer at or before the limit of its kind."""
        due = [np.empty(0, np.int64)]
        for name, limit in self.due_columns(limits).items():
            first = self._cells.table.column(name)
            due.append(np.flatnonzero((first != 0) & (first <= limit)))
        return self._cells.table.own(np.unique(np.concatenate(due)))

    def read(self, entries: Array) -> list[Any]:
        timers: list[Any] = self._cells.table.column("__timers")[entries].tolist()
        return timers

    def write(self, entries: Array, cells: list[Any]) -> None:
        table = self._cells.table
        table.column("__timers")[entries] = np.fromiter(cells, object, len(cells))
        for kind, first in zip(_KINDS, _firsts(cells), strict=True):
            table.column(f"__due_{kind}")[entries] = first

    def present(self, entries: Array) -> Array:
        first = [self._cells.table.column(f"__due_{kind}")[entries] for kind in _KINDS]
        there: Array = (first[0] != 0) | (first[1] != 0)
        return there


def _firsts(cells: list[Any]) -> tuple[list[int], list[int]]:
    """Earliest processing and event time of each cell, as stored in the columns."""
    processing, event = [], []
    for cell in cells:
        by_day = by_event = 0
        for expiry, kind in cell or ():  # sorted: the first of a kind is the earliest
            if kind == "event":
                by_event = by_event or expiry + LIMIT
            else:
                by_day = by_day or expiry + LIMIT
        processing.append(by_day)
        event.append(by_event)
    return processing, event


def _restored(timers: Iterable[dict[str, Any]]) -> tuple[Timer, ...]:
    return tuple((timer["expiry_ms"], timer["time"]) for timer in timers)


def _timer(expiry_ms: int, kind: TimeKind) -> Timer:
    _known(kind)
    expiry = index(expiry_ms)
    if not -LIMIT < expiry < LIMIT:
        raise OverflowError(f"a timer at {expiry} ms since 1970 is out of range")
    return expiry, kind


def _known(kind: TimeKind) -> None:
    if kind not in _KINDS:
        raise FlowError(f"unknown kind of time {kind!r}", hint='use "processing" or "event"')
