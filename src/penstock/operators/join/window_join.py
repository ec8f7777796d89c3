"""Joins of rows in the same window. An entry holds both sides' rows of one key and window."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.operators.join.bounds import STARTS, InWindow
from penstock.operators.join.step import LEFT, RIGHT, Columns, JoinOperator
from penstock.operators.join.stored_rows import HASH, EqualRows, with_column
from penstock.operators.operator import EpochTime
from penstock.operators.places import Places, taken
from penstock.operators.table_operator import OutputRows, due_column, due_entries, limits, stamp
from penstock.operators.window.windows import WINDOW_START, time_array
from penstock.state.arrays import Array, fixed_array, fixed_values
from penstock.state.table.bags import Bags

if TYPE_CHECKING:
    from penstock.operators.join.plan import JoinPlan

_DUE = due_column("event")


class WindowJoin(JoinOperator):
    """Operator of a window join. All rows of an entry match each other. The entry is removed when the
    window has ended and its lateness has passed."""

    def __init__(self, plan: JoinPlan, slots: int, step_id: str, ordered: bool) -> None:
        assert isinstance(plan.bound, InWindow)
        self.window = plan.bound.window
        self._time_type = plan.output.field(WINDOW_START).type
        schemas = list(plan.inputs)
        if plan.distinct:
            schemas = [schema.append(pa.field(HASH, pa.int64())) for schema in schemas]
        bags = (Bags("left", schemas[LEFT]), Bags("right", schemas[RIGHT]))
        super().__init__(plan, slots, step_id, ordered, bags, [_DUE])

    def due(self, time: EpochTime) -> dict[str, int]:
        """Windows that have ended, and whose lateness has passed."""
        return limits(time, "event")

    def _expire(self, time: EpochTime) -> Iterator[OutputRows]:
        entries = due_entries(self.table, self.due(time))
        if not len(entries):
            return
        if self.plan.how == "left":
            lonely = entries[self.bags[RIGHT].counts(entries) == 0]
            starts = self.plan.codec.decode(self.table.keys(lonely))[-1]
            owner, ids = self.bags[LEFT].ids(lonely)
            bounds = self._bounds(fixed_values(starts)[owner])
            stamps = self.table.column(_DUE.name)[lonely[owner]]
            places = self._due_places(stamps, lonely[owner], time.final)
            rows = np.arange(len(ids))
            yield from self._alone(self._columns(LEFT, ids), rows, places, bounds)
        self.table.remove(entries)

    def _meet(
        self, input: int, entries: Array, rows: pa.RecordBatch, places: Places | None
    ) -> Iterator[OutputRows]:
        starts = fixed_values(rows.column(STARTS))
        rows = rows.select(self.plan.inputs[input].names)
        equal = self.plan.equal[input]
        if equal is not None:
            rows, fresh = self._unseen(equal, input, entries, rows)
            entries, starts, places = entries[fresh], starts[fresh], taken(places, fresh)
        at, ids = self.bags[1 - input].ids(entries)
        yield from self._pairs(input, rows, places, at, ids, self._bounds(starts[at]))
        self.bags[input].append(entries, rows)
        end_ms = -(-(starts + self.window.size_us) // 1000)
        self.table.column(_DUE.name)[entries] = stamp(end_ms + self.plan.lateness_ms)

    def _unseen(
        self, equal: EqualRows, input: int, entries: Array, rows: pa.RecordBatch
    ) -> tuple[pa.RecordBatch, Array]:
        """The rows without duplicates, also of stored rows of their entry, and their numbers."""
        keyed = with_column(rows, HASH, equal.hashes(rows))
        same = equal.find(self.bags[input], entries, keyed)
        # equal rows of one batch may still be of different windows
        kinds = np.stack([np.append(same.stored, same.new), np.append(same.entries, entries)])
        _, first = np.unique(kinds, axis=1, return_index=True)
        fresh = np.sort(first[first >= len(same.stored)]) - len(same.stored)
        return keyed.take(fixed_array(fresh, pa.int64())), fresh

    def _bounds(self, starts: Array) -> Columns:
        def columns(low: int, high: int) -> list[pa.Array]:
            some = starts[low:high]
            ends = some + self.window.size_us
            return [time_array(some, self._time_type), time_array(ends, self._time_type)]

        return columns
