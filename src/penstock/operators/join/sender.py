"""The courier's part of a join: rows of both sides on their way to the host of their key."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.operators.join.bounds import InWindow, late_rows
from penstock.operators.operator import ROWS, EpochTime, Outgoing
from penstock.operators.window.windows import event_times
from penstock.state.table.buffers import Array, fixed_array

if TYPE_CHECKING:
    from penstock.operators.join.plan import JoinPlan


class JoinSender:
    """Sends each row by its key, and once for each window; rows that cannot match stay behind."""

    combines = False

    def __init__(self, plan: JoinPlan, time: EpochTime) -> None:
        self._plan, self._time = plan, time
        self.late: list[tuple[int, pa.RecordBatch]] = []

    def add(self, input: int, batch: pa.RecordBatch) -> Iterable[Outgoing]:
        """Late rows are set aside; a null in the key matches nothing, so only a left join's left
        rows go on with one."""
        batch = self._in_time(input, batch)
        if self._plan.how == "inner" or input == 1:
            batch = self._with_key(input, batch)
        if isinstance(self._plan.bound, InWindow):
            batch = self._in_windows(self._plan.bound, input, batch)
        if not batch.num_rows:
            return []
        hashes = self._plan.keys(input, batch).hashes
        return [Outgoing(self._plan.tagged.pack(input, batch), hashes)]

    def finish(self) -> tuple[str, Iterable[Outgoing]]:
        """Everything has been sent."""
        return ROWS, ()

    def _in_time(self, input: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        bound, lateness_ms = self._plan.bound, self._plan.lateness_ms
        names = bound.times()
        if names is None or not batch.num_rows:
            return batch
        times = event_times(batch.column(names[input]))
        if isinstance(bound, InWindow):
            late = bound.window.late(times, bound.window.horizon(self._time, lateness_ms))
        else:
            late = late_rows(times, self._time, lateness_ms)
        if late is None:
            return batch
        self.late.append((input, _where(batch, late)))
        return _where(batch, ~late)

    def _with_key(self, input: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        plan = self._plan
        columns = plan.key_columns(input, batch)
        keys = pa.RecordBatch.from_arrays(columns, schema=plan.whole_keys.schema)
        nulls = plan.whole_keys.null_rows(keys)
        return batch if nulls is None else _where(batch, ~nulls)

    def _in_windows(self, bound: InWindow, input: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows once for each window that is open, with its start beside them."""
        window = bound.window
        times = event_times(batch.column((bound.left_time, bound.right_time)[input]))
        rows, starts = window.spread(times, window.horizon(self._time, self._plan.lateness_ms))
        if window.kind == "hopping":
            batch = batch.take(fixed_array(rows, pa.int64()))
        columns = [*batch.columns, fixed_array(starts, pa.int64())]
        return pa.RecordBatch.from_arrays(columns, schema=self._plan.tagged.inputs[input])


def _where(batch: pa.RecordBatch, mask: Array) -> pa.RecordBatch:
    return batch.take(fixed_array(np.flatnonzero(mask), pa.int64()))
