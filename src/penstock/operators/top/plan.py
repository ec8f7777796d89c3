"""The plan of a top-n, and its senders in couriers, which drop rows that cannot be among the first n."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from penstock.errors import FlowError
from penstock.operators.operator import (
    CHANGE,
    ROWS,
    Emit,
    EpochTime,
    OnError,
    Operator,
    Outgoing,
    Sender,
    Unfit,
)
from penstock.operators.table_operator import Clock
from penstock.operators.top import kernels
from penstock.operators.top import step as top_step
from penstock.operators.top.order import MOST, By, MixedRows, coarse_codes, parse_order
from penstock.operators.window.row_windows import PruningSender, RowPlan, unfit_rows
from penstock.operators.window.windows import Window, event_times, time_field
from penstock.state.arrays import Array, fixed_array
from penstock.state.keys.codec import Keys
from penstock.state.keys.index import key_index
from penstock.state.table.bags import Bags


class TopPlan(RowPlan):
    """The first n rows of each key, or of each key and window, in an order.

    `by` is an order such as "price desc, at"; nulls are smallest. Rows that are equal in `by` are ordered by
    all other columns, ascending, so that the result does not depend on the order of arrival. With `ties`,
    rows that are equal to the n-th in `by` are kept too. `rank` names an output column for the rank of a
    row, from 1; with `ties` equal rows have the same rank.

    `emit` says which rows are emitted, and when:

    - "changes": each epoch, the rows put in and taken back, with a column `_change`.
    - "update", for n = 1 only: each epoch, the new first row of each key that has one.
    - "close": the rows of a key once, when it has ended; then the key is forgotten. A window has ended when
      the watermark has reached its end plus the lateness. With `until`, a column of times, a key has
      ended when the watermark is after the greatest of its times.

    >>> schema = pa.schema([("user", pa.string()), ("score", pa.int64())])
    >>> plan = TopPlan(schema, ["user"], 2, "score desc", rank="place")
    >>> plan.output.names
    ['user', 'score', 'place', '_change']
    """

    step = "top"

    def __init__(
        self,
        input_schema: pa.Schema,
        key_names: Sequence[str],
        n: int,
        by: str | Sequence[str],
        *,
        ties: bool = False,
        rank: str | None = None,
        until: str | None = None,
        window: Window | None = None,
        on: str | None = None,
        lateness_ms: int = 0,
        emit: Emit | None = None,
        nulls: bool = False,
    ) -> None:
        self.n, self.by, self.ties, self.rank, self.until = n, by, ties, rank, until
        clock: Clock | None = None if until is None else "event"
        super().__init__(input_schema, key_names, window, on, lateness_ms, nulls, clock)
        self.emit: Emit = emit or ("close" if self.has_timers else "changes")
        self._check(input_schema)
        more = [pa.field(rank, pa.int64())] if rank is not None else []
        more += [pa.field(CHANGE, pa.int8())] if self.emit == "changes" else []
        self.output = pa.schema([*input_schema, *self.bounds, *more])
        self.order: tuple[By, ...] = parse_order(by, input_schema)
        used = {*self.key_names, *(by.column for by in self.order)}
        self.rest = tuple(By(name) for name in input_schema.names if name not in used)
        """The other columns, which break ties in the order."""

    def __str__(self) -> str:
        by = self.by if isinstance(self.by, str) else ", ".join(self.by)
        ties = " with ties" if self.ties else ""
        within = f" of each window, {self.window}" if self.window is not None else ""
        return f"first {self.n}{ties} by {by}{within}"

    def unfit(self, input: int, batch: pa.RecordBatch) -> Unfit | None:
        """Rows with a null in the key or in a time column."""
        return unfit_rows(self.user_codec, self.key_names, [self.on, self.until], batch)

    def sender(self, time: EpochTime, two_stage: bool = False) -> Sender:
        """Create a sender that drops rows which cannot be among the first n of a key."""
        if two_stage:
            return GatheringTopSender(self, time)
        return TopSender(self, time)

    def operator(
        self, slots: int, step_id: str, on_error: OnError, ordered: bool = False
    ) -> Operator:
        return top_step.TopOperator(self, slots, step_id, ordered)

    def over_ms(self, batch: pa.RecordBatch) -> Array:
        """The watermark, in milliseconds, at which each row's key has ended, by the column `until`."""
        assert self.until is not None
        # the watermark must be after the time, which may be a fraction of a millisecond
        over: Array = event_times(batch.column(self.until)) // 1000 + 1 + self.lateness_ms
        return over

    def _check(self, schema: pa.Schema) -> None:
        closes = self.has_timers
        if self.n < 1:
            raise FlowError(f"n of top is {self.n}", hint="use 1 or more")
        if self.until is not None:
            time_field(schema, self.until, "until")
            if self.window is not None:
                raise FlowError(
                    "top has both a window and until",
                    hint="leave out until: the window ends by itself",
                )
        if self.window is None and (self.on is not None or (self.lateness_ms and not closes)):
            raise FlowError(
                "top has an event time or a lateness, but no window",
                hint="add a window, or leave them out",
            )
        if self.rank is not None and self.rank in (*schema.names, CHANGE):
            raise FlowError(
                f"there is a column {self.rank!r} already", hint="use another name for the rank"
            )
        if self.emit == "close" and not closes:
            raise FlowError(
                "a top without a window never closes",
                hint='use emit="changes", a window, or until="..."',
            )
        if self.emit == "update" and (self.n > 1 or self.ties):
            raise FlowError(
                'top can emit on "update" only with n=1 and without ties',
                hint='use emit="changes": rows that drop out are then taken back',
            )
        if self.emit not in ("close", "update", "changes"):
            raise FlowError(f"unknown emit {self.emit!r}", hint='use "changes" or "close"')


