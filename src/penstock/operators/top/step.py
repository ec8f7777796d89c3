"""The operator of a top-n, which runs on hosts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.operators.changes import signs
from penstock.operators.entry_groups import numbered, pieces
from penstock.operators.operator import Answer, EpochTime
from penstock.operators.ordering import run_starts
from penstock.operators.places import Places
from penstock.operators.table_operator import (
    OutputRows,
    TableOperator,
    answer_of,
    due_column,
    due_entries,
    limits,
    stamp,
)
from penstock.operators.top import kernels
from penstock.operators.top.order import MOST, MixedRows, coarse_codes
from penstock.operators.window.windows import WINDOW_START
from penstock.state.arrays import Array, fixed_array
from penstock.state.table.bags import Bags
from penstock.state.table.columns import Column
from penstock.state.table.table import ColumnTable

if TYPE_CHECKING:
    from penstock.operators.top.plan import TopPlan

_BAR = "__bar"
"""State column with the code of a key's n-th row. Rows with greater codes can be dropped at once."""
_ENTRIES_PER_BATCH = 1 << 16


class TopOperator(TableOperator):
    """Keeps the first rows of each key in a bag, in order."""

    def __init__(self, plan: TopPlan, slots: int, step_id: str, ordered: bool = False) -> None:
        self._bags = Bags("rows", plan.rows)
        self._due = None if plan.clock is None else due_column(plan.clock)
        due = [] if self._due is None else [self._due]
        columns = [self._bags.column, Column(_BAR, pa.int64()), *due]
        super().__init__(plan, ColumnTable(plan.codec, columns, slots), step_id, ordered)
        self._bags.bind(self.table)
        self.plan, self._over = plan, np.empty(0, np.int64)
        self.portable = plan.emit == "close"  # else `close` compares the ids of stored rows

    def due(self, time: EpochTime) -> dict[str, int]:
        """Keys and windows that have ended."""
        return {} if self.plan.clock is None else limits(time, self.plan.clock)

    def begin(self, time: EpochTime) -> None:
        """Begin a round at this time."""
        super().begin(time)
        self._bags.tidy()
        self._over = np.empty(0, np.int64)

    def fire(self) -> Answer:
        """Emit or forget keys that have ended. At the end of the input `close` does that, after all rows."""
        return Answer() if self._time.final else self._finish(self._time)

    def close(self) -> Answer:
        """Emit the changes of the round, unless rows are emitted when their key ends."""
        if self.plan.emit == "close":
            return self._finish(self._time) if self._time.final else Answer()
        touched = self.table.touched()
        touched = touched[self.table.present(touched)]
        each = pieces(touched, _ENTRIES_PER_BATCH)
        return answer_of(out for some in each for out in self._changes(some))

    # -- input

    def _take(
        self, kind: str, batch: pa.RecordBatch, places: Places | None
    ) -> Iterable[OutputRows]:
        plan, first = self.plan, self.plan.order[0]
        keys = plan.codec.encode(batch)
        codes = coarse_codes(batch.column(first.column), first.descending)
        entries = self.table.find(keys)
        if plan.until is not None:
            self._postpone(batch, entries)
        cells, bars = self.table.column(self._bags.column.name), self.table.column(_BAR)
        rows = kernels.contenders(entries, codes, cells, bars, plan.n)
        if not len(rows):
            self._note(keys, entries, places)
            return ()
        everyone, entries = entries, entries[rows]
        unknown = rows[entries < 0]
        if len(unknown):
            entries[entries < 0] = self.table.upsert(keys.take(unknown))
            self._set_due(batch, unknown, entries, rows)
            everyone[rows] = entries
        # also rows that are not kept: which ones are kept may depend on the order of channels
        self._note(keys, everyone, places)
        distinct, counts, groups = numbered(entries)
        if plan.n <= MOST and len(distinct) < len(rows):
            leading = kernels.leaders(groups, counts, codes[rows], plan.n)
            rows, groups = rows[leading], groups[leading]
        self._merge(batch, rows, distinct, groups)
        return ()

    def _merge(self, batch: pa.RecordBatch, rows: Array, entries: Array, groups: Array) -> None:
        """Merge rows of a batch into the bags; row i belongs to entries[groups[i]]."""
        plan, bags = self.plan, self._bags
        owner, ids = bags.ids(entries)
        old = len(ids)
        groups = np.concatenate([owner, groups])
        both = MixedRows(bags, ids, batch, rows)
        order = both.first(plan.n, plan.order, plan.rest, groups, plan.ties)
        # an entry has changed only if one of its new rows is kept
        changed = np.zeros(len(entries), np.bool_)
        changed[groups[order[order >= old]]] = True
        order = order[changed[groups[order]]]
        if not len(order):
            return
        new = order >= old
        row_ids = np.empty(len(order), np.int64)
        row_ids[~new] = ids[order[~new]]
        row_ids[new] = bags.put(batch, rows[order[new] - old])
        changed_entries = entries[changed]
        self.table.touch(changed_entries)
        owner = (np.cumsum(changed) - 1)[groups[order]]
        bags.keep(changed_entries, owner, row_ids)
        self._raise_bars(changed_entries, owner, row_ids)

    def _raise_bars(self, entries: Array, owner: Array, ids: Array) -> None:
        counts = np.bincount(owner, minlength=len(entries))
        full = counts >= self.plan.n
        last = (np.cumsum(counts) - counts + self.plan.n - 1)[full]
        first = self.plan.order[0]
        values = self._bags.values(first.column, ids[last])
        self.table.column(_BAR)[entries[full]] = coarse_codes(values, first.descending)

    def _postpone(self, batch: pa.RecordBatch, entries: Array) -> None:
        """Move the ends of keys to the latest time of their rows, including rows that are not kept."""
        assert self._due is not None
        due, known = stamp(self.plan.over_ms(batch)), np.flatnonzero(entries >= 0)
        rows = known[due[known] > self.table.column(self._due.name)[entries[known]]]
        if len(rows):
            self.table.touch(entries[rows])
            np.maximum.at(self.table.column(self._due.name), entries[rows], due[rows])

    def _set_due(self, batch: pa.RecordBatch, unknown: Array, entries: Array, rows: Array) -> None:
        """Set the due times of new entries."""
        if self._due is None:
            return
        new = np.searchsorted(rows, unknown)
        some = batch.take(fixed_array(unknown, pa.int64()))
        windows = self.plan.windows
        times = self.plan.over_ms(some) if windows is None else windows.due_ms(some[WINDOW_START])
        np.maximum.at(self.table.column(self._due.name), entries[new], stamp(times))

    # -- output

    def _finish(self, time: EpochTime) -> Answer:
        """Forget keys that have ended; with emit="close", emit their rows first."""
        over = due_entries(self.table, self.due(time))
        if not len(over):
            return Answer()
        out = []
        if self.plan.emit == "close":
            assert self._due is not None
            for some in pieces(over, _ENTRIES_PER_BATCH):
                owner, ids = self._bags.ids(some)
                if len(ids):
                    entries, due = some[owner], self.table.column(self._due.name)
                    places = self._due_places(due[entries], entries, time.final)
                    rows = self._output(ids, self._ranks(owner, ids), None)
                    out.append(OutputRows(rows, places))
        self.table.remove(over)
        self._over = over
        return answer_of(out)

    def _changes(self, entries: Array) -> Iterator[OutputRows]:
        """Yield the rows of these entries that the round took back, then those that it put in."""
        old_owner, old = self._bags.before(entries)
        if len(self._over):
            # rows of keys that had ended when the round began are not taken back
            there = ~np.isin(entries[old_owner], self._over)
            old_owner, old = old_owner[there], old[there]
        owner, new = self._bags.ids(entries)
        old_ranks, new_ranks = self._ranks(old_owner, old), self._ranks(owner, new)
        gone = kernels.missing(old, old_ranks, new, new_ranks)
        came = kernels.missing(new, new_ranks, old, old_ranks)
        if gone.any() and self.plan.emit == "changes":
            rows = self._output(old[gone], old_ranks[gone], -1)
            yield OutputRows(rows, self._first(entries[old_owner[gone]]))
        if came.any():
            rows = self._output(new[came], new_ranks[came], 1)
            yield OutputRows(rows, self._first(entries[owner[came]]))

    def _ranks(self, owner: Array, ids: Array) -> Array:
        """The rank of each row among the rows of its owner, from 1; zeros if the plan has no rank."""
        plan = self.plan
        if plan.rank is None or not len(ids):
            return np.zeros(len(ids), np.int64)
        starts = np.ones(len(ids), np.bool_)
        if plan.ties:
            columns = [(self._bags.values(by.column, ids), by.descending) for by in plan.order]
            starts = run_starts(columns, owner, np.arange(len(ids)))
        ranks: Array = kernels.places(owner, starts, plan.ties) + 1
        return ranks

    def _output(self, ids: Array, ranks: Array, sign: int | None) -> pa.RecordBatch:
        columns = self._bags.rows(ids).columns
        if self.plan.windows is not None:
            columns.append(self.plan.windows.ends(columns[-1]))
        if self.plan.rank is not None:
            columns.append(fixed_array(ranks, pa.int64()))
        if self.plan.emit == "changes":
            columns.append(signs(sign or 1, len(ids)))
        return pa.RecordBatch.from_arrays(columns, schema=self.output)
