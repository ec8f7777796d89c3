"""Calls of compiled handlers, for many keys at once.

The state of the keys is copied from the table into arrays of records, the kernel (see `compiled`) runs over
them, and what changed is written back. Calls that need more than the records hold are made in Python by the
same code: those that meet a null, have or set two timers of a kind, or raise an exception. So errors, dead
letters and undo are those of any processor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.operators.places import Places
from penstock.operators.process.calls import Caller, NoRows, Results
from penstock.operators.process.compiled import (
    TIMER_RECORD,
    TIMES_RECORD,
    compile_now,
    kernel,
    record,
    row_record,
)
from penstock.operators.process.key_calls import KeyCalls
from penstock.operators.process.timer_calls import Limits, TimerCalls
from penstock.state.arrays import Array, filled_values, fixed_array, indices, physical, ranges
from penstock.state.keys.codec import Keys
from penstock.state.variables.handle import Timers
from penstock.state.variables.timers import LIMIT, TimerQueue
from penstock.state.variables.values import RowForm
from penstock.state.variables.variable import Change

_AT_ONCE = 1 << 18
"""Rows that a kernel gets at once."""
_INTEGERS = {32: pa.int32(), 64: pa.int64()}


def as_numbers(array: pa.Array) -> pa.Array:
    """A column as a compiled handler sees it: timestamps and the like are integers."""
    return array.view(plain_type(array.type))


def plain_type(type: pa.DataType) -> pa.DataType:
    """The type in which a compiled handler sees a column."""
    return _INTEGERS[type.bit_width] if physical(type) and pa.types.is_temporal(type) else type


def _plain(schema: pa.Schema) -> pa.Schema:
    fields = [pa.field(f.name, plain_type(f.type), f.nullable) for f in schema]
    return pa.schema(fields)


class _NumberForm(RowForm):
    """Output rows of a compiled handler that is called in Python."""

    def __init__(self, schema: pa.Schema) -> None:
        super().__init__(_plain(schema))
        self._wanted = schema

    def batch(self, rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
        columns = [
            column.view(field.type)
            for column, field in zip(super().batch(rows).columns, self._wanted, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._wanted)


def as_plain(caller: Caller) -> Caller:
    """A caller that makes the calls of a compiled handler in Python."""
    form = caller.output
    return replace(
        caller,
        output=form if isinstance(form, NoRows) else _NumberForm(form.schema),
        seen=as_numbers,
    )


class _References:
    """Numbers that stand for values without a fixed width. Equal numbers are equal values of a column."""

    def __init__(self) -> None:
        self._columns: list[pa.Array] = []

    def numbers(self, column: pa.Array) -> Array:
        encoded = column.dictionary_encode()
        self._columns.append(encoded.dictionary)
        codes: Array = encoded.indices.fill_null(0).to_numpy().astype(np.int64)
        return codes + (len(self._columns) << 32)

    def column(self, numbers: Array, field: pa.Field) -> pa.Array:
        """The values that these numbers stand for."""
        which, code = numbers >> 32, numbers & 0xFFFFFFFF
        sizes = np.array([0, *map(len, self._columns)])
        if len(numbers) and (
            which.min() < 1 or which.max() >= len(sizes) or (code >= sizes[which]).any()
        ):
            raise TypeError(f"the column {field.name!r} takes {field.type}, not a number")
        used = [self._columns[at - 1].cast(field.type) for at in np.unique(which).tolist()]
        starts = np.zeros(len(sizes), np.int64)
        starts[np.unique(which)] = np.cumsum([0, *map(len, used)])[:-1] if used else 0
        if not used:
            return pa.nulls(0, field.type)
        return pa.concat_arrays(used).take(fixed_array(starts[which] + code, pa.int64()))


class _Runner:
    """Runs a kernel for keys, and writes what changed to the table."""

    def __init__(self, caller: Caller, name: str, input: pa.Schema) -> None:
        self._caller, self._cells, self.output = caller, caller.cells, caller.output.schema
        self.kernel = kernel(caller.processor, caller.handle, name, input, self.output)
        self._keys = record(list(self._cells.codec.schema.types))
        self._states = [
            record(list(state.schema.types), "there", "changed") for _, state in self.kernel.states
        ]
        self._rows = row_record(input, self.kernel.columns)
        self._kept: dict[str, Array] = {}
        no_rows = np.zeros(0, self._rows)
        handler = getattr(type(caller.processor), name)
        compile_now(self.kernel, self._arguments(0, no_rows, *np.zeros((2, 0), np.int64)), handler)

    def in_python(self, keys: Keys, entries: Array, timers: Timers) -> Array:
        """A mask of the keys with these entries, -1 if they have none, whose calls must be in Python."""
        if self.kernel.by_watermark and timers.watermark_ms is None:
            return np.ones(len(entries), np.bool_)
        mask = np.zeros(len(entries), np.bool_)
        known = np.flatnonzero(entries >= 0)
        for _, state in self.kernel.states:
            mask[known] |= state.has_nulls(entries[known])
        if self._caller.handle.timers is not None:
            mask[known] |= self._caller.handle.timers.has_more(entries[known])
        if self._cells.codec.nulls:
            for column in self._cells.codec.decode(keys):
                mask |= filled_values(column.is_null())
        return mask

    def records(self, count: int, columns: Sequence[pa.Array], references: _References) -> Array:
        """Input rows as records."""
        made = self._room("rows", count, self._rows)
        for name, column in zip(self.kernel.columns, columns, strict=True):
            made[name] = _values(column, references)
        return made

    def run(
        self,
        keys: Keys,
        entries: Array,
        timers: Timers,
        rows: Array,
        starts: Array,
        ends: Array,
        by_event: Array | None = None,
        references: _References | None = None,
    ) -> tuple[pa.RecordBatch, Array, Array]:
        """Make one call per key. Returns the output rows, for each the number of the input row or timer that
        caused it, and a mask of the calls that failed and changed nothing. In calls for timers, `by_event`
        says which of a key's timers has expired."""
        references = references or _References()
        cells, count = self._cells, len(keys)
        known = np.flatnonzero(entries >= 0)
        arguments = self._arguments(count, rows, starts, ends)
        _, _, _, names, due, times, _, _, failed, *rest = arguments
        for at, column in enumerate(cells.codec.decode(keys)):
            names[f"f{at}"] = _values(column, references)
        times["processing"], times["event"] = timers.processing_time_ms, timers.watermark_ms or 0
        states = list(zip(self.kernel.states, rest, strict=False))
        for (_, state), records in states:
            _read(state, entries, known, records)
        queue = self._caller.handle.timers
        if queue is not None:
            _read(queue, entries, known, due)
            if by_event is not None:
                due["event"][by_event], due["processing"][~by_event] = 0, 0
                due["changed"] = 1
        made, out, causes = self.kernel.run(*arguments)
        try:
            batch = self._batch(out[:made], references)
        except TypeError:  # a call in Python says for which key and row
            failed[:], batch = 1, self._batch(out[:0], references)
        fine = failed == 0
        changes = []
        for (_, state), records in states:
            ats = np.flatnonzero((records["changed"] != 0) & fine)
            changed = records[ats]
            changes.append(Change(ats, changed["there"] != 0, partial(_write, state, changed)))
        if queue is not None:
            ats = np.flatnonzero((due["changed"] != 0) & fine)
            changed = due[ats]
            filled = (changed["processing"] != 0) | (changed["event"] != 0)
            changes.append(Change(ats, filled, partial(_write, queue, changed)))
        cells.store(keys, entries, changes)
        return batch, causes[: batch.num_rows].copy(), ~fine

    def _arguments(self, count: int, rows: Array, starts: Array, ends: Array) -> tuple[Any, ...]:
        numbers = [getattr(self._caller.processor, name) for name in self.kernel.numbers]
        return (
            rows,
            indices(starts),
            indices(ends),
            self._room("keys", count, self._keys),
            self._room("timers", count, TIMER_RECORD),
            self._room("times", 1, TIMES_RECORD),
            self._room("out", max(count, 16), self.kernel.output),
            self._room("causes", max(count, 16), np.dtype(np.int64)),
            np.zeros(count, np.uint8),
            *(self._room(f"state{at}", count, form) for at, form in enumerate(self._states)),
            *numbers,
        )

    def _room(self, name: str, count: int, form: np.dtype[Any]) -> Array:
        """Zeroed records. Their memory is kept: an exception in compiled code never releases what it used."""
        kept = self._kept.get(name)
        if kept is None or len(kept) < count:
            kept = self._kept[name] = np.zeros(
                max(count, 2 * len(kept) if kept is not None else 16), form
            )
        made = kept[:count]
        made[:] = np.zeros(1, form)
        return made

    def _batch(self, rows: Array, references: _References) -> pa.RecordBatch:
        columns = []
        for at, field in enumerate(self.output):
            values = rows[f"f{at}"].copy()
            if physical(field.type) is None:
                columns.append(references.column(values, field))
            else:
                columns.append(fixed_array(values, field.type))
        return pa.RecordBatch.from_arrays(columns, schema=self.output)