_ENOUGH = 1 << 18
"""Rows that a gathering sender collects before it sends the first rows of each key."""


class TopSender(PruningSender):
    """Drops rows that cannot be among the first n of their key, judged by one batch and the first column
    of the order."""

    def __init__(self, plan: TopPlan, time: EpochTime) -> None:
        super().__init__(plan, time)
        self._plan, self.combines = plan, plan.n <= MOST

    def _cut(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch | None, pa.RecordBatch]:
        if self._plan.until is None or self._time.watermark_ms is None:
            return super()._cut(batch)
        late = self._plan.over_ms(batch) <= self._time.watermark_ms
        if not late.any():
            return None, batch
        mask = fixed_array(late, pa.bool_())
        return batch.filter(mask), batch.filter(fixed_array(~late, pa.bool_()))

    def _needed(self, batch: pa.RecordBatch, keys: Keys) -> Array:
        if batch.num_rows < 2:
            return np.arange(batch.num_rows)
        groups = self._groups(keys)
        return self._with_latest(batch, groups, self._leaders(batch, groups))

    def _groups(self, keys: Keys) -> Array:
        """Keys as numbers, in order of first appearance."""
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
        """These rows, and for each key a row with its greatest `until`, which determines when the key
        ends."""
        if self._plan.until is None or not len(groups):
            return rows
        times = self._plan.over_ms(batch)
        kept: Array = kernels.with_latest(groups, int(groups.max()) + 1, times, rows)
        return kept


class GatheringTopSender(TopSender):
    """Collects many rows, then sends exactly the first n of each key.

    The courier has to sort, but hosts get few rows however many rows a key has.
    """

    def __init__(self, plan: TopPlan, time: EpochTime) -> None:
        super().__init__(plan, time)
        self.combines = True
        self._none = Bags("rows", plan.rows)
        self._gathered: list[pa.RecordBatch] = []

    def add(self, input: int, batch: pa.RecordBatch) -> Iterator[Outgoing]:
        """Yields nothing until enough rows are collected."""
        if not self.combines:
            yield from super().add(input, batch)
            return
        self._gathered.append(self._in_time(input, batch))
        if sum(rows.num_rows for rows in self._gathered) >= _ENOUGH:
            yield self._first()

    def finish(self) -> tuple[str, Iterable[Outgoing]]:
        """End the input. Returns the remaining rows."""
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
