"""The state of user-defined aggregates, kept in typed columns like that of built-in ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import FEWER_ROWS, PenstockError, StepError
from penstock.operators.aggregate.accumulators import Accumulator, State, both, true_rows
from penstock.operators.aggregate.user_functions import Functions, as_results, as_states
from penstock.operators.entry_groups import changes, numbered
from penstock.operators.user_errors import json_text, user_line
from penstock.state.arrays import Array, fixed_array, fixed_values, one_chunk, valid_mask
from penstock.state.table.columns import Column


@dataclass(frozen=True)
class UserState(Accumulator):
    """The state of one user-defined aggregate.

    Each field is a column. One more column has bits: bit 0 is set if the entry has a state, and bit n + 1
    if its field n is not null.
    """

    output: str
    """Name of the aggregate, which is an output column."""
    functions: Functions
    schema: pa.Schema
    """The input columns of the functions."""
    where: str | None = None

    @property
    def name(self) -> str:
        return f"aggregator({self.output})"

    @property
    def inputs(self) -> tuple[str, ...]:
        return (*self.schema.names, *(() if self.where is None else (self.where,)))

    @cached_property
    def fields(self) -> tuple[Column, ...]:
        """The columns of the state's fields."""
        return tuple(Column(f"{self.name} {f.name}", f.type) for f in self.functions.state)

    @cached_property
    def bits(self) -> Column:
        """The column of bits."""
        return Column(f"{self.name} bits", pa.int64())

    @property
    def combined(self) -> tuple[Column, ...]:
        return (*self.fields, self.bits)

    def update(self, state: State, entries: Array, batch: pa.RecordBatch) -> None:
        rows = batch.select(self.schema.names)
        chosen = true_rows(batch, self.where)
        if not self.functions.nulls:
            for column in rows.columns:
                chosen = both(chosen, valid_mask(one_chunk(column)))
        if chosen is not None:
            rows, entries = _some(rows, np.flatnonzero(chosen)), entries[chosen]
        if len(entries):
            distinct, _, groups = numbered(entries)
            self._fold(state, distinct, self._partial(rows, groups, len(distinct)))

    def merge(self, state: State, entries: Array, combined: pa.RecordBatch) -> None:
        bits = fixed_values(one_chunk(combined.column(self.bits.name)))
        there = np.flatnonzero(bits & 1)
        arrays = []
        for number, column in enumerate(self.fields):
            array = one_chunk(combined.column(column.name))
            if column.dtype != object:
                array = fixed_array(fixed_values(array), column.type, _bit(bits, number + 1))
            arrays.append(array)
        states = pa.RecordBatch.from_arrays(arrays, schema=self.functions.state)
        if len(there):
            self._fold(state, *self._reduced(entries[there], _some(states, there)))

    def result(self, state: State, entries: Array) -> pa.Array:
        """The values of the aggregate. An entry without a state has the value of no rows."""
        there = _bit(state(self.bits.name)[entries], 0)
        states = self._read(state, entries[there])
        if not there.all():
            none = pa.RecordBatch.from_arrays(
                [pa.nulls(0, f.type) for f in self.schema], schema=self.schema
            )
            zeros = self._partial(none, np.zeros(0, np.int64), int(np.count_nonzero(~there)))
            both_kinds = np.concatenate([np.flatnonzero(there), np.flatnonzero(~there)])
            states = _some(pa.concat_batches([states, zeros]), np.argsort(both_kinds))
        functions = self.functions
        return self._called(
            2, lambda: as_results(functions.result(states), functions.returns, len(entries))
        )

    def _fold(self, state: State, entries: Array, new: pa.RecordBatch) -> None:
        """Merge new states into those of their entries, which are distinct."""
        there = _bit(state(self.bits.name)[entries], 0)
        if there.any():
            old, at = entries[there], np.flatnonzero(there)
            self._write(state, old, self._merged(self._read(state, old), _some(new, at)))
        self._write(state, entries[~there], _some(new, np.flatnonzero(~there)))

    def _reduced(self, entries: Array, states: pa.RecordBatch) -> tuple[Array, pa.RecordBatch]:
        """Merge the states of each entry, in their order, two by two: the calls are few, however many
        states an entry has. Returns distinct entries and their states."""
        order = np.argsort(entries, kind="stable")
        entries = entries[order]
        if changes(entries).all():
            return entries, _some(states, order)
        states = _some(states, order)
        while True:
            first = changes(entries)
            starts = np.flatnonzero(first)
            second = (np.arange(len(entries)) - starts[np.cumsum(first) - 1]) % 2 == 1
            right = np.flatnonzero(second)
            if not len(right):
                return entries, states
            left = right - 1
            second[left] = True
            alone = np.flatnonzero(~second)
            merged = self._merged(_some(states, left), _some(states, right))
            at = np.concatenate([left, alone])
            order = np.argsort(at)
            states = _some(pa.concat_batches([merged, _some(states, alone)]), order)
            entries = entries[at[order]]

    def _read(self, state: State, entries: Array) -> pa.RecordBatch:
        bits = state(self.bits.name)[entries]
        arrays = [
            column.to_arrow(state(column.name)[entries], _bit(bits, number + 1))
            for number, column in enumerate(self.fields)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.functions.state)

    def _write(self, state: State, entries: Array, states: pa.RecordBatch) -> None:
        bits = np.ones(len(entries), np.int64)
        for number, (column, array) in enumerate(zip(self.fields, states.columns, strict=True)):
            state(column.name)[entries] = column.from_arrow(array)
            valid = valid_mask(array)
            bits |= (1 if valid is None else valid.astype(np.int64)) << (number + 1)
        state(self.bits.name)[entries] = bits

    # -- calls of user code

    def _partial(self, rows: pa.RecordBatch, groups: Array, count: int) -> pa.RecordBatch:
        functions = self.functions

        def made(low: int, high: int) -> pa.RecordBatch:
            some = functions.partial(rows.slice(low, high - low), groups[low:high], count)
            return as_states(some, functions.state, count)

        return self._called(0, lambda: made(0, rows.num_rows), lambda: _to_blame(rows, made))

    def _merged(self, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
        functions = self.functions
        return self._called(
            1, lambda: as_states(functions.merge(left, right), functions.state, left.num_rows)
        )

    def _called(
        self, number: int, call: Callable[[], Any], blame: Callable[[], str] = lambda: ""
    ) -> Any:
        """Make a call of user code. An error names the aggregate, the function, and the row if `blame`
        finds one. `in_step` adds the step."""
        try:
            return call()
        except PenstockError:
            raise
        except Exception as error:
            functions, row = self.functions, "" if isinstance(error, MemoryError) else blame()
            label = functions.labels[number]
            on = f" on row {row}" if row else ""
            raise StepError(
                f"the aggregate {self.output} = {functions.name}({', '.join(self.schema.names)}): "
                f"{label} failed{on}: {type(error).__name__}: {error}",
                hint=FEWER_ROWS
                if isinstance(error, MemoryError)
                else f"look at {user_line(error, _code(functions, number))}; or filter such rows out "
                "before the step",
                row=row,
            ) from error


def _code(functions: Functions, number: int) -> Callable[..., Any]:
    """The user's function behind one of the three calls."""
    code: Callable[..., Any] = functions.code[number - 3]
    return code


def _to_blame(rows: pa.RecordBatch, call: Callable[[int, int], object]) -> str:
    """The text of the row on which a call fails, found by halving the rows; empty if no single row does."""
    low, high = 0, rows.num_rows
    while high - low > 1:
        half = (low + high) // 2
        if _fails(call, low, half):
            high = half
        elif _fails(call, half, high):
            low = half
        else:
            return ""
    return json_text(rows.slice(low, 1).to_pylist()[0]) if high > low else ""


def _fails(call: Callable[[int, int], object], low: int, high: int) -> bool:
    try:
        call(low, high)
    except Exception:
        return True
    return False


def _bit(bits: Array, number: int) -> Array:
    mask: Array = (bits >> number) & 1 != 0
    return mask


def _some(batch: pa.RecordBatch, rows: Array) -> pa.RecordBatch:
    return (
        batch
        if len(rows) == batch.num_rows and _ascending(rows)
        else batch.take(fixed_array(rows.astype(np.int64, copy=False), pa.int64()))
    )


def _ascending(rows: Array) -> bool:
    return bool((rows == np.arange(len(rows))).all())
