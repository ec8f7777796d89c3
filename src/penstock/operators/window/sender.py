"""The courier's side of tumbling and hopping windows.

Rows of one key and pane are combined; the combined state then goes to each window of the pane that
is still open. The key of a host's table, and so the way to the host, is that of key and window.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.operators.aggregate.combiner import pack
from penstock.operators.operator import EpochTime, Outgoing
from penstock.operators.senders import CombiningSender
from penstock.operators.window.pane_combiner import PaneCombiner
from penstock.operators.window.windows import event_times, time_array
from penstock.state.table.buffers import Array, fixed_array

if TYPE_CHECKING:
    from penstock.operators.window.plan import SessionPlan, WindowPlan

Late = list[tuple[int, pa.RecordBatch]]


class WindowSender(CombiningSender):
    """Takes late rows out, finds panes, and combines the rows of each key and pane."""

    _combiner: PaneCombiner

    def __init__(self, plan: WindowPlan, time: EpochTime, always: bool = False) -> None:
        super().__init__(plan.codec, PaneCombiner(plan, always))
        self._plan, self._time = plan, time
        self._horizon = plan.window.horizon(time, plan.lateness_ms)
        self._names = [n for n in plan.inner.raw_names if n != plan.start_name]
        fields = [plan.inner.input_schema.field(n) for n in (*self._names, plan.start_name)]
        self._schema = pa.schema(fields)

    def add(self, input: int, batch: pa.RecordBatch) -> Iterator[Outgoing]:
        batch, times = timely(self._plan, self._time, self._horizon, batch, self.late)
        panes = time_array(self._plan.window.panes(times), self._plan.time_type)
        columns = [*(batch.column(name) for name in self._names), panes]
        return super().add(input, pa.RecordBatch.from_arrays(columns, schema=self._schema))

    def _combined(self) -> Outgoing:
        columns, panes, partials = self._combiner.finish_panes()
        codec = self._plan.codec
        rows, starts = self._plan.window.spread(panes, self._horizon)
        if not _are_all(rows, len(panes)):
            taken = fixed_array(rows, pa.int64())
            columns, partials = [column.take(taken) for column in columns], partials.take(taken)
        columns.append(time_array(starts, self._plan.time_type))
        keys = codec.encode(pa.RecordBatch.from_arrays(columns, schema=codec.schema))
        return Outgoing(pack(codec, keys, partials), keys.hashes)

    def _uncombined(self, rows: pa.RecordBatch) -> Outgoing:
        panes = event_times(rows.column(self._plan.start_name))
        places, starts = self._plan.window.spread(panes, self._horizon)
        if not _are_all(places, len(panes)) or self._plan.window.kind != "tumbling":
            rows = rows.take(fixed_array(places, pa.int64()))
            columns = [*rows.columns[:-1], time_array(starts, self._plan.time_type)]
            rows = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        return Outgoing(rows, self._plan.codec.encode(rows).hashes)


def timely(
    plan: WindowPlan | SessionPlan,
    time: EpochTime,
    horizon: int,
    batch: pa.RecordBatch,
    late: Late,
) -> tuple[pa.RecordBatch, Array]:
    """The rows that are in time and their times; those that are not are put down as late."""
    if plan.on is None:
        return batch, np.full(batch.num_rows, time.now_ms * 1000, np.int64)
    times = event_times(batch.column(plan.on))
    behind = plan.window.late(times, horizon)
    if behind is None:
        return batch, times
    late.append((0, batch.filter(fixed_array(behind, pa.bool_()))))
    return batch.filter(fixed_array(~behind, pa.bool_())), times[~behind]


def _are_all(rows: Array, count: int) -> bool:
    """Whether these ascending places are all of 0 to `count`, each once."""
    return len(rows) == count and (count == 0 or bool((rows == np.arange(count)).all()))
