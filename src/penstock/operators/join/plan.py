"""The plan of a join (its input, state and output), and its sender in couriers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Literal

import numpy as np
import pyarrow as pa

from penstock.errors import FlowError
from penstock.operators.entry_groups import stable_order
from penstock.operators.join.bounds import STARTS, Bound, Interval, InWindow, Regular
from penstock.operators.join.interval_join import IntervalJoin
from penstock.operators.join.regular_join import RegularJoin
from penstock.operators.join.step import LEFT, RIGHT, JoinOperator
from penstock.operators.join.stored_rows import EqualRows
from penstock.operators.join.window_join import WindowJoin
from penstock.operators.operator import (
    BAG,
    CHANGE,
    PARTIALS,
    ROWS,
    EpochTime,
    OnError,
    Outgoing,
    StepPlan,
    Unfit,
)
from penstock.operators.tagged import TaggedSchema
from penstock.operators.window.windows import WINDOW_START, event_times
from penstock.state.arrays import Array, fixed_array, fixed_values
from penstock.state.keys.codec import KeyCodec, Keys
from penstock.state.keys.index import key_index
from penstock.state.table.table import KEY

__all__ = ["How", "InWindow", "Interval", "JoinPlan", "Regular"]

How = Literal["inner", "left"]


class JoinPlan(StepPlan):
    """A join of two inputs on equal keys, within a bound. Partial states do not merge: both rows of a
    pair must be on the same host. But burst workers can pack rows into bags by key (see `BagSender`).

    >>> people = pa.schema([("id", pa.int64()), ("name", pa.string())])
    >>> sales = pa.schema([("id", pa.int64()), ("seller", pa.int64()), ("name", pa.string())])
    >>> plan = JoinPlan(people, sales, (("id", "seller"),), "left", Regular())
    >>> plan.output.names
    ['id', 'name', 'id_right', 'seller', 'name_right', '_change']
    """

    changes: bool
    """Whether the output is a change stream."""
    equal: list[EqualRows | None]
    """Comparison of each side's rows, if duplicates are dropped or rows are taken back; else None."""
    kept: list[list[str]]
    """The output columns of each side, in order."""

    def __init__(
        self,
        left: pa.Schema,
        right: pa.Schema,
        on: tuple[tuple[str, str], ...],
        how: How,
        bound: Bound,
        suffix: str = "_right",
        distinct: bool = False,
        lateness_ms: int = 0,
    ) -> None:
        self.left, self.right, self.on, self.how, self.bound = left, right, tuple(on), how, bound
        self.inputs = left, right
        self.suffix, self.distinct, self.lateness_ms = suffix, distinct, lateness_ms
        self._keys = _key_schema(left, right, self.on)
        self.key_names = self._keys.names
        """The key columns as the left side names them."""
        self.has_timers = not isinstance(bound, Regular) or bound.ttl_ms is not None
        self._check()
        added = bound.check(left, right)
        changing = CHANGE in left.names or CHANGE in right.names
        self.changes = isinstance(bound, Regular) and (how == "left" or changing)
        shared = {right for left, right in self.on if left == right}
        self.kept = [
            [name for name in left.names if name != CHANGE],
            [name for name in right.names if name != CHANGE and name not in shared],
        ]
        self.output = self._output(added)
        # A left join must output left rows without a key. So in a left join null is a key, which no
        # right row has. In a window join the start of the window is part of the key.
        start = [pa.field(WINDOW_START, pa.int64())] if isinstance(bound, InWindow) else []
        self.codec = KeyCodec(pa.schema([*self._keys, *start]), how == "left")
        self.equal = [self._comparison(schema) for schema in self.inputs]

    def __str__(self) -> str:
        return f"{self.how} join, {self.bound}"

    @cached_property
    def whole_keys(self) -> KeyCodec:
        """The codec of the key columns alone, in which nulls are not allowed."""
        return KeyCodec(self._keys)

    @cached_property
    def _null_keys(self) -> KeyCodec:
        return KeyCodec(self._keys, nulls=True)

    @cached_property
    def tagged(self) -> TaggedSchema:
        """The common schema in which rows of both sides are sent to hosts."""
        if not isinstance(self.bound, InWindow):
            return TaggedSchema(self.inputs)
        start = pa.field(STARTS, pa.int64())
        return TaggedSchema((self.left.append(start), self.right.append(start)))

    def unfit(self, input: int, batch: pa.RecordBatch) -> Unfit | None:
        """Rows without the event time that the bound needs, or that cannot be compared."""
        times, equal = self.bound.times, self.equal[input]
        if times is not None and batch.column(times[input]).null_count:
            nulls = fixed_values(batch.column(times[input]).is_null())
            return Unfit(nulls, f"a null in the event time ({times[input]})")
        odd = None if equal is None else equal.odd_rows(batch)
        if odd is not None:
            return Unfit(odd, "a null inside a nested column")
        if self.how == "left" and input == LEFT:
            odd = self._null_keys.null_rows(self.key_rows(input, batch))
        names = ", ".join(self.key_names)
        return None if odd is None else Unfit(odd, f"a null inside the key ({names})")

    def sender(self, time: EpochTime, two_stage: bool = False) -> JoinSender:
        """Create a sender of both sides' rows."""
        return JoinSender(self, time)

    @property
    def offloads(self) -> bool:
        return True

    def partial_sender(self, time: EpochTime) -> BagSender:
        """Create a sender of bags."""
        return BagSender(self, time)

    @cached_property
    def bags(self) -> pa.Schema:
        """Schema of packed bags: a key, and rows of one side as lists of tagged rows."""
        rows = pa.list_(pa.struct(list(self.tagged.schema)))
        return pa.schema([(KEY, self.codec.storage_type), (BAG, rows)])

    def sent_keys(self, batch: pa.RecordBatch) -> Keys:
        """The keys of bags, or of a sent batch, which has rows of one side only."""
        if KEY in batch.schema.names:
            return self.codec.from_storage(batch.column(KEY))
        ((input, rows),) = self.tagged.unpack(batch)
        return self.keys(input, rows)

    def operator(
        self, slots: int, step_id: str, on_error: OnError, ordered: bool = False
    ) -> JoinOperator:
        """Create the host's part. It runs no user code, so `on_error` has no effect."""
        kinds: dict[type, Callable[[JoinPlan, int, str, bool], JoinOperator]]
        kinds = {Regular: RegularJoin, InWindow: WindowJoin, Interval: IntervalJoin}
        return kinds[type(self.bound)](self, slots, step_id, ordered)

    def key_rows(self, input: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The key columns of one side's rows, under their left names."""
        columns = [batch.column(pair[input]) for pair in self.on]
        return pa.RecordBatch.from_arrays(columns, names=self.key_names)

    def keys(self, input: int, batch: pa.RecordBatch) -> Keys:
        """The table keys of one side's rows, as a host receives them."""
        return self.codec.encode(self._table_rows(input, batch))

    def keys_of_both(self, batch: pa.RecordBatch) -> Keys:
        """The table keys of a batch with rows of both sides, in row order."""
        parts = self.tagged.unpack(batch)
        if len(parts) < 2:
            return self.keys(*(parts or [(LEFT, _none(self.tagged.inputs[LEFT]))])[0])
        rows = [self._table_rows(input, part) for input, part in parts]
        mixed = np.concatenate([self.tagged.rows(input, batch) for input, _ in parts])
        in_order = fixed_array(np.argsort(mixed), pa.int64())
        return self.codec.encode(pa.concat_batches(rows).take(in_order))

    def _table_rows(self, input: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = self.key_rows(input, batch)
        if isinstance(self.bound, InWindow):
            rows = rows.append_column(WINDOW_START, batch.column(STARTS))
        return rows

    def _output(self, added: list[pa.Field]) -> pa.Schema:
        fields = [self.left.field(name) for name in self.kept[LEFT]]
        taken = set(self.kept[LEFT])
        for name in self.kept[RIGHT]:
            field = self.right.field(name)
            if name in taken:
                field = field.with_name(name + self.suffix)
            fields.append(field.with_nullable(True) if self.how == "left" else field)
            taken.add(field.name)
        fields += added
        if self.changes:
            fields.append(pa.field(CHANGE, pa.int8()))
        names = [field.name for field in fields]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise FlowError(
                f"the join's output would have two columns {twice!r}",
                hint="rename it on one side before the join, or choose another suffix",
            )
        return pa.schema(fields)

    def _comparison(self, schema: pa.Schema) -> EqualRows | None:
        if not self.distinct and CHANGE not in schema.names:
            return None
        return EqualRows(pa.schema([field for field in schema if field.name != CHANGE]))

    def _check(self) -> None:
        if self.how not in ("inner", "left"):
            raise FlowError(
                f"unknown join type {self.how!r}",
                hint='use "inner" or "left"; for a right join, swap the sides',
            )
        if self.lateness_ms < 0 or (self.lateness_ms and isinstance(self.bound, Regular)):
            raise FlowError(
                f"the join's lateness is {self.lateness_ms} ms",
                hint="use 0 or more with a window or interval join, and none with any other join",
            )
        if self.distinct and not isinstance(self.bound, InWindow):
            raise FlowError(
                "only a window join can drop duplicate rows",
                hint="use distinct() on the inputs of this join instead",
            )
        for side, schema in (("left", self.left), ("right", self.right)):
            if CHANGE in schema.names and not isinstance(self.bound, Regular):
                raise FlowError(
                    f"the {side} side of this window or interval join is a change stream",
                    hint='let the step before emit final rows (emit="close"), or join without a bound',
                )


def _key_schema(left: pa.Schema, right: pa.Schema, on: tuple[tuple[str, str], ...]) -> pa.Schema:
    """The key columns under their left names. Raises FlowError if the two sides do not fit together."""
    if not on:
        raise FlowError("the join has no key", hint="name the columns to join on")
    fields = []
    for names in on:
        pair = []
        for side, schema, name in zip(("left", "right"), (left, right), names, strict=True):
            if schema.names.count(name) != 1:
                raise FlowError(
                    f"the {side} side of the join has no column {name!r}, or more than one",
                    hint=f"its columns are {', '.join(schema.names)}",
                )
            pair.append(schema.field(name))
        if pair[0].type != pair[1].type:
            raise FlowError(
                f"the join compares {names[0]!r} of type {pair[0].type} "
                f"with {names[1]!r} of type {pair[1].type}",
                hint="cast one of them before the join",
            )
        fields.append(pair[0])
    if len({field.name for field in fields}) < len(fields):
        raise FlowError(
            "a left column occurs twice in the join's key",
            hint="compare the right columns with each other before the join",
        )
    return pa.schema(fields)


class JoinSender:
    """Sends each row by its key, once for each of its windows. Rows that cannot match are not sent."""

    combines = False

    def __init__(self, plan: JoinPlan, time: EpochTime) -> None:
        self._plan, self._time = plan, time
        self.late: list[tuple[int, pa.RecordBatch]] = []

    def add(self, input: int, batch: pa.RecordBatch) -> Iterable[Outgoing]:
        """Set late rows aside and return the others to send. Rows with a null in the key match nothing,
        so they are only sent if they are left rows of a left join."""
        batch = self._ready(input, batch)
        if not batch.num_rows:
            return []
        hashes = self._plan.keys(input, batch).hashes
        return [Outgoing(self._plan.tagged.pack(input, batch), hashes)]

    def finish(self) -> tuple[str, Iterable[Outgoing]]:
        """End the input. All rows have been sent by then."""
        return ROWS, ()

    def _ready(self, input: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows to send, once for each of their windows."""
        batch = self._in_time(input, batch)
        if self._plan.how == "inner" or input == 1:
            batch = self._with_key(input, batch)
        if isinstance(self._plan.bound, InWindow):
            batch = self._in_windows(self._plan.bound, input, batch)
        return batch

    def _in_time(self, input: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        bound = self._plan.bound
        if isinstance(bound, Regular) or not batch.num_rows:
            return batch
        times = event_times(batch.column(bound.times[input]))
        late = bound.late(times, self._time, self._plan.lateness_ms)
        if late is None:
            return batch
        self.late.append((input, _where(batch, late)))
        return _where(batch, ~late)

    def _with_key(self, input: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        nulls = self._plan.whole_keys.null_rows(self._plan.key_rows(input, batch))
        return batch if nulls is None else _where(batch, ~nulls)

    def _in_windows(self, bound: InWindow, input: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Repeat each row for each of its open windows, with the start of the window as a column."""
        window = bound.window
        times = event_times(batch.column(bound.times[input]))
        rows, starts = window.spread(times, window.horizon(self._time, self._plan.lateness_ms))
        if window.kind == "hopping":
            batch = batch.take(fixed_array(rows, pa.int64()))
        columns = [*batch.columns, fixed_array(starts, pa.int64())]
        return pa.RecordBatch.from_arrays(columns, schema=self._plan.tagged.inputs[input])


class BagSender(JoinSender):
    """Packs the rows of each key and side into a bag: their host looks up each key once."""

    combines = True

    def __init__(self, plan: JoinPlan, time: EpochTime) -> None:
        super().__init__(plan, time)
        self._rows: tuple[list[pa.RecordBatch], ...] = ([], [])

    def add(self, input: int, batch: pa.RecordBatch) -> Iterable[Outgoing]:
        """Set late rows aside and collect the others."""
        batch = self._ready(input, batch)
        if batch.num_rows:
            self._rows[input].append(batch)
        return []

    def finish(self) -> tuple[str, Iterable[Outgoing]]:
        """End the input. Returns all bags."""
        rows, self._rows = self._rows, ([], [])
        packed = [
            self._packed(input, pa.concat_batches(some)) for input, some in enumerate(rows) if some
        ]
        return PARTIALS, packed

    def _packed(self, input: int, rows: pa.RecordBatch) -> Outgoing:
        plan = self._plan
        index = key_index(plan.codec.layout)
        groups = index.upsert(plan.keys(input, rows))
        keys = index.keys(np.arange(index.size))
        order, bounds = stable_order(groups, index.size)
        tagged = plan.tagged.pack(input, rows.take(fixed_array(order, pa.int64())))
        offsets = fixed_array(bounds.astype(np.int32), pa.int32())
        bags = pa.ListArray.from_arrays(
            offsets, tagged.to_struct_array(), type=plan.bags.field(BAG).type
        )
        columns = [plan.codec.to_storage(keys), bags]
        return Outgoing(pa.RecordBatch.from_arrays(columns, schema=plan.bags), keys.hashes)


def _where(batch: pa.RecordBatch, mask: Array) -> pa.RecordBatch:
    return batch.take(fixed_array(np.flatnonzero(mask), pa.int64()))


def _none(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema)
