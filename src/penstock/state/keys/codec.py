"""Encoding of key columns, with hashes and slots.

A courier encodes the key columns of a batch once. Rows are then routed, grouped and looked up by their
encoded keys. Only output decodes them into columns again.

>>> codec = KeyCodec(pa.schema([("user", pa.string()), ("day", pa.int32())]))
>>> batch = pa.RecordBatch.from_pydict({"user": ["ann", "bob"], "day": [1, 2]}, codec.schema)
>>> keys = codec.encode(batch)
>>> codec.as_tuples(keys)
[('ann', 1), ('bob', 2)]
>>> slots_of(keys.hashes, 128).max() < 128
np.True_
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from penstock.errors import FlowError
from penstock.state.arrays import (
    Array,
    fixed_array,
    fixed_values,
    indices,
    look,
    one_chunk,
    physical,
)
from penstock.state.keys import encoding, kernels

_NULLS = b"nulls"
"""Name of the entry in a key schema's metadata that says whether null is a valid key value."""


@dataclass(frozen=True)
class Keys:
    """Encoded keys of one batch, in one of two layouts. Immutable.

    "int": `ints[i]` is key i. "bytes": key i is `data[offsets[i]:offsets[i + 1]]`, and offsets need
    not start at 0.
    """

    hashes: Array
    """Hash of each key (uint64). The high half determines the slot, the low half the cell in an index."""
    ints: Array | None = None
    """Keys of the layout "int" (int64)."""
    offsets: Array | None = None
    """Start of each key in `data`, and the end of the last one (int64), for the layout "bytes"."""
    data: Array | None = None
    """Bytes of all keys (uint8), for the layout "bytes"."""

    def __len__(self) -> int:
        return len(self.hashes)

    @property
    def blob(self) -> encoding.Blob:
        """The keys as a `Blob`, for the layout "bytes"."""
        assert self.offsets is not None and self.data is not None
        return encoding.Blob(self.offsets, self.data)

    def take(self, places: Array) -> Keys:
        """The keys at these positions, in this order."""
        hashes = self.hashes[places]
        if self.ints is not None:
            return Keys(hashes, ints=self.ints[places])
        rows = indices(places)
        offsets = kernels.gather_offsets(self.offsets, rows)
        data = kernels.gather_bytes(self.offsets, self.data, rows, offsets)
        return Keys(hashes, offsets=offsets, data=data)


def int_keys(ints: Array) -> Keys:
    """Make keys of the layout "int" from int64 values."""
    return Keys(kernels.hash_ints(ints), ints=ints)


def byte_keys(offsets: Array, data: Array) -> Keys:
    """Make keys of the layout "bytes" from int64 offsets and uint8 data."""
    return Keys(kernels.hash_bytes(offsets, data), offsets=offsets, data=data)


def slots_of(hashes: Array, slots: int) -> Array:
    """The slot (int32) of each hash. It must never change, since checkpoints are organized by slot."""
    out: Array = kernels.slots_of_hashes(hashes, int(slots))
    return out


