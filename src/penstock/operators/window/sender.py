"""The courier's side of windows.

Tumbling and hopping windows: rows of one key and pane are combined. The combined state is then sent to each
open window of the pane. Key and window together are the key of a host's table, and determine the host.
Sessions: rows of a key that are less than the gap apart are combined into one session.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.operators.aggregate.combiner import CombiningSender
from penstock.operators.aggregate.state import PassingState, pack
from penstock.operators.operator import PARTIALS, EpochTime, Outgoing
from penstock.operators.window import kernels
from penstock.operators.window.pane_combiner import PaneCombiner
from penstock.operators.window.windows import event_times, time_array
from penstock.state.arrays import Array, fixed_array
from penstock.state.keys.index import key_index

if TYPE_CHECKING:
    from penstock.operators.window.plan import WindowPlan


class WindowSender(CombiningSender):
    """Sets late rows aside, and combines the rows of each key and pane."""

    _combiner: PaneCombiner

    def __init__(self, plan: WindowPlan, time: EpochTime, always: bool = False) -> None:
        super().__init__(plan.codec, PaneCombiner(plan, always))
        self._plan, self._time = plan, time
        self._horizon = plan.window.horizon(time, plan.lateness_ms)
        self._names = [n for n in plan.inner.raw_names if n != plan.start_name]
        fields = [plan.inner.inputs[0].field(n) for n in (*self._names, plan.start_name)]
        self._schema = pa.schema(fields)

    def add(self, input: int, batch: pa.RecordBatch) -> Iterator[Outgoing]:
        plan = self._plan
        late, batch, times = plan.window.in_time(batch, plan.on, self._time, self._horizon)
        if late is not None:
            self.late.append((input, late))
        panes = time_array(plan.window.panes(times), plan.time_type)
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


def _are_all(rows: Array, count: int) -> bool:
    """Whether these ascending row numbers are 0 to `count` - 1, each once."""
    return len(rows) == count and (count == 0 or bool((rows == np.arange(count)).all()))


START, END = "__start", "__end"
"""Columns with the bounds of a session, on the wire and in bags: microseconds since 1970."""
_ENOUGH = 1 << 18
"""Rows that are collected before they are grouped into sessions."""


class SessionSender:
    """Groups the rows of one task into sessions, which the host merges with its own.

    Sessions are sent in the order of their first rows, which is their place in an ordered flow. If
    `combines` is False, each row is sent as a session of its own, and the host merges them.
    """

    def __init__(self, plan: WindowPlan, time: EpochTime) -> None:
        self._plan, self._time, self.combines = plan, time, True
        self._horizon = plan.window.horizon(time, plan.lateness_ms)
        self._rows: list[pa.RecordBatch] = []
        self._times: list[Array] = []
        self.late: list[tuple[int, pa.RecordBatch]] = []

    def add(self, input: int, batch: pa.RecordBatch) -> Iterator[Outgoing]:
        """Yields nothing until enough rows are collected: the more rows, the fewer sessions are sent."""
        plan = self._plan
        late, batch, times = plan.window.in_time(batch, plan.on, self._time, self._horizon)
        if late is not None:
            self.late.append((input, late))
        if batch.num_rows:
            self._rows.append(batch.select(plan.inner.raw_names))
            self._times.append(times)
        if sum(map(len, self._times)) >= _ENOUGH:
            yield self._sessions()

    def finish(self) -> tuple[str, Iterable[Outgoing]]:
        """End the input. Returns the remaining sessions."""
        return PARTIALS, [self._sessions()] if self._rows else []

    def _sessions(self) -> Outgoing:
        plan = self._plan
        rows, times = pa.concat_batches(self._rows), np.concatenate(self._times)
        self._rows, self._times = [], []
        index = key_index(plan.codec.layout)
        users = index.upsert(plan.codec.encode(rows))
        groups, owners, starts, ends = self._grouped(users, index.size, times)
        state = PassingState(plan.inner, len(owners))
        state.update(groups, rows)
        bounds = [fixed_array(starts, pa.int64()), fixed_array(ends, pa.int64())]
        schema = pa.schema([(START, pa.int64()), (END, pa.int64()), *plan.inner.partial_schema])
        sessions = pa.RecordBatch.from_arrays(bounds + state.combined(len(owners)), schema=schema)
        keys = index.keys(owners)
        return Outgoing(pack(plan.codec, keys, sessions), keys.hashes)

    def _grouped(self, users: Array, count: int, times: Array) -> tuple[Array, Array, Array, Array]:
        """Each row's session, and each session's user, start and end."""
        gap = self._plan.window.size_us
        if not self.combines:
            return np.arange(len(users)), users, times, times + gap
        sorted_already = bool((times[1:] >= times[:-1]).all())
        order = np.empty(0, np.int64) if sorted_already else np.argsort(times)
        groups, owners, starts, ends = kernels.group_rows(users, count, times, order, gap)
        if not sorted_already:
            by_row = _first_rows(groups, len(owners)).argsort()
            owners, starts, ends = owners[by_row], starts[by_row], ends[by_row]
            groups = by_row.argsort()[groups]
        return groups, owners, starts, ends


def _first_rows(groups: Array, count: int) -> Array:
    """The first row of each of `count` groups."""
    first = np.empty(count, np.int64)
    first[groups[::-1]] = np.arange(len(groups))[::-1]
    return first
