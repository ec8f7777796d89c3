"""Partial states of processors that merge: couriers and burst workers make them, hosts merge them.

A partial state is what a processor's handler makes of some rows of a key, beginning with no state. It
travels as a row of the step's table, timers included. If the handler fails, the rows travel instead, in the
column `UNHANDLED`: their host calls the handler, which fails there or sets the bad row aside as usual.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Protocol

import numpy as np
import pyarrow as pa

from penstock.errors import FlowError, StepError
from penstock.operators.entry_groups import ends_of, pieces, stable_order
from penstock.operators.operator import PARTIALS, ROWS, Answer, EpochTime, Outgoing
from penstock.operators.places import Places, taken
from penstock.operators.process.calls import AT_ONCE, Caller, Results, collector_paused
from penstock.operators.process.processor import KeyedProcessor
from penstock.operators.table_operator import rows_of_lists
from penstock.operators.user_errors import json_text
from penstock.state.arrays import Array, fixed_array, one_chunk
from penstock.state.keys.codec import KeyCodec, Keys
from penstock.state.table.table import KEY, ColumnTable
from penstock.state.variables.handle import StateHandle, Timers
from penstock.state.variables.variable import distinct

UNHANDLED = "__unhandled"
"""Column with the rows of a key for which the handler was not called."""
_ENOUGH = 1 << 16
"""Rows that are collected before partial states are made of them."""


def unhandled_field(input: pa.Schema) -> pa.Field:
    """The field of column `UNHANDLED` for rows of this schema."""
    return pa.field(UNHANDLED, pa.list_(pa.struct(list(input))))


class RowsOperator(Protocol):
    """The part of a processor's operator that makes partial states."""

    table: ColumnTable

    def renew(self) -> None:
        """Forget all state."""
        ...

    def begin(self, time: EpochTime) -> None: ...

    def apply(self, kind: str, batches: list[pa.RecordBatch]) -> Answer: ...


class PartialSender:
    """Calls the processor in the courier or burst worker, and sends partial states.

    `operator` returns an operator of the step for use until the next call.
    """

    def __init__(
        self, codec: KeyCodec, operator: Callable[[], RowsOperator], time: EpochTime
    ) -> None:
        self.combines = True
        self.late: list[tuple[int, pa.RecordBatch]] = []
        self._codec, self._operator, self._time = codec, operator, time
        self._rows: list[pa.RecordBatch] = []

    def add(self, input: int, batch: pa.RecordBatch) -> Iterator[Outgoing]:
        """Yields nothing until enough rows are collected: the more rows, the fewer states are sent."""
        if not self.combines:
            yield Outgoing(batch, self._codec.encode(batch).hashes)
            return
        if batch.num_rows:
            self._rows.append(batch)
        if sum(rows.num_rows for rows in self._rows) >= _ENOUGH:
            yield self._made()

    def finish(self) -> tuple[str, Iterable[Outgoing]]:
        """End the input. Returns the remaining partial states."""
        if not self.combines:
            return ROWS, ()
        return PARTIALS, [self._made()] if self._rows else []

    def _made(self) -> Outgoing:
        rows, self._rows = pa.concat_batches(self._rows), []
        every = self._codec.encode(rows)
        groups, first = distinct(self._codec, every)
        keys, operator = every.take(first), self._operator()
        operator.renew()
        operator.begin(self._time)
        unhandled = None
        try:
            operator.apply(ROWS, [rows])
            entries = operator.table.find(keys)
            entries = entries[entries >= 0]
        except StepError:
            operator.renew()
            entries = operator.table.upsert(keys)
            unhandled = _lists(rows, groups, len(keys))
        exported = operator.table.export(entries)
        field = unhandled_field(rows.schema)
        column = pa.nulls(len(entries), field.type) if unhandled is None else unhandled
        arrays = [*map(one_chunk, exported.columns), column]
        batch = pa.RecordBatch.from_arrays(arrays, schema=exported.schema.append(field))
        return Outgoing(batch, operator.table.keys(entries).hashes)


