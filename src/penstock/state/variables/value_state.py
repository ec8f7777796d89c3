"""Value state: one row per key."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import FlowError
from penstock.state.arrays import Array, fixed_array, fixed_values, physical, valid_mask
from penstock.state.table.columns import Column, TextColumn
from penstock.state.table.list_columns import ListColumn, ListPool, is_number_list
from penstock.state.variables.values import Row, RowForm, in_type, python_values, reader
from penstock.state.variables.variable import Cells, StateVariable, distinct


class ValueState(StateVariable):
    """One row per key. Each field is a column of the table. Bit 0 is set if there is a row, bit i + 1 if its
    field i is null.

    `get`, `update`, `exists` and `clear` work on the key of the current call. In `handle_batch`, `get_many`
    and `update_many` work on the keys of many rows at once.
    """

    kind = "value"

    def __init__(
        self,
        name: str,
        cells: Cells,
        schema: pa.Schema,
        ttl_ms: int | None,
        by_batch: bool = False,
    ) -> None:
        """With `by_batch`, lists of numbers are stored without Python objects: `get_many` and `update_many`
        copy arrays, without the GIL. `get` and `update` of one key are slower that way."""
        super().__init__(name, cells, ttl_ms, _bits_for(len(schema), name))
        self.schema = schema
        form = RowForm(schema)
        self._read, self._write = form.read, form.write
        self._columns = [_column(name, field, by_batch) for field in schema]
        self.columns += self._columns

    def get(self, default: Any = None) -> Row | None:
        """The key's row; if there is none, `default` as a row, or None."""
        held = self._held
        if held is None:
            held = self.fetch()
        cell = held[self._cells.at]
        if cell is None:
            return None if default is None else self._read(self._write(default))
        return self._read(cell)

    def update(self, value: Any) -> None:
        """Set the key's row, from a tuple, a dict or a Row."""
        # as in `_replace`, without a function call
        cell, cells, held = self._write(value), self._cells, self._held
        if held is None:
            held = self.fetch()
        at = cells.at
        if self._call != cells.call:
            self._changed.append(at)
            self._before.append(held[at])
            self._call = cells.call
        held[at] = cell

    def get_many(self, batch: pa.RecordBatch) -> pa.StructArray:
        """The value of each row's key; null if the key has none."""
        cells = self._cells
        entries = cells.table.find(cells.keys_of(batch))
        there = entries >= 0
        # keys without an entry read entry 0, which the mask hides
        entries = np.where(there, entries, 0) if len(cells.table) else entries[:0]
        if not len(entries):
            return pa.nulls(batch.num_rows, pa.struct(list(self.schema)))
        there &= self.present(entries) & ~self._expired(entries)
        return pa.StructArray.from_arrays(
            self._arrays(entries), fields=list(self.schema), mask=pa.array(~there)
        )

    def update_many(
        self, batch: pa.RecordBatch, values: pa.StructArray | pa.RecordBatch | pa.Table
    ) -> None:
        """Set the value of each row's key. The last row of a key wins. A null clears the value."""
        cells, table = self._cells, self._cells.table
        keys = cells.keys_of(batch)
        arrays, valid = self._fields_of(values, batch.num_rows)
        if not valid.all():
            groups, first = distinct(cells.codec, keys)
            last = np.zeros(len(first), np.int64)
            last[groups] = np.arange(len(groups))
            gone = table.find(keys.take(last[~valid[last]]))
            gone = gone[gone >= 0]
            table.touch(gone)
            self._reset(gone)
            cells.drop_bare(gone)
            chosen = last[valid[last]]
            keys, arrays = keys.take(chosen), [a.take(pa.array(chosen)) for a in arrays]
        if len(keys):
            self._put(table.upsert(keys), arrays)

    def _fields_of(self, values: Any, count: int) -> tuple[list[pa.Array], Array]:
        """The columns of `values` in the order and types of the schema, and a mask of the non-null ones."""
        values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
        valid = None
        if isinstance(values, pa.StructArray):
            valid = valid_mask(values)
            values = pa.RecordBatch.from_arrays(
                values.flatten(), names=[field.name for field in values.type]
            )
        if values.num_rows != count or set(values.schema.names) != set(self.schema.names):
            raise TypeError(
                f"got {values.num_rows} values with the fields {', '.join(values.schema.names)} for {count} "
                f"rows of the state {self.name!r}: pass one value for each row, with the fields "
                f"{', '.join(self.schema.names)}"
            )
        arrays = [in_type(values.column(field.name), field) for field in self.schema]
        return arrays, np.ones(count, np.bool_) if valid is None else valid

    def read(self, entries: Array) -> list[Any]:
        table, columns = self._cells.table, []
        for column, array in zip(self._columns, self._arrays(entries, objects=False), strict=True):
            if array is None:
                columns.append(table.column(column.name)[entries].tolist())
            else:
                columns.append(python_values(array))
        rows: list[Any] = list(zip(*columns, strict=True))
        absent = ~self.present(entries) | self._expired(entries)
        for at in np.flatnonzero(absent).tolist():
            rows[at] = None
        return rows

    def _arrays(self, entries: Array, objects: bool = True) -> list[pa.Array]:
        """The fields of these entries as arrays; None for columns of objects unless `objects`."""
        table = self._cells.table
        bits = table.column(self._bits)[entries]
        nulls = bool((bits > 1).any())
        arrays: list[pa.Array | None] = []
        for at, column in enumerate(self._columns):
            values = table.column(column.name)[entries]
            if physical(column.type) is not None:
                valid = (bits & bits.dtype.type(2 << at)) == 0 if nulls else None
                arrays.append(fixed_array(values, column.type, valid))
            elif objects or isinstance(column, ListColumn):
                arrays.append(column.to_arrow(values))
            else:
                arrays.append(None)
        return arrays

    def write(self, entries: Array, cells: list[Any]) -> None:
        if not all(cells):
            there = np.array([cell is not None for cell in cells])
            self._reset(entries[~there])
            entries, cells = entries[there], [cell for cell in cells if cell is not None]
        if cells:
            self._put(entries, list(zip(*cells, strict=True)))

    def has_nulls(self, entries: Array) -> Array:
        """A mask of the entries with a null in a field."""
        nulls: Array = self._cells.table.column(self._bits)[entries] > 1
        return nulls

    def read_records(self, entries: Array, records: Array) -> None:
        """Read fields of fixed width and no nulls into records: `there`, `changed`, f0, f1, ..."""
        table = self._cells.table
        records["there"] = self.present(entries) & ~self._expired(entries)
        for at, column in enumerate(self._columns):
            records[f"f{at}"] = table.column(column.name)[entries]

    def write_records(self, entries: Array, records: Array) -> None:
        """Write records to entries, which have been touched already."""
        there = records["there"] != 0
        if not there.all():
            self._reset(entries[~there])
            entries, records = entries[there], records[there]
        table = self._cells.table
        for at, column in enumerate(self._columns):
            table.column(column.name)[entries] = records[f"f{at}"]
        table.column(self._bits)[entries] = 1
        if self.ttl_ms is not None:
            table.column(self._expires)[entries] = self._cells.now_ms + self.ttl_ms

    def _put(self, entries: Array, values: list[Any]) -> None:
        """Write fields, from Arrow arrays or sequences of Python values.

        An entry that occurs more than once gets the last value, as numpy assigns to repeated indices.
        """
        table = self._cells.table
        bits = np.ones(len(entries), table.column(self._bits).dtype)
        for at, (column, field) in enumerate(zip(self._columns, values, strict=True)):
            target = table.column(column.name)
            if physical(column.type) is None:
                if isinstance(field, pa.Array):
                    target[entries] = column.from_arrow(field)
                elif isinstance(column, ListColumn):
                    target[entries] = column.from_arrow(pa.array(field, column.type))
                else:
                    target[entries] = np.fromiter(field, object, len(entries))
                continue
            array = field if isinstance(field, pa.Array) else pa.array(field, column.type)
            numbers, valid = fixed_values(array), valid_mask(array)
            if valid is not None:
                bits |= np.where(valid, 0, 2 << at).astype(bits.dtype)
                numbers = np.where(valid, numbers, 0)
            target[entries] = numbers
        table.column(self._bits)[entries] = bits
        if self.ttl_ms is not None:
            table.column(self._expires)[entries] = self._cells.now_ms + self.ttl_ms
        self.tidy()

    def tidy(self) -> None:
        table = self._cells.table
        for column in self._columns:
            if isinstance(column, ListColumn) and column.pool.is_wasteful:
                column.pool.gather(table.held(column.name, within_round=True))

    def _reset(self, entries: Array) -> None:
        table = self._cells.table
        for column in self.columns:
            table.column(column.name)[entries] = column.nothing


def _column(state: str, field: pa.Field, by_batch: bool) -> Column:
    name = f"{state}.{field.name}"
    if by_batch and is_number_list(field.type):
        return ListColumn(name, field.type, pool=ListPool(field.type.value_type))
    is_text = pa.types.is_string(field.type) or pa.types.is_binary(field.type)
    return (TextColumn if is_text else Column)(name, field.type, restore=reader(field.type))


def _bits_for(fields: int, name: str) -> pa.DataType:
    for type in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()):
        if fields < type.bit_width:
            return type
    raise FlowError(
        f"the state {name!r} has {fields} fields", hint="use at most 63; put some into a struct"
    )
