"""The courier's side of a top-n: rows that cannot be among the first n are not sent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.operators.operator import ROWS, EpochTime, Outgoing
from penstock.operators.top import kernels
from penstock.operators.top.order import coarse_codes
from penstock.state.buffers import Array, fixed_array
from penstock.state.key_index import key_index
from penstock.state.keys import Keys

if TYPE_CHECKING:
    from penstock.operators.top.plan import TopPlan

MOST = 256
"""For a larger n looking for the first of each key is left to the hosts."""
_JUDGED_FROM = 20_000
"""After so many rows a sender judges whether leaving rows out is worth its while."""
_MOSTLY_KEPT = 0.9


class TopSender:
    """Looks at each batch by itself, and by the first column of the order only.

    Where hardly any row can be left out, it gives up and sends all.
    """

    def __init__(self, plan: TopPlan, time: EpochTime) -> None:
        self._plan, self._time = plan, time
        self._rows = self._kept = 0
        self._looks = plan.n <= MOST
        self.late: list[tuple[int, pa.RecordBatch]] = []

    def add(self, input: int, batch: pa.RecordBatch) -> Iterable[Outgoing]:
        late, batch = self._on_time(batch)
        if late is not None:
            self.late.append((input, late))
        keys = self._plan.codec.encode(batch)
        if not self._looks or batch.num_rows < 2:
            return [Outgoing(batch, keys.hashes)]
        rows = self._leading(batch, keys)
        self._rows += batch.num_rows
        self._kept += len(rows)
        self._looks = self._rows < _JUDGED_FROM or self._kept < self._rows * _MOSTLY_KEPT
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
        plan, first = self._plan, self._plan.order[0]
        index = key_index(plan.codec.layout)
        index.reserve(batch.num_rows // 4)
        groups = index.upsert(keys)
        codes = coarse_codes(batch.column(first.column), first.descending)
        counts = np.bincount(groups, minlength=index.size)
        rows: Array = kernels.leaders(groups, counts, codes, plan.n)
        if plan.until is not None:
            rows = kernels.with_latest(groups, index.size, plan.over_ms(batch), rows)
        return rows
