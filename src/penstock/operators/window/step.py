"""The operator that a host runs for aggregates of tumbling and hopping windows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.operators.aggregate.state import AggregateState
from penstock.operators.aggregate.step import AggregateRows
from penstock.operators.operator import PARTIALS, ROWS, Answer, EpochTime
from penstock.operators.places import Places
from penstock.operators.table_operator import (
    Given,
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

GIVEN = "__given"
"""The state column of windows that stay for late rows: 0 before their row was given, then ONCE, and
AGAIN as soon as late rows have changed them."""
ONCE, AGAIN = 1, 2
NONE_DUE = -1
"""No entry is due at or before this."""


class ClosingOperator(TableOperator):
    """What operators of all windows share: entries fall due, and are given and forgotten then.

    What a final round closes is given at its end, so that its own rows count.
    """

    def __init__(self, plan: WindowPlan, table: ColumnTable, step_id: str, ordered: bool) -> None:
        super().__init__(plan, table, step_id, ordered)
        self.plan = plan
        self._due = due_column(plan.window.clock).name
        self._limits: dict[str, int] = {}
        self._final = False

    def due(self, time: EpochTime) -> dict[str, int]:
        """Windows that end, or go."""
        return limits(time, self.plan.window.clock)

    def begin(self, time: EpochTime) -> None:
        """From now on it is decided by this time which windows are late."""
        self._tidy()
        self._firsts.clear()
        self._limits, self._final = self.due(time), time.final

    def fire(self) -> Answer:
        """Give the windows that have closed, and forget those that take no more rows."""
        return Answer() if self._final else answer_of(self._closed())

    def close(self) -> Answer:
        """Give what late rows have changed, or whatever has changed; at the very end, all."""
        touched = self.table.touched()
        touched = touched[self.table.present(touched)]
        given: list[Given] = []
        if self.plan.emit != "close":
            given += self._changed(touched)
        elif self.plan.stays and not self._final:
            given += self._given_again(touched)
        if self._final:
            given += self._closed()
        return answer_of(given)

    @property
    def _limit(self) -> int:
        """What the column of due entries is up to in this round."""
        return self._limits.get(self._due, NONE_DUE)

    @abstractmethod
    def _tidy(self) -> None:
        """Forget what no entry holds any more."""

    @abstractmethod
    def _closed(self) -> list[Given]:
        """Forget what is due, and give it where that is when rows are given."""

    @abstractmethod
    def _changed(self, touched: Array) -> Iterable[Given]:
        """What the round has changed in these entries: as it is now, or as changes."""

    @abstractmethod
    def _given_again(self, touched: Array) -> Iterable[Given]:
        """Windows of these entries that were given before and that late rows have changed."""


class WindowOperator(ClosingOperator):
    """Keeps a plan's aggregates per key and window, until the window closes.

    An entry knows when it falls due: at the window's end if its row is given then, and when the
    last late rows may have come.
    """

    kinds = (PARTIALS, ROWS)

    def __init__(self, plan: WindowPlan, slots: int, step_id: str, ordered: bool = False) -> None:
        self._state = AggregateState(plan.inner)
        extra = [due_column(plan.window.clock)]
        if plan.stays:
            extra.append(Column(GIVEN, pa.int8()))
        table = ColumnTable(plan.codec, [*self._state.columns, *extra], slots)
        super().__init__(plan, table, step_id, ordered)
        self.wire = plan.inner.wire
        self._state.bind(table)
        self._out = AggregateRows(plan.inner, self._state, table, plan.output, self._bounds)
        waits = plan.emit == "close"
        self._first_due_us = plan.window.size_us + (0 if waits else plan.lateness_ms * 1000)

    def _changed(self, touched: Array) -> Iterable[Given]:
        rows = self._out.now if self.plan.emit == "update" else self._out.changes
        return rows(touched, self._first)

    def _given_again(self, touched: Array) -> Iterable[Given]:
        again = touched[self.table.column(GIVEN)[touched] == AGAIN]
        yield from self._out.now(again, self._first)
        self.table.touch(again)
        self.table.column(GIVEN)[again] = ONCE

    def _take(self, kind: str, batch: pa.RecordBatch, places: Places | None) -> Iterable[Given]:
        keys, entries = self._state.take_in(kind, batch)
        self._put_due(keys, entries)
        self._note(keys, entries, places)
        return ()

    def _tidy(self) -> None:
        self._state.tidy()

    def _put_due(self, keys: Keys, entries: Array) -> None:
        due, stamps = self.table.column(self._due), self._stamps(keys)
        given = self.table.column(GIVEN) if self.plan.stays else np.empty(0, np.int8)
        stay = self.plan.lateness_ms
        kernels.put_due(due, given, entries, stamps, self._limit, stay, ONCE, AGAIN)

    def _closed(self) -> list[Given]:
        table, plan = self.table, self.plan
        due = due_entries(table, self._limits)
        if plan.emit != "close":
            table.remove(due)
            return []
        if not plan.stays:
            given = list(self._out.now(due, self._closing))
            table.remove(due)
            return given
        given = list(self._out.now(due[table.column(GIVEN)[due] != ONCE], self._closing))
        lasts = self._stamps(table.keys(due)) + plan.lateness_ms
        gone = lasts <= self._limit
        table.remove(due[gone])
        stay = due[~gone]
        table.touch(stay)
        table.column(GIVEN)[stay] = ONCE
        table.column(self._due)[stay] = lasts[~gone]
        return given

    def _closing(self, entries: Array) -> Places | None:
        """Output places of the rows of windows that close."""
        if not self.ordered:
            return None
        return self._due_places(self._stamps(self.table.keys(entries)), entries, self._final)

    def _stamps(self, keys: Keys) -> Array:
        """When the windows of these keys first fall due, as the column has it."""
        starts = self._starts(keys)
        out: Array = kernels.closing_stamps(starts, self._first_due_us, LIMIT)
        return out

    def _starts(self, keys: Keys) -> Array:
        values = keys.ints
        if values is None:
            # a key ends with its window
            values = kernels.last_words(keys.offsets, keys.data)
        return event_times(fixed_array(values, self.plan.time_type))

    def _bounds(self, entries: Array) -> list[pa.Array]:
        """Key columns, window_start and window_end."""
        *keys, starts = self.plan.codec.decode(self.table.keys(entries))
        ends = event_times(starts) + self.plan.window.size_us
        return [*keys, starts, time_array(ends, self.plan.time_type)]