def _read(variable: Any, entries: Array, known: Array, records: Array) -> None:
    if len(known) == len(entries):
        variable.read_records(entries, records)
    elif len(known):
        some = records[known]
        variable.read_records(entries[known], some)
        records[known] = some


def _write(variable: Any, changed: Array, entries: Array, chosen: Array) -> None:
    variable.write_records(entries, changed[chosen])


def _values(column: pa.Array, references: _References) -> Array:
    return references.numbers(column) if physical(column.type) is None else filled_values(column)


class CompiledKeyCalls(KeyCalls):
    """Calls a compiled `handle_input_rows`."""

    def __init__(self, caller: Caller, input: pa.Schema) -> None:
        super().__init__(as_plain(caller), _plain(input))
        self._runner = _Runner(caller, "handle_input_rows", input)
        self._no_rows = caller.output if isinstance(caller.output, NoRows) else None
        self._at_once = _AT_ONCE

    def _piece(self, keys: Keys, batch: pa.RecordBatch, ends: Array, places: Places | None) -> None:
        runner, ends = self._runner, indices(ends)
        starts = np.concatenate([[0], ends[:-1]])
        entries = self._cells.table.find(keys)
        python = runner.in_python(keys, entries, self._timers)
        columns = [batch.column(name) for name in runner.kernel.columns]
        for column in columns:
            if column.null_count:
                nulls = np.concatenate([[0], np.cumsum(filled_values(column.is_null()))])
                python |= nulls[ends] > nulls[starts]
        chosen, references = np.flatnonzero(~python), _References()
        if len(chosen):
            made, causes, failed = runner.run(
                keys.take(chosen), entries[chosen], self._timers,
                runner.records(batch.num_rows, columns, references), starts[chosen], ends[chosen],
                references=references,
            )  # fmt: skip
            python[chosen] = failed
            if made.num_rows and self._no_rows is not None:
                python[chosen] = True  # the call in Python says what is wrong
            elif made.num_rows:
                self._results.batches.append(made)
                if places is not None:
                    self._results.places.append(places.take(causes))
        if python.any():
            self._in_python(np.flatnonzero(python), keys, batch, starts, ends)

    def _in_python(
        self, chosen: Array, keys: Keys, batch: pa.RecordBatch, starts: Array, ends: Array
    ) -> None:
        sizes = ends[chosen] - starts[chosen]
        numbers = ranges(starts[chosen], sizes)
        rows = batch.take(pa.array(numbers))
        rows = pa.RecordBatch.from_arrays(
            [as_numbers(column) for column in rows.columns], schema=self._input.schema
        )
        causes = self._results.causes
        super()._piece(keys.take(chosen), rows, np.cumsum(sizes), None)
        causes[:] = numbers[causes].tolist() if causes else []


