"""Byte encoding of keys that are not a single integer: canonical and self-delimiting.

Equal keys have equal bytes and different keys have different bytes, so tables can compare bytes.
A row is encoded as its columns, one after the other:

    numbers, times, decimals   the value, little-endian; -0.0 as 0.0, one NaN; a bool in 1 byte
    string, binary             a count of bytes (4 bytes), the bytes
    list                       a count of elements (4 bytes), the elements
    struct                     its fields

Rows with nulls are removed before. If null is a valid key value instead, each column of a row begins with
a mark (1 byte): 1 and the value, or 0 alone. Nulls inside a list or struct are never allowed.

Columns are encoded and decoded as a whole, never row by row in Python; list elements level by level.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.errors import FlowError
from penstock.state.arrays import Array, fixed_array, fixed_values, look, physical, valid_mask
from penstock.state.keys import kernels


def normal(type: pa.DataType, column: str) -> pa.DataType:
    """The type in which keys of `type` are encoded. Raises a FlowError if keys cannot have this type."""
    if pa.types.is_dictionary(type):
        return normal(type.value_type, column)
    if type == pa.string_view():
        return pa.string()
    if type == pa.binary_view():
        return pa.binary()
    if pa.types.is_struct(type):
        return pa.struct([f.with_type(normal(f.type, column)) for f in type.fields])
    if pa.types.is_list(type) or pa.types.is_fixed_size_list(type):
        return pa.list_(type.value_field.with_type(normal(type.value_type, column)))
    if pa.types.is_large_list(type):
        return pa.large_list(type.value_field.with_type(normal(type.value_type, column)))
    if is_text(type) or width_of(type) is not None:
        return type
    raise FlowError(
        f"column {column!r} of type {type} cannot be part of a key",
        hint="key by numbers, times, text, binary, decimals, or lists and structs of those",
    )


def is_text(type: pa.DataType) -> bool:
    """Whether values are strings or binary, of variable length."""
    return type in (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())


def width_of(type: pa.DataType) -> int | None:
    """Bytes per value of a fixed-width type; None for other types."""
    dtype = physical(type)
    if dtype is not None:
        return dtype.itemsize
    if pa.types.is_decimal(type) or pa.types.is_fixed_size_binary(type):
        return int(type.bit_width // 8)
    return None


@dataclass(frozen=True)
class Blob:
    """Rows of bytes. Row i is data[offsets[i]:offsets[i + 1]]; offsets need not start at 0."""

    offsets: Array
    data: Array


def text_blob(array: pa.Array) -> Blob:
    """The bytes of a string or binary array, without a copy."""
    wide = array.type in (pa.large_string(), pa.large_binary())
    _, starts, data = array.buffers()
    offsets = look(starts, np.int64 if wide else np.int32, array.offset, len(array) + 1)
    if len(array) == 0:
        return Blob(np.zeros(1, np.int64), np.empty(0, np.uint8))
    return Blob(offsets.astype(np.int64, copy=False), look(data, np.uint8, 0, int(offsets[-1])))


def text_array(blob: Blob, type: pa.DataType) -> pa.Array:
    """A string or binary array from bytes; the inverse of `text_blob`."""
    rows = len(blob.offsets) - 1
    data = pa.py_buffer(blob.data)
    if type in (pa.large_string(), pa.large_binary()):
        return pa.Array.from_buffers(type, rows, [None, pa.py_buffer(blob.offsets), data])
    if blob.offsets[-1] >= 2**31:
        raise FlowError(
            f"the keys of one batch have {blob.offsets[-1]:,} bytes, too many for a {type} column",
            hint="use smaller batches, or key by a shorter column",
        )
    offsets = blob.offsets.astype(np.int32)
    return pa.Array.from_buffers(type, rows, [None, pa.py_buffer(offsets), data])


def join(blobs: Sequence[Blob], rows: int) -> Blob:
    """Concatenate several blobs row by row."""
    if len(blobs) == 1:
        return blobs[0]
    offsets = np.zeros(rows + 1, np.int64)
    for blob in blobs:
        offsets += blob.offsets - blob.offsets[0]
    data = np.empty(int(offsets[-1]), np.uint8)
    cursor = offsets[:-1].copy()
    for blob in blobs:
        kernels.put_sized(data, cursor, blob.offsets, blob.data)
    return Blob(offsets, data)


def encode(array: pa.Array) -> Blob:
    """Encode each row of a column of a `normal` type, without nulls."""
    type, rows = array.type, len(array)
    if pa.types.is_struct(type):
        return join([encode(array.field(i)) for i in range(type.num_fields)], rows)
    if is_text(type):
        text = text_blob(array)
        return _counted(np.diff(text.offsets), text)
    if pa.types.is_list(type) or pa.types.is_large_list(type):
        ends = fixed_values(array.offsets).astype(np.int64)
        inner = encode(array.values.slice(ends[0], ends[-1] - ends[0]))
        return _counted(np.diff(ends), Blob(inner.offsets[ends - ends[0]], inner.data))
    width = width_of(type)
    assert width is not None, type
    return Blob(np.arange(rows + 1, dtype=np.int64) * width, _fixed_bytes(array, width))


def _counted(counts: Array, blob: Blob) -> Blob:
    rows = len(counts)
    offsets = blob.offsets - blob.offsets[0] + 4 * np.arange(rows + 1, dtype=np.int64)
    data = np.empty(int(offsets[-1]), np.uint8)
    kernels.put_counted(data, offsets[:-1].copy(), counts, blob.offsets, blob.data)
    return Blob(offsets, data)


def _fixed_bytes(array: pa.Array, width: int) -> Array:
    if physical(array.type) is None:
        return look(array.buffers()[1], np.uint8, array.offset * width, len(array) * width)
    values = fixed_values(array)
    if values.dtype.kind == "f":
        values = values + values.dtype.type(0)  # -0.0 + 0.0 is 0.0
        values[np.isnan(values)] = np.nan
    return values.view(np.uint8)


def encode_marked(array: pa.Array) -> Blob:
    """Encode each row with a mark before it; a null is the mark alone."""
    valid = valid_mask(array)
    if valid is None:
        valid, blob = np.ones(len(array), np.bool_), encode(array)
    else:
        blob = encode(array.drop_null())
    offsets = kernels.marked_offsets(valid, blob.offsets)
    return Blob(offsets, kernels.put_marked(offsets, valid, blob.offsets, blob.data))


def decode_marked(type: pa.DataType, data: Array, cursor: Array) -> pa.Array:
    """Decode a column of `encode_marked` at the cursors, and move each cursor behind its value."""
    marks = kernels.take_fixed(data, cursor, 1).view(np.bool_)
    if marks.all():
        return decode(type, data, cursor)
    rows = np.flatnonzero(marks)
    inner = cursor[rows]
    values = decode(type, data, inner)
    cursor[rows] = inner
    return values.take(fixed_array(np.cumsum(marks) - 1, pa.int64(), marks))


def decode(type: pa.DataType, data: Array, cursor: Array) -> pa.Array:
    """Decode a column of a `normal` type at the cursors, and move each cursor behind its value."""
    rows = len(cursor)
    if pa.types.is_struct(type):
        columns = [decode(field.type, data, cursor) for field in type.fields]
        if not columns:
            return pa.array([{}] * rows, type)
        return pa.StructArray.from_arrays(columns, fields=list(type.fields))
    if is_text(type):
        offsets = _ends(kernels.take_counts(data, cursor))
        return text_array(Blob(offsets, kernels.take_sized(data, cursor, offsets)), type)
    if pa.types.is_list(type) or pa.types.is_large_list(type):
        return _decode_list(type, data, cursor)
    width = width_of(type)
    assert width is not None, type
    values = kernels.take_fixed(data, cursor, width)
    if pa.types.is_boolean(type):
        return fixed_array(values.view(np.bool_), type)
    return pa.Array.from_buffers(type, rows, [None, pa.py_buffer(values)])


def _ends(counts: Array) -> Array:
    ends = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=ends[1:])
    return ends


def _decode_list(type: pa.DataType, data: Array, cursor: Array) -> pa.Array:
    """Read the first element of every list, then the second of those that have one, and so on."""
    counts = kernels.take_counts(data, cursor)
    ends = _ends(counts)
    pieces, places = [pa.array([], type.value_type)], [np.empty(0, np.int64)]
    for turn in range(int(counts.max(initial=0))):
        rows = np.flatnonzero(counts > turn)
        inner = cursor[rows]
        pieces.append(decode(type.value_type, data, inner))
        places.append(ends[rows] + turn)
        cursor[rows] = inner
    order = np.argsort(np.concatenate(places))
    values = pa.concat_arrays(pieces).take(fixed_array(order, pa.int64()))
    kind = pa.ListArray if pa.types.is_list(type) else pa.LargeListArray
    offsets = fixed_array(ends, pa.int32() if pa.types.is_list(type) else pa.int64())
    return kind.from_arrays(offsets, values, type=type)


def null_mask(array: pa.Array) -> Array | None:
    """A mask that is True where a row of a `normal` column is or contains a null; None if no row does."""
    mask = None if array.null_count == 0 else ~fixed_values(array.is_valid())
    inner = None
    if pa.types.is_struct(array.type):
        for i in range(array.type.num_fields):
            inner = either(inner, null_mask(array.field(i)))
    elif pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        inside = null_mask(array.values)
        if inside is not None:
            ends = fixed_values(array.offsets)
            seen = _ends(inside)[ends]
            inner = np.diff(seen) > 0
    return either(mask, inner)


def inner_null_mask(array: pa.Array) -> Array | None:
    """A mask that is True where a row of a `normal` column is not null but contains one; None if no row
    does."""
    mask = null_mask(array) if pa.types.is_nested(array.type) else None
    valid = valid_mask(array)
    return mask if mask is None or valid is None else mask & valid


def either(one: Array | None, other: Array | None) -> Array | None:
    """Combine two masks with "or". None stands for all False."""
    if one is None or other is None:
        return other if one is None else one
    return one | other
