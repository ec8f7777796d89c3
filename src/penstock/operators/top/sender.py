"""The courier's side of a top-n: rows that cannot be among the first n are not sent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.operators.operator import ROWS, EpochTime, Outgoing
from penstock.operators.top import kernels
from penstock.operators.top.order import coarse_codes
from penstock.operators.top.rows import MixedRows
from penstock.state.keys.codec import Keys
from penstock.state.keys.index import key_index
from penstock.state.table.bags import Bags
from penstock.state.table.buffers import Array, fixed_array

if TYPE_CHECKING:
    from penstock.operators.top.plan import TopPlan

MOST = 256
"""For a larger n looking for the first of each key is left to the hosts."""
_JUDGED_FROM = 20_000
"""After so many rows a sender judges whether leaving rows out is worth its while."""
_MOSTLY_KEPT = 0.9
_ENOUGH = 1 << 18
"""Rows of which a sender that gathers sends the first of each key."""


class TopSender:
    """Looks at each batch by itself, and by the first column of the order only.

    Where hardly any row can be left out, it gives up and sends all.
    """

    def __init__(self, plan: TopPlan, time: EpochTime) -> None:
        self._plan, self._time = plan, time
        self._rows = self._kept = 0
        self.combines = plan.n <= MOST
        self.late: list[tuple[int, pa.RecordBatch]] = []

    def add(self, input: int, batch: pa.RecordBatch) -> Iterable[Outgoing]:
        late, batch = self._on_time(batch)
        if late is not None:
            self.late.append((input, late))
        keys = self._plan.codec.encode(batch)
        if not self.combines or batch.num_rows < 2:
            return [Outgoing(batch, keys.hashes)]
        rows = self._leading(batch, keys)
        self._rows += batch.num_rows
        self._kept += len(rows)
        self.combines = self._rows < _JUDGED_FROM or self._kept < self._rows * _MOSTLY_KEPT
        if len(rows) == batch.num_rows:
            return [Outgoing(batch, keys.hashes)]
        return [Outgoing(batch.take(fixed_array(rows, pa.int64())), keys.hashes[rows])]

    def finish(self) -> tuple[str, Iterable[Outgoing]]:
        return ROWS, ()

    def _on_time(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch | None, pa.RecordBatch]:
        if self._plan.windows is not None:
            return self._plan.windows.cut(batch, self._time)
        if self._plan.until is None or self._time.watermark_ms is None:
            return None, batch
        late = self._plan.over_ms(batch) <= self._time.watermark_ms
        if not late.any():
            return None, batch
        mask = fixed_array(late, pa.bool_())
        return batch.filter(mask), batch.filter(fixed_array(~late, pa.bool_()))

    def _leading(self, batch: pa.RecordBatch, keys: Keys) -> Array:
        groups = self._groups(keys)
        return self._with_latest(batch, groups, self._leaders(batch, groups))

    def _groups(self, keys: Keys) -> Array:
        """The keys, numbered as they come."""
        index = key_index(self._plan.codec.layout)
        index.reserve(len(keys) // 4)
        groups: Array = index.upsert(keys)
        return groups

    def _leaders(self, batch: pa.RecordBatch, groups: Array) -> Array:
        first = self._plan.order[0]
        codes = coarse_codes(batch.column(first.column), first.descending)
        rows: Array = kernels.leaders(groups, np.bincount(groups), codes, self._plan.n)
        return rows

    def _with_latest(self, batch: pa.RecordBatch, groups: Array, rows: Array) -> Array:
        """The rows, and for each key one that says when it is over."""
        if self._plan.until is None or not len(groups):
            return rows
        times = self._plan.over_ms(batch)
        kept: Array = kernels.with_latest(groups, int(groups.max()) + 1, times, rows)
        return kept


class GatheringTopSender(TopSender):
    """Gathers many rows before it looks at them, and sends exactly the first n of each key.

    Costs the courier a sort, and a host the fewest rows however many a key has.
    """

    def __init__(self, plan: TopPlan, time: EpochTime) -> None:
        super().__init__(plan, time)
        self.combines = True
        self._none = Bags("rows", plan.rows)
        self._gathered: list[pa.RecordBatch] = []

    def add(self, input: int, batch: pa.RecordBatch) -> Iterator[Outgoing]:
        """Gives nothing before there are many rows."""
        if not self.combines:
            yield from super().add(input, batch)
            return
        late, batch = self._on_time(batch)
        if late is not None:
            self.late.append((input, late))
        self._gathered.append(batch)
        if sum(rows.num_rows for rows in self._gathered) >= _ENOUGH:
            yield self._first()

    def finish(self) -> tuple[str, Iterable[Outgoing]]:
        """What is left."""
        return ROWS, [self._first()] if self._gathered else []

    def _first(self) -> Outgoing:
        plan = self._plan
        batch = pa.concat_batches(self._gathered)
        self._gathered = []
        keys = plan.codec.encode(batch)
        groups = self._groups(keys)
        rows = np.arange(len(keys))
        if plan.n <= MOST:  # most rows need not be sorted
            rows = self._leaders(batch, groups)
        mixed = MixedRows(self._none, rows[:0], batch, rows)
        rows = rows[mixed.first(plan.n, plan.order, plan.rest, groups[rows], plan.ties)]
        rows = self._with_latest(batch, groups, np.sort(rows))
        return Outgoing(batch.take(fixed_array(rows, pa.int64())), keys.hashes[rows])
