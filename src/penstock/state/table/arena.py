"""Storage of rows in growing numpy arrays. Rows are appended, never changed, and read by number.

Arrow arrays cannot grow, and reading a few rows out of many chunks takes time for every chunk. Here every
field is stored in one array that doubles in size when it is full:

| field                                | stored in                                               |
|--------------------------------------|---------------------------------------------------------|
| numbers, bools, dates and times      | an array of its numpy type                              |
| decimals, binaries of a fixed size   | a 2-D array of bytes                                    |
| text and binaries                    | one array of all bytes, and the end of each row's bytes |
| anything else (lists, structs, maps) | Arrow arrays that are joined as they grow: slower       |

>>> arena = Arena(pa.schema([("n", pa.int64()), ("s", pa.string())]))
>>> arena.append(pa.record_batch({"n": [1, None], "s": ["a", "bc"]}))
0
>>> arena.take(np.array([1, 0, 1])).to_pydict()
{'n': [None, 1, None], 's': ['bc', 'a', 'bc']}
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.errors import FlowError, ProtocolError
from penstock.state.arrays import (
    Array,
    fixed_array,
    fixed_values,
    look,
    pack_bits,
    physical,
    valid_mask,
    with_room,
)
from penstock.state.keys.kernels import gather_bytes, gather_offsets

_LEAST = 64
"""Initial room, in rows."""
_PIECE = 1 << 18
"""Number of rows copied at once when rows are kept."""
_JOINED_BYTES = 1 << 30
"""Size in bytes above which Arrow arrays are not joined any more, since their offsets would overflow."""
_TEXT_BYTES = (1 << 31) - 1
"""Maximum bytes of one Arrow array of type string or binary."""


class Arena:
    """Rows of one schema, numbered from 0."""

    size: int
    """Number of rows."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.size = 0
        self._types = [field.type for field in schema]
        self._fields = [_store(type) for type in self._types]

    def append(self, rows: pa.RecordBatch, order: Array | None = None) -> int:
        """Store rows, or those at `order`, and return the number of the first."""
        types = [field.type for field in rows.schema]
        if types != self._types:
            raise ProtocolError(
                f"rows with the types {types} cannot be stored with rows of {self._types}",
                hint="this is a bug in Penstock: please report it",
            )
        first = self.size
        for store, column in zip(self._fields, rows.columns, strict=True):
            store.append(column, order, first)
        self.size += rows.num_rows if order is None else len(order)
        return first

    def take(self, numbers: Array) -> pa.RecordBatch:
        """The rows with these numbers (int64), in this order."""
        arrays = [store.take(numbers) for store in self._fields]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def values(self, name: str, numbers: Array) -> pa.Array:
        """One field of the rows with these numbers."""
        return self._fields[self.schema.get_field_index(name)].take(numbers)

    def keep(self, numbers: Array) -> None:
        """Remove all rows but these, and renumber these in this order."""
        for store in self._fields:
            store.keep(numbers)
        self.size = len(numbers)

    @property
    def nbytes(self) -> int:
        """Bytes of memory, spare room included."""
        return sum(store.nbytes for store in self._fields)


class _Nullable:
    """Base class for fields with a null mask, which is created with the first null."""

    def __init__(self, type: pa.DataType) -> None:
        self.type = type
        self._valid: Array | None = None

    def _append_valid(self, column: pa.Array, order: Array | None, size: int, count: int) -> None:
        valid = valid_mask(column)
        if self._valid is None:
            if valid is None:
                return
            self._valid = np.ones(max(_LEAST, size + count), np.bool_)
        self._valid = with_room(self._valid, size, count)
        self._valid[size : size + count] = True if valid is None else _ordered(valid, order)

    def keep(self, numbers: Array) -> None:
        if self._valid is not None:
            valid = self._valid[numbers]
            self._valid = None if valid.all() else valid

    def _bits(self, numbers: Array) -> pa.Buffer | None:
        if self._valid is None:
            return None
        valid = self._valid[numbers]
        return None if valid.all() else pack_bits(valid)

    @property
    def nbytes(self) -> int:
        return 0 if self._valid is None else self._valid.nbytes


class _Fixed(_Nullable):
    """A field of a numpy type, or with a fixed number of bytes per value."""

    def __init__(self, type: pa.DataType, dtype: np.dtype[np.generic] | None) -> None:
        super().__init__(type)
        self._dtype = dtype
        self._width = type.byte_width if dtype is None else 0
        shape = (_LEAST, self._width) if dtype is None else (_LEAST,)
        self._values: Array = np.zeros(shape, dtype or np.uint8)

    def append(self, column: pa.Array, order: Array | None, size: int) -> None:
        values = self._seen(column)
        count = len(values) if order is None else len(order)
        self._append_valid(column, order, size, count)
        self._values = with_room(self._values, size, count)
        self._values[size : size + count] = _ordered(values, order)

    def take(self, numbers: Array) -> pa.Array:
        values, bits = self._values.take(numbers, 0), self._bits(numbers)
        data = pack_bits(values) if self._dtype == np.bool_ else pa.py_buffer(values)
        return pa.Array.from_buffers(self.type, len(numbers), [bits, data])

    def keep(self, numbers: Array) -> None:
        super().keep(numbers)
        self._values = self._values.take(numbers, 0)

    @property
    def nbytes(self) -> int:
        return super().nbytes + self._values.nbytes

    def _seen(self, column: pa.Array) -> Array:
        if self._dtype is not None:
            return fixed_values(column)
        data, width = column.buffers()[1], self._width
        flat = look(data, np.uint8, column.offset * width, len(column) * width)
        return flat.reshape(len(column), width)


