"""Variables: the declared pieces of a step's keyed state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.state.store.patches import patch_fields
from penstock.state.table.buffers import Array, fixed_array
from penstock.state.table.table import Column

if TYPE_CHECKING:
    from penstock.state.variables.cells import Cells


@dataclass(frozen=True)
class ObjectColumn(Column):
    """A column whose values user code gave; a restore brings them back in the same form.

    Arrow gives structs back as dicts and maps as lists of pairs, and does not take the two forms
    of either in one column.
    """

    restore: Callable[[Any], Any] = field(default=lambda value: value, compare=False)
    """From Arrow's Python value to the form in memory."""

    def from_arrow(self, column: pa.Array | pa.ChunkedArray) -> Array:
        restore = self.restore
        values = (None if value is None else restore(value) for value in column.to_pylist())
        return np.fromiter(values, object, len(column))


@dataclass(frozen=True)
class PatchColumn(ObjectColumn):
    """A column of maps or lists, of which a delta tells only what changed (see `patches`)."""

    whole: Callable[[Any], Any] = field(default=lambda cell: cell, compare=False)
    """From a cell to what Arrow takes for it."""
    patch: Callable[[Any], tuple[Any, Any] | None] = field(default=lambda cell: None, compare=False)
    """What changed in a cell since the last seal and what is gone, as Arrow takes them; or None: the
    cell is better written whole."""
    forget: Callable[[], None] = field(default=lambda: None, compare=False)
    """Called when the table was sealed or rolled back."""

    @property
    def fields(self) -> list[pa.Field]:
        return patch_fields(self.name, self.type)

    def to_arrow(self, values: Array, valid: Array | None = None) -> pa.Array:
        whole = self.whole
        cells = [None if cell is None else whole(cell) for cell in values.tolist()]
        return pa.array(cells, self.type)

    def to_arrays(self, values: Array, present: Array) -> list[pa.Array]:
        _, patch, gone = self.fields
        none = np.zeros(len(values), np.bool_)
        return [
            self.to_arrow(values),
            fixed_array(none, patch.type, present),
            pa.nulls(len(values), gone.type),
        ]

    def delta_arrays(
        self, values: Array, present: Array, entries: Array, base: int
    ) -> list[pa.Array]:
        parts: list[Any] = []
        gone: list[Any] = []
        patched = np.zeros(len(values), np.bool_)
        for at, cell in enumerate(values.tolist()):
            patch = None if cell is None else self.patch(cell)
            if patch is not None:
                patched[at] = True
                parts.append(patch[0])
                gone.append(patch[1])
            else:
                parts.append(None if cell is None else self.whole(cell))
                gone.append(None)
        types = [field.type for field in self.fields]
        return [
            pa.array(parts, types[0]),
            fixed_array(patched, types[1], present),
            pa.array(gone, types[2]),
        ]

    def settled(self) -> None:
        self.forget()


class Variable:
    """One declared piece of keyed state: some columns of the step's table, and the cells at hand.

    A cell that holds nothing is None. Cells are replaced, never changed in place, except by the
    call that put them there.
    """

    kind = ""
    columns: list[Column]

    def __init__(self, name: str, cells: Cells) -> None:
        self.name = name
        self._cells = cells
        self._held: list[Any] | None = None
        self._call = -1

    def read(self, entries: Array) -> list[Any]:
        """The cells of these entries; None where there is nothing or where it has expired."""
        raise NotImplementedError

    def write(self, entries: Array, cells: list[Any]) -> None:
        """Put these cells into the columns of these entries, which are touched already."""
        raise NotImplementedError

    def present(self, entries: Array) -> Array:
        """True where these entries hold something of this variable."""
        raise NotImplementedError

    def purge(self) -> Array:
        """Take out all that has expired by now; returns the entries that changed."""
        return np.empty(0, np.int64)

    def fetch(self) -> list[Any]:
        """The cells of the keys at hand."""
        if self._held is None:
            self._held = self._cells.fetch(self)
        return self._held

    def _replace(self, cell: Any) -> None:
        """Give the key of this call another cell."""
        cells, held = self._cells, self._held
        if held is None:
            held = self.fetch()
        if self._call != cells.call:
            cells.journal.append((self, cells.at, held[cells.at]))
            self._call = cells.call
        held[cells.at] = cell

    def restore(self, at: int, cell: Any) -> None:
        """Put back what a call replaced."""
        self._call = -1
        if self._held is not None:
            self._held[at] = cell

    def forget(self) -> None:
        self._held = None


class StateVariable(Variable):
    """A variable with a column of bits, 0 where an entry holds nothing of it, and maybe a TTL.

    The time to live runs from the last update, by the epochs' time of day. A column holds the time
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
        """Whether the key has anything here."""
        return bool(self.fetch()[self._cells.at])

    def clear(self) -> None:
        """Remove what the key has here."""
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

    def _expired(self, entries: Array) -> Array:
        """True where a cell, or a part of it, has come to its end."""
        table, now = self._cells.table, self._cells.now_ms
        if self.ttl_ms is None:
            return np.zeros(len(entries), np.bool_)
        over: Array = table.column(self._expires)[entries] <= now
        return over & self.present(entries)