def _lists(rows: pa.RecordBatch, groups: Array, count: int) -> pa.Array:
    """The rows of each group, as lists of structs; row i belongs to groups[i]."""
    order = np.argsort(groups, kind="stable")
    ends = ends_of(np.bincount(groups, minlength=count)).astype(np.int32)
    structs = rows.take(fixed_array(order, pa.int64())).to_struct_array()
    type = unhandled_field(rows.schema).type
    return pa.ListArray.from_arrays(fixed_array(ends, pa.int32()), structs, type=type)


class Merger:
    """Merges partial states into a host's, by the processor's `merge`.

    `other` is a second copy of the processor, whose state is the partial one.
    """

    def __init__(
        self, caller: Caller, other: KeyedProcessor, handle: StateHandle, input: pa.Schema
    ) -> None:
        self._caller, self._cells, self._input = caller, caller.cells, input
        self._other, self._handle = other, handle

    def merge(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        """Merge the states of a batch. Returns the rows for which the handler is still to be called."""
        codec = self._cells.codec
        keys = codec.from_storage(batch.column(KEY))
        states = batch.drop_columns([UNHANDLED])
        groups, _ = distinct(codec, keys)
        for rows in _rounds(groups):
            for some in pieces(rows, AT_ONCE):
                taken = fixed_array(some, pa.int64())
                with collector_paused():
                    self._merge(keys.take(some), states.take(taken))
        lists = batch.column(UNHANDLED)
        if lists.null_count == len(lists):
            return None
        return rows_of_lists(lists, self._input)

    def _merge(self, keys: Keys, states: pa.RecordBatch) -> None:
        """Merge the states of distinct keys."""
        cells, theirs, caller = self._cells, self._handle.cells, self._caller
        table = self._handle.make_table(1)
        table.load(pa.Table.from_batches([states]))
        theirs.now_ms, entries = cells.now_ms, table.find(keys)
        filled = theirs.filled(entries).tolist()
        method = caller.processor.merge
        with cells.work(keys, cells.table.find(keys)), theirs.work(keys, entries):
            for at, there in enumerate(filled):
                if not there:
                    continue
                cells.begin(at)
                theirs.begin(at)
                self._unite_timers()
                try:
                    method(self._other)
                except Exception as error:
                    key = json_text(caller.names(keys.take(np.array([at])))[0])
                    raise caller.failure(method, key, "a partial state", "", error) from error

    def _unite_timers(self) -> None:
        ours, theirs = self._caller.handle.timers, self._handle.timers
        if ours is not None and theirs is not None:
            for expiry_ms, kind in theirs.timers():
                ours.register(expiry_ms, kind)


def _rounds(groups: Array) -> Iterator[Array]:
    """Row numbers in rounds: each group has at most one row in a round, its first row in the first."""
    order, bounds = stable_order(groups, int(groups.max()) + 1 if len(groups) else 0)
    sizes = np.diff(bounds)
    for number in range(int(sizes.max(initial=0))):
        yield np.sort(order[bounds[:-1][sizes > number] + number])


class MergedCalls:
    """Calls `handle_merged`, for keys whose state has changed."""

    def __init__(self, caller: Caller) -> None:
        self._caller, self._method = caller, caller.processor.handle_merged

    def rows(self, entries: Array, timers: Timers, places: Places | None) -> Results:
        """Make one call per entry. With their places, the results have places too."""
        caller, results = self._caller, Results()
        cells = caller.cells
        for at_once in pieces(np.arange(len(entries)), AT_ONCE):
            some = entries[at_once]
            keys = cells.table.keys(some)
            with collector_paused(), cells.work(keys, some):
                for at, key in enumerate(caller.names(keys)):
                    try:
                        rows = caller.attempt(at, partial(self._method, key, timers))
                    except Exception as error:
                        whose = json_text(key)
                        if not caller.sets_aside or isinstance(error, FlowError):
                            raise caller.failure(self._method, whose, "", None, error) from error
                        results.dead.append(caller.letter(whose, "{}", error))
                        continue
                    results.rows += rows
                    if places is not None:
                        results.causes += [at] * len(rows)
            results.flush(caller.output, taken(places, at_once))
        return results
