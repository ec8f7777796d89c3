"""State variables of a step, and their cells for the current keys.

The keys of a channel are looked up in the table once. When user code first uses a variable, its cells (one
per key) are read from its columns, for all keys together. They are Python values while user code runs.
When all keys are done, the changed cells are written back together. Until then the table is unchanged, so
that a failure only drops the cells. Variables keep the cells that calls replaced, so that a single call can
be undone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import FlowError
from penstock.state.arrays import Array
from penstock.state.keys.codec import KeyCodec, Keys
from penstock.state.table.columns import Column
from penstock.state.table.table import ColumnTable


@dataclass(frozen=True)
class Change:
    """Changes of one variable, for some of the current keys."""

    ats: Array
    """Numbers of the keys."""
    filled: Array
    """A mask of the keys for which the variable is not empty now."""
    write: Callable[[Array, Array], None]
    """Writes to these entries the changes with these numbers, as indices of `ats`."""


class Variable:
    """One declared state variable: some columns of the step's table, and the cells of the current keys.

    An empty cell is None. Cells are replaced, never changed in place, except by the call that created
    them.
    """

    kind = ""
    columns: list[Column]

    def __init__(self, name: str, cells: Cells) -> None:
        self.name = name
        self._cells = cells
        self._held: list[Any] | None = None
        self._call = -1
        self._changed: list[int] = []
        """Numbers of the keys whose cells calls have replaced, and in `_before` those cells."""
        self._before: list[Any] = []

    def read(self, entries: Array) -> list[Any]:
        """Read the cells of these entries; None where a cell is empty or has expired."""
        raise NotImplementedError

    def write(self, entries: Array, cells: list[Any]) -> None:
        """Write cells to the columns of these entries, which have been touched already."""
        raise NotImplementedError

    def present(self, entries: Array) -> Array:
        """A mask of the entries where this variable is not empty."""
        raise NotImplementedError

    def purge(self) -> Array:
        """Remove everything that has expired, and return the entries that changed."""
        return np.empty(0, np.int64)

    def tidy(self) -> None:
        """Release memory of values that are not needed any more, if that is worth it."""

    def next_end_ms(self) -> int:
        """A time in milliseconds before which no cell expires, valid right after `purge`, also for cells that
        are added later."""
        return sys.maxsize

    def fetch(self) -> list[Any]:
        """The cells of the current keys."""
        if self._held is None:
            self._held = self._cells.fetch(self)
        return self._held

    def _replace(self, cell: Any) -> None:
        """Replace the cell of the current call's key."""
        cells, held = self._cells, self._held
        if held is None:
            held = self.fetch()
        if self._call != cells.call:
            self._changed.append(cells.at)
            self._before.append(held[cells.at])
            self._call = cells.call
        held[cells.at] = cell

    def undo(self, call: int) -> None:
        """Restore the cell that the newest call replaced, if this is its number."""
        if self._call == call:
            self._call = -1
            self.fetch()[self._changed.pop()] = self._before.pop()

    def changes(self) -> Change | None:
        """The cells that calls have replaced; None if there are none."""
        if not self._changed:
            return None
        ats, held = np.array(self._changed, np.int64), self.fetch()
        if not (ats[1:] > ats[:-1]).all():  # calls are in order of keys, unless they are for timers
            ats = np.unique(ats)
        if len(ats) < len(held):
            held = [held[at] for at in ats.tolist()]
        cells = [cell or None for cell in held]
        filled = np.fromiter(map(bool, cells), np.bool_, len(cells))
        return Change(ats, filled, partial(self._write_some, cells))

    def _write_some(self, cells: list[Any], entries: Array, chosen: Array) -> None:
        if len(chosen) < len(cells):
            cells = [cells[at] for at in chosen.tolist()]
        self.write(entries, cells)

    def forget(self) -> None:
        self._held, self._call = None, -1
        self._changed.clear()
        self._before.clear()


