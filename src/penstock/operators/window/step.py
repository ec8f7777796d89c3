"""The operator of aggregates in tumbling and hopping windows, which runs on hosts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.errors import in_step
from penstock.operators.aggregate.state import AggregateState
from penstock.operators.aggregate.step import AggregateRows
from penstock.operators.operator import PARTIALS, ROWS, Answer, EpochTime
from penstock.operators.places import Places
from penstock.operators.table_operator import (
    OutputRows,
    TableOperator,
    answer_of,
    due_column,
    due_entries,
    limits,
)
from penstock.operators.window import kernels
from penstock.operators.window.windows import event_times, time_array
from penstock.state.arrays import Array, fixed_array
from penstock.state.keys.codec import Keys
from penstock.state.table.columns import Column
from penstock.state.table.table import ColumnTable
from penstock.state.variables.timers import LIMIT

if TYPE_CHECKING:
    from penstock.operators.window.plan import WindowPlan

EMITTED = "__given"
"""State column of windows that stay for late rows: 0 before their row was emitted, then ONCE, and AGAIN as
soon as late rows have changed them."""
ONCE, AGAIN = 1, 2
NONE_DUE = -1
"""Limit at which no entry is due."""


class ClosingOperator(TableOperator, ABC):
    """Base class of window operators. Entries fall due, are emitted and then forgotten.

    In the final round windows close at its end, so that the rows of that round are included.
    """

    def __init__(self, plan: WindowPlan, table: ColumnTable, step_id: str, ordered: bool) -> None:
        super().__init__(plan, table, step_id, ordered)
        self.plan = plan
        self._due = due_column(plan.window.clock).name
        self._limits: dict[str, int] = {}
        self._final = False

    def due(self, time: EpochTime) -> dict[str, int]:
        """Windows that close or are forgotten."""
        return limits(time, self.plan.window.clock)

    def begin(self, time: EpochTime) -> None:
        """Begin a round at this time, which determines the windows that are due."""
        super().begin(time)
        self._tidy()
        self._limits, self._final = self.due(time), time.final

    def fire(self) -> Answer:
        """Emit the windows that have closed, and forget those that take no more rows."""
        with in_step(self.step_id):
            return Answer() if self._final else answer_of(self._closed())

    def close(self) -> Answer:
        """Emit the windows that the round changed (with emit="close", only those that late rows changed).
        When the input has ended, close all windows."""
        touched = self.table.touched()
        touched = touched[self.table.present(touched)]
        out: list[OutputRows] = []
        with in_step(self.step_id):
            if self.plan.emit != "close":
                out += self._changed(touched)
            elif self.plan.stays and not self._final:
                out += self._emitted_again(touched)
            if self._final:
                out += self._closed()
        return answer_of(out)

    @property
    def _limit(self) -> int:
        """The greatest value of the due column that is due in this round."""
        return self._limits.get(self._due, NONE_DUE)

    @abstractmethod
    def _tidy(self) -> None:
        """Free memory that no entry uses any more."""

    @abstractmethod
    def _closed(self) -> list[OutputRows]:
        """Forget windows that are due. Returns their rows with emit="close"."""

    @abstractmethod
    def _changed(self, touched: Array) -> Iterable[OutputRows]:
        """Output of the windows of these entries that the round changed: their current rows, or changes."""

    @abstractmethod
    def _emitted_again(self, touched: Array) -> Iterable[OutputRows]:
        """Output of the windows of these entries that were emitted before and that late rows have changed."""


class WindowOperator(ClosingOperator):
    """Keeps a plan's aggregates per key and window, until the window closes.

    An entry falls due when the window ends, if its row is emitted then, and when its lateness has passed.
    """

    kinds = (PARTIALS, ROWS)

    def __init__(self, plan: WindowPlan, slots: int, step_id: str, ordered: bool = False) -> None:
        self._state = AggregateState(plan.inner)
        extra = [due_column(plan.window.clock)]
        if plan.stays:
            extra.append(Column(EMITTED, pa.int8()))
        table = ColumnTable(plan.codec, [*self._state.columns, *extra], slots)
        super().__init__(plan, table, step_id, ordered)
        self.wire = plan.inner.wire
        self._state.bind(table)
        self._out = AggregateRows(plan.inner, self._state, table, plan.output, self._bounds)
        waits = plan.emit == "close"
        self._first_due_us = plan.window.size_us + (0 if waits else plan.lateness_ms * 1000)

    def _changed(self, touched: Array) -> Iterable[OutputRows]:
        rows = self._out.now if self.plan.emit == "update" else self._out.changes
        return rows(touched, self._first)

    def _emitted_again(self, touched: Array) -> Iterable[OutputRows]:
        again = touched[self.table.column(EMITTED)[touched] == AGAIN]
        yield from self._out.now(again, self._first)
        self.table.touch(again)
        self.table.column(EMITTED)[again] = ONCE

    def _take(
        self, kind: str, batch: pa.RecordBatch, places: Places | None
    ) -> Iterable[OutputRows]:
        keys, entries = self._state.take_in(kind, batch)
        self._put_due(keys, entries)
        self._note(keys, entries, places)
        return ()

    def _tidy(self) -> None:
        self._state.tidy()

    def _put_due(self, keys: Keys, entries: Array) -> None:
        due, stamps = self.table.column(self._due), self._stamps(keys)
        emitted = self.table.column(EMITTED) if self.plan.stays else np.empty(0, np.int8)
        stay = self.plan.lateness_ms
        kernels.put_due(due, emitted, entries, stamps, self._limit, stay, ONCE, AGAIN)

    def _closed(self) -> list[OutputRows]:
        table, plan = self.table, self.plan
        due = due_entries(table, self._limits)
        if plan.emit != "close":
            table.remove(due)
            return []
        if not plan.stays:
            out = list(self._out.now(due, self._closing))
            table.remove(due)
            return out
        out = list(self._out.now(due[table.column(EMITTED)[due] != ONCE], self._closing))
        lasts = self._stamps(table.keys(due)) + plan.lateness_ms
        gone = lasts <= self._limit
        table.remove(due[gone])
        stay = due[~gone]
        table.touch(stay)
        table.column(EMITTED)[stay] = ONCE
        table.column(self._due)[stay] = lasts[~gone]
        return out

    def _closing(self, entries: Array) -> Places | None:
        """Output places of the rows of windows that close."""
        if not self.ordered:
            return None
        return self._due_places(self._stamps(self.table.keys(entries)), entries, self._final)

    def _stamps(self, keys: Keys) -> Array:
        """The times at which the windows of these keys first fall due, in the format of the due column."""
        starts = self._starts(keys)
        out: Array = kernels.closing_stamps(starts, self._first_due_us, LIMIT)
        return out

    def _starts(self, keys: Keys) -> Array:
        values = keys.ints
        if values is None:
            # the start of the window is the last part of a key
            values = kernels.last_words(keys.offsets, keys.data)
        return event_times(fixed_array(values, self.plan.time_type))

    def _bounds(self, entries: Array) -> list[pa.Array]:
        """Key columns, window_start and window_end of these entries."""
        *keys, starts = self.plan.codec.decode(self.table.keys(entries))
        ends = event_times(starts) + self.plan.window.size_us
        return [*keys, starts, time_array(ends, self.plan.time_type)]
