"""The courier's side of sessions: rows of a key that are near each other go as one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.operators.aggregate.combiner import pack
from penstock.operators.operator import PARTIALS, EpochTime, Outgoing
from penstock.operators.window import session_kernels as kernels
from penstock.operators.window.passing_state import PassingState
from penstock.operators.window.sender import Late, timely
from penstock.state.keys.index import key_index
from penstock.state.table.buffers import Array, fixed_array

if TYPE_CHECKING:
    from penstock.operators.window.plan import SessionPlan

START, END = "__start", "__end"
"""The bounds of a session, on the wire and in bags: microseconds since 1970."""
_ENOUGH = 1 << 18
"""Rows that are made sessions of at once."""


class SessionSender:
    """Makes sessions of its own rows; the host merges them with those that it has. They go in the order
    of their first rows: in a flow that is ordered, that is where they belong. If it does not
    combine, each row is a session, and it is left to the host to find those that are one."""

    def __init__(self, plan: SessionPlan, time: EpochTime) -> None:
        self._plan, self._time, self.combines = plan, time, True
        self._horizon = plan.window.horizon(time, plan.lateness_ms)
        self._rows: list[pa.RecordBatch] = []
        self._times: list[Array] = []
        self.late: Late = []

    def add(self, input: int, batch: pa.RecordBatch) -> Iterator[Outgoing]:
        """Gives nothing before there are many rows: the more, the fewer sessions."""
        batch, times = timely(self._plan, self._time, self._horizon, batch, self.late)
        if batch.num_rows:
            self._rows.append(batch.select(self._plan.inner.raw_names))
            self._times.append(times)
        if sum(map(len, self._times)) >= _ENOUGH:
            yield self._sessions()

    def finish(self) -> tuple[str, Iterable[Outgoing]]:
        """What is left."""
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
        sessions = pa.RecordBatch.from_arrays(bounds + state.combined(), schema=schema)
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
    """The first row of each of so many groups."""
    first = np.empty(count, np.int64)
    first[groups[::-1]] = np.arange(len(groups))[::-1]
    return first