class StateVariable(Variable):
    """A variable with a column of bits, which are 0 where it is empty, and an optional TTL.

    The time to live starts at the last update, by the epochs' time of day. A column has the time
    at which the cell, or the first part of it, expires.
    """

    def __init__(self, name: str, cells: Cells, ttl_ms: int | None, bits: pa.DataType) -> None:
        super().__init__(name, cells)
        self.ttl_ms = ttl_ms
        self._bits = f"{name}.__bits"
        self._expires = f"{name}.__expires_ms"
        self.columns = [Column(self._bits, bits)]
        if ttl_ms is not None:
            self.columns.append(Column(self._expires, pa.int64()))

    def exists(self) -> bool:
        """Whether the key has a value here."""
        return bool(self.fetch()[self._cells.at])

    def clear(self) -> None:
        """Remove the key's value."""
        if self.fetch()[self._cells.at] is not None:
            self._replace(None)

    def present(self, entries: Array) -> Array:
        there: Array = self._cells.table.column(self._bits)[entries] != 0
        return there

    def purge(self) -> Array:
        if self.ttl_ms is None:
            return super().purge()
        table = self._cells.table
        over = (table.column(self._bits) != 0) & (table.column(self._expires) <= self._cells.now_ms)
        changed = table.own(np.flatnonzero(over))
        if len(changed):
            table.touch(changed)
            self.write(changed, self.read(changed))
        return changed

    def next_end_ms(self) -> int:
        if self.ttl_ms is None:
            return super().next_end_ms()
        now = self._cells.now_ms
        first = self._cells.table.least(self._expires, now)
        return now + self.ttl_ms if first is None else min(first, now + self.ttl_ms)

    def _expired(self, entries: Array) -> Array:
        """A mask of the entries whose cell, or a part of it, has expired."""
        table, now = self._cells.table, self._cells.now_ms
        if self.ttl_ms is None:
            return np.zeros(len(entries), np.bool_)
        over: Array = table.column(self._expires)[entries] <= now
        return over & self.present(entries)


