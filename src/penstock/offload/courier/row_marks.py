"""A mark of each row, made of what it holds: the same whenever and wherever the row comes again."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.state.arrays import Array, fixed_values, one_chunk, physical, valid_mask
from penstock.state.keys.codec import byte_keys
from penstock.state.keys.encoding import is_text, text_blob

_PRIME = np.uint64(0xC2B2AE3D27D4EB4F)
_SHIFT = np.uint64(29)
_WIDE = 4
"""Bytes of a number that may have many values."""


def marked_columns(schema: pa.Schema) -> list[str]:
    """The columns that marks are made of: numbers and times; texts only where those say little.

    Looking at texts too would cost a courier more than it makes marks better.

    >>> marked_columns(pa.schema([("url", pa.string()), ("at", pa.timestamp("us"))]))
    ['at']
    >>> marked_columns(pa.schema([("url", pa.string()), ("new", pa.bool_())]))
    ['new', 'url']
    """
    widths = {field.name: physical(field.type) for field in schema}
    fixed = {name: dtype.itemsize for name, dtype in widths.items() if dtype is not None}
    texts = [field.name for field in schema if is_text(field.type)]
    return [*fixed] if max(fixed.values(), default=0) >= _WIDE else [*fixed, *texts]


def row_marks(batch: pa.RecordBatch, columns: list[str]) -> Array:
    """One uint64 for each row. Rows that are equal in these columns have the same.

    >>> rows = pa.record_batch({"k": [7, 8, 7], "x": [0.5, None, 0.5]})
    >>> marks = row_marks(rows, ["k", "x"])
    >>> marks[0] == marks[2], marks[0] == marks[1]
    (np.True_, np.False_)
    """
    marks = np.zeros(batch.num_rows, np.uint64)
    for name in columns:
        marks ^= _numbers(one_chunk(batch.column(name)))
        marks *= _PRIME
        marks ^= marks >> _SHIFT
    return marks


def _numbers(column: pa.Array) -> Array:
    if physical(column.type) is None:
        blob = text_blob(column.fill_null("") if column.null_count else column)
        return byte_keys(blob.offsets, blob.data).hashes
    values, valid = fixed_values(column), valid_mask(column)
    if valid is not None:
        # anything may lie under a null
        values = np.where(valid, values, np.zeros((), values.dtype))
    bits: Array = values.view(f"u{values.dtype.itemsize}").astype(np.uint64)
    return bits
