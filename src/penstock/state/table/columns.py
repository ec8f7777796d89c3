"""Columns of a table: the representation of an Arrow type in memory and in a delta file.

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
from penstock.state.table.patches import (
    LARGE,
    patch_fields,
    same_fields,
    whole_companion,
    whole_companions,
)


@dataclass(frozen=True)
class Column:
    """One column of state. Values of object columns are immutable: they are replaced, never modified.

    >>> Column("total", pa.int64()).dtype, Column("name", pa.string()).dtype
    (dtype('int64'), dtype('O'))
    """

    name: str
    type: pa.DataType
    width: int = 1
    """Number of values per entry."""
    restore: Callable[[Any], Any] | None = field(default=None, compare=False, repr=False)
    """Converter from Arrow's Python value to the form in memory; None if both are the same. Arrow returns
    structs as dicts and maps as lists of pairs, and does not accept mixed forms in one column."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Numpy type in memory."""
        dtype = physical(self.type)
        return np.dtype(object) if dtype is None else dtype

    @property
    def storage_type(self) -> pa.DataType:
        """Arrow type in a delta file."""
        if self.width == 1:
            return self.type
        return pa.binary(self.width * self.dtype.itemsize)

    @property
    def fields(self) -> list[pa.Field]:
        """Fields in a file: one, or more if a row may be a patch."""
        return [pa.field(self.name, self.storage_type)]

    def to_arrays(self, values: Array, present: Array) -> list[pa.Array]:
        """Complete values of entries, one array for each of `fields`."""
        return [self.to_arrow(values, present)]

    def delta_arrays(
        self, values: Array, present: Array, entries: Array, at_cut: Callable[[], Array]
    ) -> list[pa.Array]:
        """Changes in these entries since the last cut, one array for each of `fields`. `at_cut` returns their
        values at that cut."""
        return self.to_arrays(values, present)

    def began(self) -> None:
        """Called when the table was cut, sealed or rolled back: there are no changes yet."""

    def settled(self, cuts: int) -> None:
        """Called when the table can only return to its newest `cuts` cuts. Older history can be dropped."""

    def kept(self, held: Sequence[Array]) -> None:
        """Called when only the values in these arrays remain, those of entries first. Drops data of all other
        values, and may change the arrays in place."""

    @property
    def held_bytes(self) -> int:
        """Bytes of memory besides the values themselves."""
        return 0

    def empty(self, room: int) -> Array:
        """An array for `room` new entries, zero or None."""
        if self.dtype == object:
            return np.full(room, None, object)
        return np.zeros(room if self.width == 1 else (room, self.width), self.dtype)

    def grown(self, values: Array, used: int, room: int) -> Array:
        """A copy of the first `used` values, with room for `room` in total."""
        new = self.empty(room)
        new[:used] = values[:used]
        return new

    @property
    def nothing(self) -> int | None:
        """Value of a new entry."""
        return None if self.dtype == object else 0

    def to_arrow(self, values: Array, valid: Array | None = None) -> pa.Array:
        """Convert values to an Arrow array of `storage_type`, null where `valid` is False."""
        if self.dtype == object:
            return pa.array(values.tolist(), self.type)
        if self.width == 1:
            return fixed_array(values, self.type, valid)
        bits = None if valid is None or valid.all() else pack_bits(valid)
        data = pa.py_buffer(np.ascontiguousarray(values))
        return pa.Array.from_buffers(self.storage_type, len(values), [bits, data])

    def from_arrow(self, column: pa.Array | pa.ChunkedArray) -> Array:
        """Convert an Arrow array back to values. Null becomes zero or None."""
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

    def renewed(self, column: pa.Array | pa.ChunkedArray) -> Array:
        """Like `from_arrow`, for values that were changed elsewhere since the last cut: the next delta must
        have them as a whole."""
        return self.from_arrow(column)


@dataclass(frozen=True)
class PatchableColumn(Column):
    """A column of maps or lists, whose rows in a file may be patches (see `patches`)."""

    @property
    def fields(self) -> list[pa.Field]:
        return patch_fields(self.name, self.type)

    def to_arrays(self, values: Array, present: Array) -> list[pa.Array]:
        return [self.to_arrow(values, present), *whole_companions(self.fields, present)]


@dataclass(frozen=True)
class TextColumn(Column):
    """A column of text or bytes. A delta leaves out large values that have not changed (see `patches`)."""

    @property
    def fields(self) -> list[pa.Field]:
        return same_fields(self.name, self.type)

    def to_arrays(self, values: Array, present: Array) -> list[pa.Array]:
        return [self.to_arrow(values, present), whole_companion(present)]

    def delta_arrays(
        self, values: Array, present: Array, entries: Array, at_cut: Callable[[], Array]
    ) -> list[pa.Array]:
        if not any(value is not None and len(value) >= LARGE for value in values):
            return self.to_arrays(values, present)
        pairs = zip(values, at_cut(), strict=True)
        same = np.fromiter(
            (new is not None and len(new) >= LARGE and new == old for new, old in pairs), np.bool_
        )
        values[same] = None
        return [self.to_arrow(values, present), fixed_array(same, pa.bool_(), present)]