class Cells:
    """The current keys and the current call."""

    def __init__(self, codec: KeyCodec) -> None:
        self.codec = codec
        self.variables: list[Variable] = []
        self.now_ms = 0
        self.at = 0
        """Position of the current call's key among the current keys."""
        self.call = 0
        self._table: ColumnTable | None = None
        self._keys: Keys | None = None
        self._entries: Array = np.empty(0, np.int64)
        self._batch: pa.RecordBatch | None = None
        self._batch_keys: Keys | None = None
        self._checked: tuple[pa.RecordBatch, Keys] | None = None
        """The last rows that user code named in the current batch, and their keys."""

    @property
    def table(self) -> ColumnTable:
        if self._table is None:
            raise FlowError(
                "state was used before the step began",
                hint="only declare state in init(), and use it when rows or timers are handled",
            )
        return self._table

    @property
    def declared(self) -> bool:
        """Whether all variables are declared and the table exists."""
        return self._table is not None

    def make_table(self, slots: int) -> ColumnTable:
        columns = [column for variable in self.variables for column in variable.columns]
        self._table = ColumnTable(self.codec, columns, slots)
        return self._table

    @contextmanager
    def work(self, keys: Keys, entries: Array) -> Iterator[None]:
        """Run calls for these keys inside. Their changes are stored at the end, or dropped on an error."""
        self._keys, self._entries = keys, entries
        try:
            yield
            self._store()
        finally:
            self._keys = None
            for variable in self.variables:
                variable.forget()

    def begin(self, at: int) -> int:
        """Begin a call for key number `at`, and return its number."""
        self.at = at
        self.call += 1
        return self.call

    def undo(self, call: int) -> None:
        """Undo the newest call, which has this number."""
        for variable in self.variables:
            variable.undo(call)

    def fetch(self, variable: Variable) -> list[Any]:
        if self._keys is None:
            inside = self._batch is not None
            raise FlowError(
                f"the state {variable.name!r} was used outside of a call for a key",
                hint="write `with handle.for_key(key):`, or use get_many and update_many"
                if inside
                else "use state only where rows or timers of a key are handled",
            )
        held: list[Any] = [None] * len(self._keys)
        known = np.flatnonzero(self._entries >= 0)
        if len(known) == len(held):
            return variable.read(self._entries) if len(held) else held
        if len(known):
            for at, cell in zip(known.tolist(), variable.read(self._entries[known]), strict=True):
                held[at] = cell
        return held

    def _store(self) -> None:
        """Write the changed cells to the table, and remove entries that are now empty."""
        changes = [change for v in self.variables if (change := v.changes()) is not None]
        if changes:
            assert self._keys is not None
            self.store(self._keys, self._entries, changes)

    def store(self, keys: Keys, entries: Array, changes: Sequence[Change]) -> None:
        """Write changes for some of these keys to the table. Creates entries for keys that have none, and
        removes entries that are now empty."""
        entries, touched = entries.copy(), np.zeros(len(entries), np.bool_)
        new = touched.copy()
        for change in changes:
            touched[change.ats] = True
            new[change.ats] |= change.filled
        existing = entries[touched & (entries >= 0)]
        self.table.touch(existing)
        new &= entries < 0
        if new.any():
            entries[new] = self.table.upsert(keys.take(np.flatnonzero(new)))
        for change in changes:
            where = entries[change.ats]
            there = np.flatnonzero(where >= 0)
            if len(there):
                change.write(where[there], there)
        self.drop_bare(existing)

    def drop_bare(self, entries: Array) -> None:
        """Remove those of these entries that are empty."""
        if not len(entries):
            return
        filled = self.filled(entries)
        if not filled.all():
            self.table.remove(entries[~filled])

    def filled(self, entries: Array) -> Array:
        """A mask of the entries that are not empty."""
        filled = np.zeros(len(entries), np.bool_)
        for variable in self.variables:
            filled |= variable.present(entries)
        return filled

    @contextmanager
    def batch(self, batch: pa.RecordBatch, keys: Keys) -> Iterator[None]:
        """Set the rows that `handle_batch` gets. Inside, only the state of their keys may be used."""
        self._batch, self._batch_keys = batch, keys
        try:
            yield
        finally:
            self._batch = self._batch_keys = self._checked = None

    def keys_of(self, batch: pa.RecordBatch) -> Keys:
        """The keys of these rows, which must be keys of the current batch."""
        if self._keys is None and self._checked is not None and self._checked[0] is batch:
            return self._checked[1]
        if batch is self._batch and self._batch_keys is not None:
            return self._own(self._batch_keys)
        keys = self._own(self.codec.encode(batch))
        self._checked = batch, keys
        return keys

    def key(self, values: Sequence[Any]) -> Keys:
        """Encode one key, which must be in the current batch."""
        return self._own(self.codec.from_values(values))

    def _own(self, keys: Keys) -> Keys:
        if self._batch_keys is None or self._keys is not None:
            raise FlowError(
                "state of many keys was used outside of handle_batch, or inside for_key",
                hint="call get_many, update_many and for_key directly in handle_batch",
            )
        if keys is not self._batch_keys and not _all_among(keys, self._batch_keys):
            # another key's state may be on another host, or not have been fetched yet
            raise FlowError(
                "state was used for a key that is not in the batch",
                hint="use only the keys of the rows that handle_batch gets",
            )
        return keys


def _all_among(keys: Keys, others: Keys) -> bool:
    known = pa.array(others.hashes)
    return bool(pc.all(pc.is_in(pa.array(keys.hashes), value_set=known), min_count=0).as_py())


def distinct(codec: KeyCodec, keys: Keys) -> tuple[Array, Array]:
    """The group number of each key, and the first row of each group. Groups are numbered in order of first
    appearance."""
    codes = codec.to_storage(keys).dictionary_encode().indices.to_numpy()
    first = np.zeros(int(codes.max()) + 1 if len(codes) else 0, np.int64)
    first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    return codes, first