class KeyCodec:
    """A codec that converts key columns to keys and back, made from the key columns' schema. Picklable.

    Rows with a null in the key have no key: remove them with `null_rows` before `encode`. With `nulls`, a
    null in a key column is a value like any other, as in SQL's GROUP BY; only nulls inside lists and
    structs are then invalid. The schema's metadata stores this option, for readers of checkpoints.

    >>> codec = KeyCodec(pa.schema([("user", pa.int64())]), nulls=True)
    >>> codec.as_tuples(codec.encode(pa.record_batch({"user": [7, None]})))
    [(7,), (None,)]
    """

    schema: pa.Schema
    layout: Literal["int", "bytes"]
    storage_type: pa.DataType
    """Arrow type of keys in a delta file: int64 or large_binary."""

    def __init__(self, schema: pa.Schema, nulls: bool = False) -> None:
        self.nulls = nulls or (schema.metadata or {}).get(_NULLS) == b"1"
        self.schema = pa.schema(
            [pa.field(f.name, f.type) for f in schema], {_NULLS: b"1"} if self.nulls else None
        )
        self._types = [encoding.normal(f.type, f.name) for f in schema]
        only = self._types[0] if len(self._types) == 1 and not self.nulls else None
        number = None if only is None else physical(only)
        self.layout = "int" if number is not None and number.kind in "iub" else "bytes"
        self.storage_type = pa.int64() if self.layout == "int" else pa.large_binary()
        self._text = only is not None and encoding.is_text(only)

    def __reduce__(self) -> tuple[Any, ...]:
        return (KeyCodec, (self.schema, self.nulls))

    def encode(self, batch: pa.RecordBatch) -> Keys:
        """Encode the keys of a batch that contains the key columns and no `null_rows`."""
        columns = self._columns(batch)
        if self.layout == "int":
            ints = fixed_values(columns[0])
            wide = ints.dtype == np.uint64
            return int_keys(ints.view(np.int64) if wide else ints.astype(np.int64, copy=False))
        if not columns:
            return byte_keys(np.zeros(batch.num_rows + 1, np.int64), np.empty(0, np.uint8))
        if self._text:
            blob = encoding.text_blob(columns[0])
        else:
            encode = encoding.encode_marked if self.nulls else encoding.encode
            blob = encoding.join([encode(c) for c in columns], batch.num_rows)
        return byte_keys(blob.offsets, blob.data)

    def null_rows(self, batch: pa.RecordBatch) -> Array | None:
        """A mask that is True for rows without a key; None if all rows have one.

        A row has no key if there is a null anywhere in the key or, with `nulls`, inside a nested value.
        """
        mask, nulls_of = None, encoding.inner_null_mask if self.nulls else encoding.null_mask
        for column in self._columns(batch):
            mask = encoding.either(mask, nulls_of(column))
        return mask if mask is not None and mask.any() else None

    def decode(self, keys: Keys) -> list[pa.Array]:
        """Decode keys into key columns of their original types."""
        if keys.ints is not None:
            columns = [fixed_array(_narrow(keys.ints, self._types[0]), self._types[0])]
        elif self._text:
            columns = [encoding.text_array(keys.blob, self._types[0])]
        else:
            cursor = keys.blob.offsets[:-1].copy()
            decode = encoding.decode_marked if self.nulls else encoding.decode
            columns = [decode(type, keys.blob.data, cursor) for type in self._types]
        return [
            column if column.type == field.type else column.cast(field.type)
            for column, field in zip(columns, self.schema, strict=True)
        ]

    def to_storage(self, keys: Keys) -> pa.Array:
        """Convert keys to one column of `storage_type`, without a copy."""
        if keys.ints is not None:
            return fixed_array(keys.ints, pa.int64())
        return encoding.text_array(keys.blob, pa.large_binary())

    def from_storage(self, array: pa.Array | pa.ChunkedArray, hashes: Array | None = None) -> Keys:
        """Convert a column of `to_storage` back to keys. Hashes are computed if they are not passed."""
        column = one_chunk(array)
        if self.layout == "int":
            ints = look(column.buffers()[1], np.int64, column.offset, len(column))
            return int_keys(ints) if hashes is None else Keys(hashes, ints=ints)
        blob = encoding.text_blob(column)
        if hashes is None:
            return byte_keys(blob.offsets, blob.data)
        return Keys(hashes, offsets=blob.offsets, data=blob.data)

    def one(self, keys: Keys, i: int) -> tuple[Any, ...]:
        """Key i as Python values, for user code and messages."""
        return self.as_tuples(keys.take(np.array([i])))[0]

    def as_tuples(self, keys: Keys) -> list[tuple[Any, ...]]:
        """All keys as Python values."""
        columns = [column.to_pylist() for column in self.decode(keys)]
        return list(zip(*columns, strict=True)) if columns else [()] * len(keys)

    def from_values(self, values: Sequence[Any]) -> Keys:
        """Encode one key from Python values or from text."""
        if len(values) != len(self.schema):
            raise FlowError(
                f"the key has {len(values)} values instead of {len(self.schema)}",
                hint=f"pass one value for each of {', '.join(self.schema.names) or 'no column'}",
            )
        columns = [_one_value(v, f) for v, f in zip(values, self.schema, strict=True)]
        if not columns:
            return byte_keys(np.zeros(2, np.int64), np.empty(0, np.uint8))
        batch = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        if self.null_rows(batch) is not None:
            raise FlowError(
                f"the key {tuple(values)} contains a null",
                hint="pass a value instead; nulls need key_by(..., nulls=True), and are never allowed "
                "inside lists and structs",
            )
        return self.encode(batch)

    def _columns(self, batch: pa.RecordBatch) -> list[pa.Array]:
        columns = []
        for field, type in zip(self.schema, self._types, strict=True):
            column = one_chunk(batch.column(field.name))
            columns.append(column if column.type == type else column.cast(type))
        return columns


def _narrow(ints: Array, type: pa.DataType) -> Array:
    dtype = physical(type)
    return ints.view(np.uint64) if dtype == np.uint64 else ints.astype(dtype, copy=False)


def _one_value(value: Any, field: pa.Field) -> pa.Array:
    try:
        try:
            column = pa.array([value], field.type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError):
            column = pa.array([value]).cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as problem:
        raise FlowError(
            f"{value!r} is not a valid value of the key column {field.name!r} of type {field.type}",
            hint="write the value as it is in the data",
        ) from problem
    return column
