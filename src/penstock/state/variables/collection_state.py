"""List and map state: many rows per key, in one cell (see `collection_cells`).

With a time to live, each element is stored with the time at which it expires.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import FlowError
from penstock.state.arrays import Array, fixed_array
from penstock.state.table.columns import PatchableColumn
from penstock.state.variables.collection_cells import NEVER, Cuts, ListCell, MapCell
from penstock.state.variables.values import Row, RowForm, reader
from penstock.state.variables.variable import Cells, StateVariable

_NAN = float("nan")


@dataclass(frozen=True)
class _CellColumn(PatchableColumn):
    """The column of a list's or map's cells."""

    state: _Collection = field(kw_only=True, compare=False, repr=False)

    def to_arrow(self, values: Array, valid: Array | None = None) -> pa.Array:
        cells = [None if cell is None else cell.whole for cell in values.tolist()]
        return pa.array(cells, self.type)

    def delta_arrays(
        self, values: Array, present: Array, entries: Array, at_cut: Callable[[], Array]
    ) -> list[pa.Array]:
        parts: list[Any] = []
        gone: list[Any] = []
        patched = np.zeros(len(values), np.bool_)
        for at, cell in enumerate(values.tolist()):
            patch = None if cell is None else cell.patch(self.state.cuts)
            if patch is not None:
                patched[at] = True
                parts.append(patch[0])
                gone.append(patch[1])
            else:
                parts.append(None if cell is None else cell.whole)
                gone.append(None)
        part_type, patch_type, gone_type = [field.type for field in self.fields]
        return [
            pa.array(parts, part_type),
            fixed_array(patched, patch_type, present),
            pa.array(gone, gone_type),
        ]

    def renewed(self, column: pa.Array | pa.ChunkedArray) -> Array:
        values = self.from_arrow(column)
        for cell in values.tolist():
            if cell is not None:
                cell.renew(self.state.cuts)
        return values

    def began(self) -> None:
        self.state.cuts.began()

    def settled(self, cuts: int) -> None:
        self.state.cuts.settled(cuts)


class _Collection(StateVariable):
    """Base class of list and map state: one column of cells, whose deltas have only the changes."""

    def __init__(self, name: str, cells: Cells, ttl_ms: int | None, type: pa.DataType) -> None:
        super().__init__(name, cells, ttl_ms, pa.uint8())
        self._items = f"{name}.__{self.kind}"
        self.cuts = Cuts()
        self.columns.append(_CellColumn(self._items, type, restore=self._restored, state=self))

    def read(self, entries: Array) -> list[Any]:
        cells: list[Any] = self._cells.table.column(self._items)[entries].tolist()
        for at in np.flatnonzero(self._expired(entries)).tolist():
            cells[at] = cells[at].living(self._cells.now_ms, self.cuts)
        return cells

    def write(self, entries: Array, cells: list[Any]) -> None:
        table = self._cells.table
        kept = (None if cell is None else cell.close() for cell in cells)
        table.column(self._items)[entries] = np.fromiter(kept, object, len(cells))
        table.column(self._bits)[entries] = [1 if cell else 0 for cell in cells]
        if self.ttl_ms is not None:
            ends = [cell.ends if cell else 0 for cell in cells]
            table.column(self._expires)[entries] = ends

    @property
    def _ends(self) -> int:
        """Expiry time of elements that are written now, in milliseconds."""
        return NEVER if self.ttl_ms is None else self._cells.now_ms + self.ttl_ms

    def _restored(self, cell: list[Any]) -> Any:
        """Convert Arrow's Python values to a cell."""
        raise NotImplementedError


class ListState(_Collection):
    """A list of rows per key. All rows of a key are in memory together: keep lists to a few thousand rows.

    With a time to live, each element expires on its own, counted from when it was put or appended.
    """

    kind = "list"

    def __init__(self, name: str, cells: Cells, schema: pa.Schema, ttl_ms: int | None) -> None:
        element = _timed(pa.struct(list(schema)), ttl_ms)
        super().__init__(name, cells, ttl_ms, pa.list_(element))
        self.schema = schema
        self._form = RowForm(schema)

    def get(self) -> Iterator[Row]:
        """The key's rows, oldest first. Changes made during the iteration are not seen."""
        cell = self.fetch()[self._cells.at]
        rows = [] if cell is None else cell.items
        if self.ttl_ms is not None:
            rows = [row for row, _ in rows]
        return map(self._form.read, rows)

    def put(self, values: Iterable[Any]) -> None:
        """Replace the key's list. An empty list clears it."""
        rows = self._elements(values)
        self._replace(ListCell.new(rows, self._ends, self.cuts) if rows else None)

    def append_value(self, value: Any) -> None:
        """Append one row to the key's list."""
        self.append_list((value,))

    def append_list(self, values: Iterable[Any]) -> None:
        """Append rows to the key's list."""
        rows = self._elements(values)
        if rows:
            cell = self.fetch()[self._cells.at]
            if cell is None:
                self._replace(ListCell.new(rows, self._ends, self.cuts))
            else:
                self._replace(cell.appended(rows, self._ends, self.cuts))

    def _elements(self, values: Iterable[Any]) -> list[Any]:
        write = self._form.write
        if self.ttl_ms is None:
            return [write(value) for value in values]
        end = self._ends
        return [(write(value), end) for value in values]

    def _restored(self, cell: list[Any]) -> Any:
        if self.ttl_ms is None:
            return ListCell.new(map(self._form.restored, cell), NEVER, None) if cell else None
        rows = [(self._form.restored(e["value"]), e["expires_ms"]) for e in cell]
        return ListCell.new(rows, min(end for _, end in rows), None) if rows else None


