"""Conversion between Arrow columns and numpy arrays, without copies where possible.

Compiled kernels need plain numbers in one chunk: integers, floats, and the integers beneath dates
and timestamps. The arrays made here are views of Arrow's memory and must not be changed. They are not
marked read-only, since numba would compile every kernel a second time for read-only arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Array = npt.NDArray[Any]

_BITS = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}


def physical(type: pa.DataType) -> np.dtype[Any] | None:
    """The numpy type beneath a fixed-width Arrow type; None for text, decimals, lists and so on.

    >>> physical(pa.timestamp("us")), physical(pa.date32()), physical(pa.string())
    (dtype('int64'), dtype('int32'), None)
    """
    if pa.types.is_boolean(type):
        return np.dtype(np.bool_)
    if pa.types.is_integer(type) or pa.types.is_floating(type):
        number: np.dtype[Any] = np.dtype(type.to_pandas_dtype())
        return number
    if pa.types.is_temporal(type) and not pa.types.is_interval(type):
        return np.dtype(_BITS[type.bit_width])
    return None


class _Memory:
    """A part of an Arrow buffer as an object that numpy can view. It keeps the buffer alive."""

    __slots__ = ("__array_interface__", "buffer")

    def __init__(self, buffer: pa.Buffer, dtype: np.dtype[Any], start: int, count: int) -> None:
        self.buffer = buffer
        self.__array_interface__ = {
            "version": 3,
            "typestr": dtype.str,
            "shape": (count,),
            "data": (buffer.address + start * dtype.itemsize, False),
        }


def look(buffer: pa.Buffer | None, dtype: npt.DTypeLike, start: int, count: int) -> Array:
    """View `count` values of a buffer, starting at value `start`.

    Misaligned values, as in memory received over the wire, are copied: kernels would have to be compiled
    a second time for them.
    """
    if buffer is None or count == 0:
        return np.empty(0, dtype)
    values = np.asarray(_Memory(buffer, np.dtype(dtype), start, count))
    return values if values.flags.aligned else values.copy()


def one_chunk(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Combine the chunks of a column into one array."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    if column.num_chunks == 0:
        # Arrow would convert an empty list and import pandas for that, which takes half a second.
        return pa.nulls(0, column.type)
    joined = column.combine_chunks()
    return joined if isinstance(joined, pa.Array) else pa.concat_arrays(joined.chunks)


def fixed_values(array: pa.Array) -> Array:
    """The numbers of an array whose type has a `physical` type. Values at nulls are undefined.

    >>> fixed_values(pa.array([1, 2, 3], pa.date32()))
    array([1, 2, 3], dtype=int32)
    """
    dtype = physical(array.type)
    assert dtype is not None, array.type
    data = array.buffers()[1]
    if dtype != np.bool_:
        return look(data, dtype, array.offset, len(array))
    first, last = array.offset // 8, (array.offset + len(array) + 7) // 8
    bits = np.unpackbits(look(data, np.uint8, first, last - first), bitorder="little")
    return bits[array.offset - 8 * first :][: len(array)].view(np.bool_)


def filled_values(array: pa.Array) -> Array:
    """The numbers of an array, with zero (False) at nulls."""
    values, valid = fixed_values(array), valid_mask(array)
    return values if valid is None else np.where(valid, values, values.dtype.type(0))


def valid_mask(array: pa.Array) -> Array | None:
    """A mask that is True where the array has a value; None if the array has no nulls."""
    return None if array.null_count == 0 else fixed_values(array.is_valid())


def fixed_array(values: Array, type: pa.DataType, valid: Array | None = None) -> pa.Array:
    """An Arrow array of a fixed-width type from numbers, null where `valid` is False.

    >>> fixed_array(np.array([1, 2]), pa.timestamp("us"), np.array([True, False])).null_count
    1
    """
    bits = None if valid is None or valid.all() else pack_bits(valid)
    if pa.types.is_boolean(type):
        data = pack_bits(values)
    else:
        data = pa.py_buffer(np.ascontiguousarray(values, physical(type)))
    return pa.Array.from_buffers(type, len(values), [bits, data])


def pack_bits(mask: Array) -> pa.Buffer:
    """Convert a mask to an Arrow bitmap."""
    return pa.py_buffer(np.packbits(mask, bitorder="little"))


def grown(array: Array, used: int, room: int) -> Array:
    """A copy of the array with length `room`: the first `used` values, then zeros."""
    new = np.zeros((room, *array.shape[1:]), array.dtype)
    new[:used] = array[:used]
    return new


def with_room(array: Array, used: int, count: int) -> Array:
    """The array if it has room for `count` more values, else a copy that is at least twice as long."""
    if used + count <= len(array):
        return array
    return grown(array, used, max(used + count, 2 * len(array)))


def more(room: int) -> int:
    """The next size of a full array: 1.5 times as long."""
    return room + room // 2


def indices(values: Array) -> Array:
    """Row or entry numbers in the form that kernels are compiled for: int64, contiguous and writable
    (`np.frombuffer` returns read-only arrays)."""
    numbers = np.ascontiguousarray(values, np.int64)
    return numbers if numbers.flags.writeable else numbers.copy()


def ranges(starts: Array, counts: Array) -> Array:
    """Concatenated ranges: counts[i] consecutive numbers from starts[i] on, for each i.

    >>> ranges(np.array([5, 0]), np.array([2, 3]))
    array([5, 6, 0, 1, 2])
    """
    before = np.cumsum(counts) - counts
    return np.repeat(starts - before, counts) + np.arange(int(counts.sum()))
