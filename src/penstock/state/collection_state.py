"""List and map state: many rows per key, in one cell.

A cell is a tuple of rows, or a dict from rows to rows. It is copied on a call's first change of it;
the copy belongs to that call and is what goes to the table. With a time to live, each element
stands beside the time at which it expires.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import FlowError
from penstock.state.buffers import Array
from penstock.state.cells import Cells
from penstock.state.rows import Row
from penstock.state.values import RowForm, reader
from penstock.state.variable import ObjectColumn, StateVariable


class _Collection(StateVariable):
    """What list and map state share: one column of objects, copied on a call's first change."""

    def __init__(self, name: str, cells: Cells, ttl_ms: int | None, type: pa.DataType) -> None:
        super().__init__(name, cells, ttl_ms, pa.uint8())
        self._items = f"{name}.__{self.kind}"
        self.columns.append(ObjectColumn(self._items, type, restore=self._restored))
        self._copied = -1

    def _own(self, empty: Any) -> Any:
        """The cell of the running call's key, as this call's own copy."""
        at, call = self._cells.at, self._cells.call
        cell = self.fetch()[at]
        if cell is None or self._copied != call:
            cell = type(empty)(cell or empty)
            self._copied = call
            self._replace(cell)
        return cell

    def read(self, entries: Array) -> list[Any]:
        cells: list[Any] = self._cells.table.column(self._items)[entries].tolist()
        for at in np.flatnonzero(self._expired(entries)).tolist():
            cells[at] = self._living(cells[at], self._cells.now_ms)
        return cells

    def write(self, entries: Array, cells: list[Any]) -> None:
        table = self._cells.table
        table.column(self._items)[entries] = np.fromiter(map(self._kept, cells), object, len(cells))
        table.column(self._bits)[entries] = [1 if cell else 0 for cell in cells]
        if self.ttl_ms is not None:
            table.column(self._expires)[entries] = [self._first_end(cell) for cell in cells]

    def _restored(self, cell: list[Any]) -> Any:
        """A cell from Arrow's Python values."""
        raise NotImplementedError

    def _living(self, cell: Any, now_ms: int) -> Any:
        """The cell without what has expired; None when nothing is left."""
        raise NotImplementedError

    def _kept(self, cell: Any) -> Any:
        """The cell as the table keeps it."""
        raise NotImplementedError

    def _first_end(self, cell: Any) -> int:
        """When the first element of a cell expires."""
        raise NotImplementedError


class ListState(_Collection):
    """A list of rows per key. A cell has all of a key's rows: keep lists to some thousands.

    With a time to live each element expires by itself, counted from when it was put or appended.
    """

    kind = "list"

    def __init__(self, name: str, cells: Cells, schema: pa.Schema, ttl_ms: int | None) -> None:
        element = _timed(pa.struct(list(schema)), ttl_ms)
        super().__init__(name, cells, ttl_ms, pa.list_(element))
        self.schema = schema
        self._form = RowForm(schema)

    def get(self) -> Iterator[Row]:
        """The key's rows, the oldest first; a change made meanwhile is not seen."""
        rows = tuple(self.fetch()[self._cells.at] or ())
        if self.ttl_ms is not None:
            rows = tuple(row for row, _ in rows)
        return map(self._form.read, rows)

    def put(self, values: Iterable[Any]) -> None:
        """Replace the key's list; an empty one clears it."""
        rows = self._elements(values)
        self._replace(rows or None)
        self._copied = self._cells.call

    def append_value(self, value: Any) -> None:
        self.append_list((value,))

    def append_list(self, values: Iterable[Any]) -> None:
        rows = self._elements(values)
        if rows:
            self._own([]).extend(rows)

    def _elements(self, values: Iterable[Any]) -> list[Any]:
        write = self._form.write
        if self.ttl_ms is None:
            return [write(value) for value in values]
        end = self._cells.now_ms + self.ttl_ms
        return [(write(value), end) for value in values]

    def _restored(self, cell: list[Any]) -> Any:
        if self.ttl_ms is None:
            return tuple(map(self._form.restored, cell))
        return tuple((self._form.restored(e["value"]), e["expires_ms"]) for e in cell)

    def _living(self, cell: Any, now_ms: int) -> Any:
        return tuple(element for element in cell if element[1] > now_ms) or None

    def _kept(self, cell: Any) -> Any:
        return None if cell is None else tuple(cell)

    def _first_end(self, cell: Any) -> int:
        return min((end for _, end in cell or ()), default=0)


class MapState(_Collection):
    """A map of rows to rows per key. A cell has all of a key's pairs: keep maps to some thousands.

    With a time to live each pair expires by itself, counted from its last update.
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
        for field in key_schema:
            if reader(field.type) is not None and not pa.types.is_struct(field.type):
                raise FlowError(
                    f"the map state {name!r} cannot have {field.type} in its keys",
                    hint="make the key of plain columns",
                )

    def get_value(self, key: Any) -> Row | None:
        cell = self.fetch()[self._cells.at]
        found = None if cell is None else cell.get(self._key.write(key))
        return None if found is None else self._given(found)

    def contains_key(self, key: Any) -> bool:
        return self._key.write(key) in (self.fetch()[self._cells.at] or ())

    def update_value(self, key: Any, value: Any) -> None:
        row: Any = self._value.write(value)
        if self.ttl_ms is not None:
            row = (row, self._cells.now_ms + self.ttl_ms)
        self._own({})[self._key.write(key)] = row

    def iterator(self) -> Iterator[tuple[Row, Row]]:
        """The pairs, in order of first insertion; a change made meanwhile is not seen."""
        pairs = list((self.fetch()[self._cells.at] or {}).items())
        return ((self._key.read(key), self._given(value)) for key, value in pairs)

    def keys(self) -> Iterator[Row]:
        return map(self._key.read, list(self.fetch()[self._cells.at] or ()))

    def values(self) -> Iterator[Row]:
        return (value for _, value in self.iterator())

    def remove_key(self, key: Any) -> None:
        if self.contains_key(key):
            del self._own({})[self._key.write(key)]

    def _given(self, value: Any) -> Row:
        return self._value.read(value if self.ttl_ms is None else value[0])

    def _restored(self, cell: list[Any]) -> Any:
        key, value = self._key.restored, self._value.restored
        if self.ttl_ms is None:
            return {key(k): value(v) for k, v in cell}
        return {key(k): (value(v["value"]), v["expires_ms"]) for k, v in cell}

    def _living(self, cell: Any, now_ms: int) -> Any:
        return {key: value for key, value in cell.items() if value[1] > now_ms} or None

    def _kept(self, cell: Any) -> Any:
        return cell

    def _first_end(self, cell: Any) -> int:
        return min((end for _, end in (cell or {}).values()), default=0)


def _timed(type: pa.DataType, ttl_ms: int | None) -> pa.DataType:
    if ttl_ms is None:
        return type
    return pa.struct([("value", type), ("expires_ms", pa.int64())])
