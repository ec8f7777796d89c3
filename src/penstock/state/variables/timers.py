"""Timers of keys, and their columns in the step's table.

A key's timers are one cell. Two columns have the earliest expiry of each kind, so that due entries are found
by a scan of plain numbers. There is no separate index that a restore or a rollback would have to rebuild. A
third column has the other timers. It is empty for keys with at most one timer of each kind, which is most of
them. In state from before there was this rule it has all timers, which means the same.
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
from penstock.state.keys.codec import Keys
from penstock.state.table.columns import Column
from penstock.state.variables.variable import Cells, Variable, distinct

TimeKind = Literal["processing", "event"]
Timer = tuple[int, TimeKind]
"""(expiry in Unix milliseconds, kind of time)."""

_KINDS: tuple[TimeKind, ...] = ("processing", "event")
LIMIT = 1 << 62
ALL_TIMES = LIMIT - 1
"""Limit in milliseconds that is after every timer."""
DUE = ("__due_processing", "__due_event")
"""Columns with the earliest expiry of each kind, plus `LIMIT`; 0 where there is no timer of the kind."""
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
        self.columns += [Column(name, pa.int64()) for name in DUE]

    def register(self, expiry_ms: int, kind: TimeKind) -> None:
        timer = _timer(expiry_ms, kind)
        timers = self.timers()
        if not timers:
            self._replace((timer,))
        elif timer not in timers:
            self._replace(tuple(sorted((*timers, timer))))

    def delete(self, expiry_ms: int, kind: TimeKind) -> bool:
        """Delete a timer, and return whether it existed."""
        timer = _timer(expiry_ms, kind)
        timers = self.timers()
        if timer not in timers:
            return False
        self._replace(() if len(timers) == 1 else tuple(t for t in timers if t != timer))
        return True

    def change_many(self, keys: Keys, expiries: Array, kind: TimeKind, delete: bool) -> Array:
        """Register or delete a timer for each of these keys. Returns the numbers of those that it leaves to
        single calls: keys that occur more than once, or that have or get two timers of a kind."""
        _known(kind)
        table, count = self._cells.table, len(keys)
        if count and (expiries.min() <= -LIMIT or expiries.max() >= LIMIT):
            return np.arange(count)
        groups, first = distinct(self._cells.codec, keys)
        simple = np.bincount(groups, minlength=len(first))[groups] == 1
        entries, wanted, name = table.find(keys), expiries + LIMIT, DUE[_KINDS.index(kind)]
        known = np.flatnonzero(entries >= 0)
        held = np.zeros(count, np.int64)
        held[known] = table.column(name)[entries[known]]
        simple[known] &= ~self.has_more(entries[known])
        if not delete:
            simple &= (held == 0) | (held == wanted)
        changed = np.flatnonzero(simple & ((held == wanted) if delete else (held == 0)))
        if len(changed) and delete:
            table.touch(entries[changed])
            table.column(name)[entries[changed]] = 0
            self._cells.drop_bare(entries[changed])
        elif len(changed):
            new = table.upsert(keys.take(changed))
            table.column(name)[new] = wanted[changed]
        return np.flatnonzero(~simple)

    def expiries(self, kind: TimeKind) -> Iterator[int]:
        _known(kind)
        return iter([expiry for expiry, of in self.timers() if of == kind])

    def timers(self) -> tuple[Timer, ...]:
        """The timers of the current call's key, earliest first."""
        held = self._held
        if held is None:
            held = self.fetch()
        return held[self._cells.at] or ()

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

    def overdue(self, entries: Array, limits: Mapping[TimeKind, int | None]) -> Array:
        """The earliest timer of each kind, if it is at or before the limit of its kind, else `LIMIT`: one row
        for each kind, one column for each entry."""
        found = np.full((len(_KINDS), len(entries)), LIMIT)
        for at, name in enumerate(DUE):
            highest = self.due_columns(limits).get(name)
            if highest is not None:
                first = self._cells.table.column(name)[entries]
                there = (first != 0) & (first <= highest)
                found[at, there] = first[there] - LIMIT
        return found

    def read(self, entries: Array) -> list[Any]:
        table = self._cells.table
        columns = [table.column(name)[entries].tolist() for name in (*DUE, "__timers")]
        return [
            (((by_day - LIMIT, "processing"),) if by_day else None)
            if not by_event and more is None
            else _united(by_day, by_event, more)
            for by_day, by_event, more in zip(*columns, strict=True)
        ]

    def write(self, entries: Array, cells: list[Any]) -> None:
        table = self._cells.table
        by_day, by_event, more = [], [], {}
        for at, cell in enumerate(cells):
            if not cell:
                by_day.append(0)
                by_event.append(0)
            elif len(cell) == 1 and cell[0][1] == "processing":
                by_day.append(cell[0][0] + LIMIT)
                by_event.append(0)
            else:
                day, event, rest = _divided(cell)
                by_day.append(day)
                by_event.append(event)
                if rest:
                    more[at] = rest
        table.column(DUE[0])[entries], table.column(DUE[1])[entries] = by_day, by_event
        table.column("__timers")[entries] = None
        for at, rest in more.items():
            table.column("__timers")[entries[at]] = rest

    def has_more(self, entries: Array) -> Array:
        """A mask of the entries with more than one timer of a kind."""
        more = self._cells.table.column("__timers")[entries]
        return np.fromiter((timers is not None for timers in more), np.bool_, len(more))

    def read_records(self, entries: Array, records: Array) -> None:
        """Read the timers of entries with at most one of each kind into records: one field per kind, as in
        the columns `DUE`."""
        for kind, name in zip(_KINDS, DUE, strict=True):
            records[kind] = self._cells.table.column(name)[entries]

    def write_records(self, entries: Array, records: Array) -> None:
        """Write records to entries, which have been touched already."""
        for kind, name in zip(_KINDS, DUE, strict=True):
            self._cells.table.column(name)[entries] = records[kind]
        self._cells.table.column("__timers")[entries] = None

    def present(self, entries: Array) -> Array:
        first = [self._cells.table.column(name)[entries] for name in DUE]
        there: Array = (first[0] != 0) | (first[1] != 0)
        return there