class MapState(_Collection):
    """A map from rows to rows per key. All pairs of a key are in memory together: keep maps to a few thousand
    pairs.

    With a time to live, each pair expires on its own, counted from its last update.
    """

    kind = "map"

    def __init__(
        self,
        name: str,
        cells: Cells,
        key_schema: pa.Schema,
        value_schema: pa.Schema,
        ttl_ms: int | None,
    ) -> None:
        key, value = pa.struct(list(key_schema)), pa.struct(list(value_schema))
        super().__init__(name, cells, ttl_ms, pa.map_(key, _timed(value, ttl_ms)))
        self.schema = (key_schema, value_schema)
        self._key, self._value = RowForm(key_schema), RowForm(value_schema)
        self._written_key: Callable[[Any], Any] = self._key.write
        self._key_restored: Callable[[Any], Any] = self._key.restored
        if _has_floats(key):
            self._written_key = lambda key: _equal_floats(self._key.write(key))
            self._key_restored = lambda key: _equal_floats(self._key.restored(key))
        for part in key_schema:
            if not _is_plain(part.type):
                raise FlowError(
                    f"the map state {name!r} cannot have {part.type} in its keys",
                    hint="use key columns of plain types, not lists or maps",
                )

    def get_value(self, key: Any) -> Row | None:
        """The value of a key of the map, or None."""
        value = self._pairs().get(self._written_key(key))
        return None if value is None else self._row(value)

    def contains_key(self, key: Any) -> bool:
        """Whether the map has this key."""
        return self._written_key(key) in self._pairs()

    def update_value(self, key: Any, value: Any) -> None:
        """Set the value of a key of the map."""
        key, row = self._written_key(key), self._value.write(value)
        if self.ttl_ms is None:
            self._own().put(key, row, NEVER, self.cuts)
        else:
            self._own().put(key, (row, self._ends), self._ends, self.cuts)

    def iterator(self) -> Iterator[tuple[Row, Row]]:
        """The pairs, in order of first insertion. Changes made during the iteration are not seen."""
        pairs = list(self._pairs().items())
        return ((self._key.read(key), self._row(value)) for key, value in pairs)

    def keys(self) -> Iterator[Row]:
        """The keys of the map, in order of first insertion."""
        return map(self._key.read, list(self._pairs()))

    def values(self) -> Iterator[Row]:
        """The values of the map, in order of their keys' first insertion."""
        return (value for _, value in self.iterator())

    def remove_key(self, key: Any) -> None:
        """Remove a key of the map, if it exists."""
        key = self._written_key(key)
        if key in self._pairs():
            self._own().remove((key,), self.cuts)

    def _pairs(self) -> dict[Any, Any]:
        cell = self.fetch()[self._cells.at]
        return {} if cell is None else cell.pairs

    def _own(self) -> MapCell:
        """The cell of the current call's key, which this call may change."""
        cell: MapCell | None = self.fetch()[self._cells.at]
        call = self._cells.call
        if cell is None:
            cell = MapCell.new({}, call, NEVER, self.cuts)
            self._replace(cell)
        elif cell.call != call:
            cell = cell.next(call)
            self._replace(cell)
        return cell

    def _row(self, value: Any) -> Row:
        return self._value.read(value if self.ttl_ms is None else value[0])

    def _restored(self, cell: list[Any]) -> Any:
        key, value = self._key_restored, self._value.restored
        if not cell:
            return None
        if self.ttl_ms is None:
            return MapCell.new({key(k): value(v) for k, v in cell}, -1, NEVER, None)
        pairs = {key(k): (value(v["value"]), v["expires_ms"]) for k, v in cell}
        return MapCell.new(pairs, -1, min(end for _, end in pairs.values()), None)


def _timed(type: pa.DataType, ttl_ms: int | None) -> pa.DataType:
    if ttl_ms is None:
        return type
    return pa.struct([("value", type), ("expires_ms", pa.int64())])


def _is_plain(type: pa.DataType) -> bool:
    """Whether values of the type are immutable in Python, and equal if they are equal in Arrow."""
    if pa.types.is_struct(type):
        return all(_is_plain(field.type) for field in type)
    return reader(type) is None


def _has_floats(type: pa.DataType) -> bool:
    if pa.types.is_struct(type):
        return any(_has_floats(field.type) for field in type)
    return bool(pa.types.is_floating(type))


def _equal_floats(value: Any) -> Any:
    """The value with 0.0 for -0.0 and one NaN object for all NaNs, so that equal keys match in a dict."""
    if isinstance(value, tuple):
        return tuple(map(_equal_floats, value))
    if isinstance(value, float):
        return value + 0.0 if value == value else _NAN
    return value
