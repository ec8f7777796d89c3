"""Joins of rows whose event times are within bounds of each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.operators.entry_groups import ends_of, grouped
from penstock.operators.join import kernels
from penstock.operators.join.bounds import Get, Interval
from penstock.operators.join.step import DUE, LEFT, RIGHT, ExpiringJoin
from penstock.operators.join.stored_rows import MATCHED, mark, with_column
from penstock.operators.operator import EpochTime
from penstock.operators.places import Places, taken
from penstock.operators.table_operator import OutputRows, limits, stamp
from penstock.state.arrays import Array, fixed_array, fixed_values
from penstock.state.table.bags import Bags

if TYPE_CHECKING:
    from penstock.operators.join.plan import JoinPlan

_CANDIDATES = 4
"""Stored rows per new row up to which all pairs are compared; with more, rows are sorted first."""
_FEW_CANDIDATES = 64
"""Stored rows in total up to which all pairs are compared."""


class IntervalJoin(ExpiringJoin):
    """Operator of an interval join.

    A left row is kept until the watermark is past the latest right time that matches it. A right row is kept
    until the watermark is past the latest left time that matches it.
    """

    def __init__(self, plan: JoinPlan, slots: int, step_id: str, ordered: bool) -> None:
        assert isinstance(plan.bound, Interval)
        self.bound = plan.bound
        self._outer = plan.how == "left"
        self.exact = (self._outer, False)
        left = plan.left.append(pa.field(MATCHED, pa.bool_())) if self._outer else plan.left
        bags = (Bags("left", left), Bags("right", plan.right))
        super().__init__(plan, slots, step_id, ordered, bags, self.side_columns)

    def due(self, time: EpochTime) -> dict[str, int]:
        """Entries with rows that can no longer match."""
        return {name: limit for limit in limits(time, "event").values() for name in DUE}

    def _stamps(self, input: int, get: Get) -> Array:
        last = self.bound.last(get) if input == LEFT else self.bound.awaited(get)
        return stamp(last // 1000 + (self.plan.lateness_ms + 1))

    def _gone(
        self, input: int, entries: Array, owner: Array, ids: Array, places: Places | None
    ) -> Iterator[OutputRows]:
        """Output of a left join's left rows that had no match."""
        if not self._outer or input == RIGHT:
            return iter(())
        lonely = np.flatnonzero(~fixed_values(self.bags[LEFT].values(MATCHED, ids)))
        columns = self._columns(LEFT, ids[lonely])
        return self._alone(columns, np.arange(len(lonely)), taken(places, lonely))

    def _meet(
        self, input: int, entries: Array, rows: pa.RecordBatch, places: Places | None
    ) -> Iterator[OutputRows]:
        at, ids = self._matches(input, entries, rows)
        yield from self._pairs(input, rows, places, at, ids)
        if self._outer and input == RIGHT:
            mark(self.bags[LEFT], entries[at], ids, True)
        elif self._outer:
            matched = np.bincount(at, minlength=rows.num_rows) > 0
            rows = with_column(rows, MATCHED, fixed_array(matched, pa.bool_()))
        self._store(input, entries, rows)

    def _matches(self, input: int, entries: Array, rows: pa.RecordBatch) -> tuple[Array, Array]:
        """All pairs within the bounds: numbers of new rows, and ids of the other side's stored rows."""
        other, bound = self.bags[1 - input], self.bound
        counts = other.counts(entries)
        if int(counts.sum()) > _CANDIDATES * len(entries) + _FEW_CANDIDATES:
            return self._sorted_matches(input, entries, rows, counts)
        at, ids = other.ids(entries)
        stored = self._columns(1 - input, ids)
        if input == LEFT:
            first, last = bound.first(rows.column)[at], bound.last(rows.column)[at]
            times = bound.right_times(stored)
        else:
            first, last = bound.first(stored), bound.last(stored)
            times = bound.right_times(rows.column)[at]
        inside = (first <= times) & (times <= last)
        return (at, ids) if inside.all() else (at[inside], ids[inside])

    def _sorted_matches(
        self, input: int, entries: Array, rows: pa.RecordBatch, counts: Array
    ) -> tuple[Array, Array]:
        """The result of `_matches`, faster for large bags of which few rows match. If the step is
        ordered, the pairs have the same order too: the size of bags may depend on which keys are on a
        host."""
        other, bound = self.bags[1 - input], self.bound
        some = np.flatnonzero(counts)
        groups = grouped(entries[some])
        order = some[groups.order]
        owner, ids = other.ids(groups.entries)
        at = fixed_array(order, pa.int64())

        def new(name: str) -> pa.Array:
            return rows.column(name).take(at)

        stored = self._columns(1 - input, ids)
        stored_ends = ends_of(np.bincount(owner, minlength=len(groups.entries)))
        sides = [(new, groups.ends), (stored, stored_ends)]
        (left, lefts), (right, rights) = sides if input == LEFT else reversed(sides)
        pairs = _within(
            bound.first(left), bound.last(left), lefts, bound.right_times(right), rights
        )
        new_rows, others = order[pairs[input]], pairs[1 - input]
        if self.ordered:
            by_row = np.lexsort((others, new_rows))
            new_rows, others = new_rows[by_row], others[by_row]
        return new_rows, ids[others]


def _within(
    first: Array, last: Array, lefts: Array, times: Array, rights: Array
) -> tuple[Array, Array]:
    """The result of `interval_pairs`, for rows that are not sorted within their group."""
    by_first, by_time = _order(first, lefts), _order(times, rights)
    left, right = kernels.interval_pairs(
        first[by_first], last[by_first], lefts, times[by_time], rights
    )
    return by_first[left], by_time[right]


def _order(values: Array, ends: Array) -> Array:
    """The order of positions by value within each group; cheap if they are in order already."""
    if kernels.in_order(values, ends):
        return np.arange(len(values))
    return np.lexsort((values, np.repeat(np.arange(len(ends) - 1), np.diff(ends))))
