"""Timers of keys: what user code sees of them, and how they lie in the step's table.

A key's timers are one cell. Two columns beside it hold the earliest expiry of each kind, so that
the entries that are due are found by one pass over plain numbers. There is no index next to the
table that a restore or a rollback would have to rebuild.
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
"""Expiry in milliseconds since 1970, and the clock that it goes by."""

_KINDS: tuple[TimeKind, ...] = ("processing", "event")
LIMIT = 1 << 62
ALL_TIMES = LIMIT - 1
"""A limit that every timer is before."""
_TYPE = pa.list_(pa.struct([("expiry_ms", pa.int64()), ("time", pa.string())]))


@dataclass(frozen=True)
class Timers:
    """The times of the running epoch, in milliseconds since 1970; the same in every retry of it."""

    processing_time_ms: int
    watermark_ms: int | None
    """None as long as the step has no watermark."""

    def get_current_processing_time_in_ms(self) -> int:
        return self.processing_time_ms

    def get_current_watermark_in_ms(self) -> int:
        """The watermark, or -1 as long as there is none."""
        return -1 if self.watermark_ms is None else self.watermark_ms


@dataclass(frozen=True)
class ExpiredTimer:
    """The timer that `handle_expired_timer` is called for."""

    expiry_ms: int
    kind: TimeKind

    def get_expiry_time_in_ms(self) -> int:
        return self.expiry_ms


class TimerQueue(Variable):
    """All timers of a step, as one more variable: a cell is a sorted tuple of a key's timers."""

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
        """Whether there was such a timer; it is gone now."""
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
        """The timers of the running call's key, the earliest first."""
        timers: tuple[Timer, ...] | None = self.fetch()[self._cells.at]
        return timers or ()

    def due_columns(self, limits: Mapping[TimeKind, int | None]) -> dict[str, int]:
        """The columns that tell who is due, with the greatest value that is; zero is no timer."""
        return {f"__due_{k}": limit + LIMIT for k, limit in limits.items() if limit is not None}

    def due(self, limits: Mapping[TimeKind, int | None]) -> Array:
        """The entries with a timer at or before the limit of its kind."""
        found = [np.empty(0, np.int64)]
        for name, limit in self.due_columns(limits).items():
            first = self._cells.table.column(name)
            found.append(np.flatnonzero((first != 0) & (first <= limit)))
        return self._cells.table.own(np.unique(np.concatenate(found)))

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
    """The earliest processing and event time of each cell, as the columns hold them."""
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
        raise FlowError(f"{kind!r} is no kind of time", hint='write "processing" or "event"')
