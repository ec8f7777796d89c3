"""A join of rows whose times are within bounds of each other."""

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
from penstock.operators.table_operator import Given, limits, stamp
from penstock.state.arrays import Array, fixed_array, fixed_values
from penstock.state.table.bags import Bags

if TYPE_CHECKING:
    from penstock.operators.join.plan import JoinPlan

_CANDIDATES = 4
"""Stored rows per new one up to which they are looked at one by one; beyond, they are sorted."""
_FEW_CANDIDATES = 64
"""Stored rows in all up to which they are looked at one by one."""


class IntervalJoin(ExpiringJoin):
    """Left rows wait until the watermark is past their last time, right rows until it is past the
    last left time that they match."""

    def __init__(self, plan: JoinPlan, slots: int, step_id: str, ordered: bool) -> None:
        assert isinstance(plan.bound, Interval)
        self.bound = plan.bound
        self._outer = plan.how == "left"
        self.exact = (self._outer, False)
        left = plan.left.append(pa.field(MATCHED, pa.bool_())) if self._outer else plan.left
        bags = (Bags("left", left), Bags("right", plan.right))
        super().__init__(plan, slots, step_id, ordered, bags, self.side_columns)

    def due(self, time: EpochTime) -> dict[str, int]:
        """Entries with rows that the watermark is past."""
        return {name: limit for limit in limits(time, "event").values() for name in DUE}

    def _stamps(self, input: int, get: Get) -> Array:
        last = self.bound.last(get) if input == LEFT else self.bound.awaited(get)
        return stamp(last // 1000 + (self.plan.lateness_ms + 1))

    def _gone(
        self, input: int, entries: Array, owner: Array, ids: Array, places: Places | None
    ) -> Iterator[Given]:
        """Left rows of a left join that met no right row."""
        if not self._outer or input == RIGHT:
            return iter(())
        lonely = np.flatnonzero(~fixed_values(self.bags[LEFT].values(MATCHED, ids)))
        columns = self._columns(LEFT, ids[lonely])
        return self._alone(columns, np.arange(len(lonely)), taken(places, lonely))

    def _meet(
        self, input: int, entries: Array, rows: pa.RecordBatch, places: Places | None
    ) -> Iterator[Given]:
        at, ids = self._matches(input, entries, rows)
        yield from self._pairs(input, rows, places, at, ids)
        if self._outer and input == RIGHT:
            mark(self.bags[LEFT], entries[at], ids, True)
        elif self._outer:
            matched = np.bincount(at, minlength=rows.num_rows) > 0
            rows = with_column(rows, MATCHED, fixed_array(matched, pa.bool_()))
        self._store(input, entries, rows)

    def _matches(self, input: int, entries: Array, rows: pa.RecordBatch) -> tuple[Array, Array]:
        """(new row, id of a row of the other side) for all that are within the bounds."""
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
        """The same for large bags, of which only a few rows may match. Where the step is ordered, also
        in the same order: how large bags are may depend on which keys are on a host."""
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
        found, others = order[pairs[input]], pairs[1 - input]
        if self.ordered:
            by_row = np.lexsort((others, found))
            found, others = found[by_row], others[by_row]
        return found, ids[others]


def _within(
    first: Array, last: Array, lefts: Array, times: Array, rights: Array
) -> tuple[Array, Array]:
    """As `interval_pairs`, for rows that are in no order within their group."""
    by_first, by_time = _order(first, lefts), _order(times, rights)
    left, right = kernels.interval_pairs(
        first[by_first], last[by_first], lefts, times[by_time], rights
    )
    return by_first[left], by_time[right]


def _order(values: Array, ends: Array) -> Array:
    """Places by value within each group; mostly they are in order already."""
    if kernels.in_order(values, ends):
        return np.arange(len(values))
    return np.lexsort((values, np.repeat(np.arange(len(ends) - 1), np.diff(ends))))
