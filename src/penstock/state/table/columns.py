"""The columns of a table: how a declared Arrow type lives in memory and stands in a delta file.

| declared                              | in memory                 | in a delta file   |
|---------------------------------------|---------------------------|-------------------|
| numbers, bool                         | numpy array of the type   | the type          |
| dates, times, timestamps, durations   | their integers            | the type          |
| the same with `width` > 1             | 2-D numpy array           | fixed_size_binary |
| anything else (text, decimals, lists) | object array, None if new | the type          |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.state.arrays import (
    Array,
    fixed_array,
    fixed_values,
    look,
    one_chunk,
    pack_bits,
    physical,
    valid_mask,
)
from penstock.state.table.patches import patch_fields, whole_companions


@dataclass(frozen=True)
class Column:
    """One column of state. Values of object columns are immutable: replaced, never changed inside.

    >>> Column("total", pa.int64()).dtype, Column("name", pa.string()).dtype
    (dtype('int64'), dtype('O'))
    """

    name: str
    type: pa.DataType
    width: int = 1
    restore: Callable[[Any], Any] | None = field(default=None, compare=False, repr=False)
    """Makes the form in memory of Arrow's Python value, if that is another one: Arrow gives structs
    back as dicts and maps as lists of pairs, and does not take the two forms of either in one column."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy type in memory."""
        dtype = physical(self.type)
        return np.dtype(object) if dtype is None else dtype

    @property
    def storage_type(self) -> pa.DataType:
        """The Arrow type in a delta file."""
        if self.width == 1:
            return self.type
        return pa.binary(self.width * self.dtype.itemsize)

    @property
    def fields(self) -> list[pa.Field]:
        """What it is in a file: one field, and more where a row may hold only what changed."""
        return [pa.field(self.name, self.storage_type)]

    def to_arrays(self, values: Array, present: Array) -> list[pa.Array]:
        """Whole values of entries, one array for each of `fields`."""
        return [self.to_arrow(values, present)]

    def delta_arrays(self, values: Array, present: Array, entries: Array) -> list[pa.Array]:
        """What changed in these entries since the last cut."""
        return self.to_arrays(values, present)

    def began(self) -> None:
        """The table was cut, sealed or rolled back: nothing has changed since."""

    def settled(self, cuts: int) -> None:
        """The table can return to the newest `cuts` cuts, and to none before the last of these."""

    def kept(self, held: Sequence[Array]) -> None:
        """The values in these arrays, those of entries first, are all there are, and may be changed
        in place: forget what only others had."""

    @property
    def held_bytes(self) -> int:
        """Bytes held beside the values themselves."""
        return 0

    def empty(self, room: int) -> Array:
        """Room for as many new entries, zero or None."""
        if self.dtype == object:
            return np.full(room, None, object)
        return np.zeros(room if self.width == 1 else (room, self.width), self.dtype)

    def grown(self, values: Array, used: int, room: int) -> Array:
        """The first `used` values with room for `room` in all."""
        new = self.empty(room)
        new[:used] = values[:used]
        return new

    @property
    def nothing(self) -> int | None:
        """What a new entry holds."""
        return None if self.dtype == object else 0

    def to_arrow(self, values: Array, valid: Array | None = None) -> pa.Array:
        """Values as an Arrow array of `storage_type`, null where `valid` is False."""
        if self.dtype == object:
            return pa.array(values.tolist(), self.type)
        if self.width == 1:
            return fixed_array(values, self.type, valid)
        bits = None if valid is None or valid.all() else pack_bits(valid)
        data = pa.py_buffer(np.ascontiguousarray(values))
        return pa.Array.from_buffers(self.storage_type, len(values), [bits, data])

    def from_arrow(self, column: pa.Array | pa.ChunkedArray) -> Array:
        """Undo `to_arrow`; null gives zero or None."""
        array = one_chunk(column)
        values: Array
        if self.dtype == object:
            objects, restore = array.to_pylist(), self.restore
            if restore is not None:
                objects = [None if value is None else restore(value) for value in objects]
            return np.fromiter(objects, object, len(objects))
        if self.width == 1:
            values = fixed_values(array)
        else:
            start, count = array.offset * self.width, len(array) * self.width
            flat = look(array.buffers()[1], self.dtype, start, count)
            values = flat.reshape(len(array), self.width)
        valid = valid_mask(array)
        if valid is None:
            return values
        values = values.copy()
        values[~valid] = 0
        return values


@dataclass(frozen=True)
class PatchableColumn(Column):
    """A column of maps or lists, of which a row of a file may hold only a part (see `patches`)."""

    @property
    def fields(self) -> list[pa.Field]:
        return patch_fields(self.name, self.type)

    def to_arrays(self, values: Array, present: Array) -> list[pa.Array]:
        return [self.to_arrow(values, present), *whole_companions(self.fields, present)]