class _Text(_Nullable):
    """A field of variable-length values: one array of all bytes, and the end of each value's bytes."""

    def __init__(self, type: pa.DataType) -> None:
        super().__init__(type)
        self._large = pa.types.is_large_string(type) or pa.types.is_large_binary(type)
        self._ends = np.zeros(_LEAST + 1, np.int64)
        self._heap = np.zeros(16 * _LEAST, np.uint8)

    def append(self, column: pa.Array, order: Array | None, size: int) -> None:
        rows, width = len(column), np.int64 if self._large else np.int32
        _, ends, data = column.buffers()
        offsets = look(ends, width, column.offset, rows + 1) if rows else np.zeros(1, width)
        offsets = offsets.astype(np.int64)
        start, stop = int(offsets[0]), int(offsets[-1])
        bytes = look(data, np.uint8, start, stop - start)
        offsets -= start
        if order is not None:
            kept = gather_offsets(offsets, order)
            offsets, bytes = kept, gather_bytes(offsets, bytes, order, kept)
        count, used = len(offsets) - 1, int(self._ends[size])
        self._append_valid(column, order, size, count)
        self._ends = with_room(self._ends, size + 1, count)
        self._ends[size + 1 : size + 1 + count] = offsets[1:] + used
        self._heap = with_room(self._heap, used, len(bytes))
        self._heap[used : used + len(bytes)] = bytes

    def take(self, numbers: Array) -> pa.Array:
        offsets = gather_offsets(self._ends, numbers)
        if offsets[-1] > _TEXT_BYTES and not self._large:
            raise FlowError(
                f"rows of one step have more than 2 GB of text in one {self.type} column",
                hint="use keys with fewer rows each, a shorter window, or large_string",
            )
        data = gather_bytes(self._ends, self._heap, numbers, offsets)
        ends = offsets if self._large else offsets.astype(np.int32)
        buffers = [self._bits(numbers), pa.py_buffer(ends), pa.py_buffer(data)]
        return pa.Array.from_buffers(self.type, len(numbers), buffers)

    def keep(self, numbers: Array) -> None:
        super().keep(numbers)
        ends = gather_offsets(self._ends, numbers)
        self._heap = gather_bytes(self._ends, self._heap, numbers, ends)
        self._ends = ends

    @property
    def nbytes(self) -> int:
        return super().nbytes + self._ends.nbytes + self._heap.nbytes


class _Nested:
    """A field of nested values, stored as Arrow arrays.

    Arrays are joined so that each is more than twice as long as the next. So there are few of them, and
    every value is copied only a few times.
    """

    def __init__(self, type: pa.DataType) -> None:
        self.type = type
        self._parts: list[pa.Array] = []

    def append(self, column: pa.Array, order: Array | None, size: int) -> None:
        # copy even without an order: a slice would keep its whole batch alive
        order = np.arange(len(column)) if order is None else order
        added = [column.take(fixed_array(order, pa.int64()))]
        for part in reversed(self._parts):
            large = part.nbytes + sum(other.nbytes for other in added) > _JOINED_BYTES
            if large or len(part) > 2 * sum(map(len, added)):
                break
            added.insert(0, part)
        self._parts[len(self._parts) - len(added) + 1 :] = [pa.concat_arrays(added)]

    def take(self, numbers: Array) -> pa.Array:
        if not len(numbers):
            return pa.nulls(0, self.type)
        ends = np.cumsum([len(part) for part in self._parts])
        part_of = np.searchsorted(ends, numbers, "right")
        taken, places = [], []
        for at in np.unique(part_of).tolist():
            places.append(np.flatnonzero(part_of == at))
            inside = numbers[places[-1]] - (ends[at] - len(self._parts[at]))
            taken.append(self._parts[at].take(fixed_array(inside, pa.int64())))
        if len(taken) == 1:
            return taken[0]
        back = np.empty(len(numbers), np.int64)
        back[np.concatenate(places)] = np.arange(len(numbers))
        return pa.concat_arrays(taken).take(fixed_array(back, pa.int64()))

    def keep(self, numbers: Array) -> None:
        pieces = range(0, len(numbers), _PIECE)
        kept = [self.take(numbers[start : start + _PIECE]) for start in pieces]
        self._parts = []
        for size, part in zip(pieces, kept, strict=True):
            self.append(part, None, size)

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self._parts)


def _store(type: pa.DataType) -> _Fixed | _Text | _Nested:
    """Create the storage for one field of this type."""
    dtype = physical(type)
    if dtype is not None:
        return _Fixed(type, dtype)
    if pa.types.is_decimal(type) or pa.types.is_fixed_size_binary(type):
        return _Fixed(type, None)
    kinds = (
        pa.types.is_string,
        pa.types.is_binary,
        pa.types.is_large_string,
        pa.types.is_large_binary,
    )
    return _Text(type) if any(kind(type) for kind in kinds) else _Nested(type)


def _ordered(values: Array, order: Array | None) -> Array:
    return values if order is None else values[order]