def _united(by_day: int, by_event: int, more: tuple[Timer, ...] | None) -> tuple[Timer, ...] | None:
    """The cell of a key: its earliest timers, and the others."""
    timers = set(more or ())
    if by_day:
        timers.add((by_day - LIMIT, "processing"))
    if by_event:
        timers.add((by_event - LIMIT, "event"))
    return tuple(sorted(timers)) or None


def _divided(cell: tuple[Timer, ...]) -> tuple[int, int, tuple[Timer, ...]]:
    """A cell as it is stored: the earliest timer of each kind (see `DUE`), and the others."""
    by_day = by_event = 0
    more: list[Timer] = []
    for timer in cell:  # sorted: the first of a kind is the earliest
        if timer[1] == "event":
            if by_event:
                more.append(timer)
            else:
                by_event = timer[0] + LIMIT
        elif by_day:
            more.append(timer)
        else:
            by_day = timer[0] + LIMIT
    return by_day, by_event, tuple(more)


def _restored(timers: Iterable[dict[str, Any]]) -> tuple[Timer, ...]:
    return tuple((timer["expiry_ms"], timer["time"]) for timer in timers)


def _timer(expiry_ms: int, kind: TimeKind) -> Timer:
    if kind not in _KINDS:
        _known(kind)
    expiry = expiry_ms if type(expiry_ms) is int else index(expiry_ms)
    if not -LIMIT < expiry < LIMIT:
        raise OverflowError(f"a timer at {expiry} ms since 1970 is out of range")
    return expiry, kind


def _known(kind: TimeKind) -> None:
    if kind not in _KINDS:
        raise FlowError(f"unknown kind of time {kind!r}", hint='use "processing" or "event"')