class CompiledTimerCalls(TimerCalls):
    """Calls a compiled `handle_expired_timer`. The order of calls for different keys may differ from that of
    their timers."""

    def __init__(self, caller: Caller, queue: TimerQueue) -> None:
        super().__init__(as_plain(caller), queue)
        self._runner = _Runner(caller, "handle_expired_timer", pa.schema([]))

    def expired(self, due: Limits, again: Limits, timers: Timers, ordered: bool = False) -> Results:
        results, queue, runner = Results(), self._queue, self._runner
        entries, limits = queue.due(due), due
        fired = np.full(len(entries), -LIMIT)
        python = [entries[:0]]
        while len(entries):
            overdue = queue.overdue(entries, limits)
            overdue[overdue <= fired] = LIMIT  # they wait for the next round
            expiries = overdue.min(axis=0)
            aside = runner.in_python(self._cells.table.keys(entries), entries, timers)
            if limits is due:
                aside |= (overdue < LIMIT).all(axis=0)
            python.append(entries[aside])
            order = np.argsort(expiries, kind="stable")
            order = order[(~aside & (expiries < LIMIT))[order]]
            entries, expiries, by_event = (
                entries[order], expiries[order], (overdue[1] < overdue[0])[order],
            )  # fmt: skip
            if not len(entries):
                break
            keys = self._cells.table.keys(entries)
            made, causes, failed = runner.run(
                keys,
                entries,
                timers,
                runner.records(0, [], _References()),
                expiries,
                by_event,
                by_event,
            )
            if made.num_rows:
                results.batches.append(made)
                if ordered:
                    results.places.append(Places.of_due(expiries[causes], keys.hashes[causes]))
            python.append(entries[failed])
            entries, fired, limits = entries[~failed], expiries[~failed], again
            still = self._cells.table.present(entries)
            entries, fired = entries[still], fired[still]
        rest = super()._expired(np.concatenate(python), due, again, timers, ordered)
        rest.batches[:0], rest.places[:0] = results.batches, results.places
        return rest
