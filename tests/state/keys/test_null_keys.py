"""Keys in which null is a value: it is decoded as null, equals no other value, and works in tables."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import FlowError
from penstock.state.keys.codec import KeyCodec
from penstock.state.table.columns import Column
from penstock.state.table.table import ColumnTable
from tests.console.checkpoint.checkpoints import making
from tests.state.keys.test_keys import COLUMNS, batch_of, bytes_of

PLACES = pa.array([0, None, 1, None, 3, 2])


def with_nulls(column: pa.Array) -> pa.Array:
    """The values of a column with nulls in between. (Arrow's `take` does not support all types.)"""
    if pa.types.is_dictionary(column.type):
        return column.cast(pa.string()).take(PLACES).dictionary_encode()
    if column.type == pa.string_view():
        return column.cast(pa.string()).take(PLACES).cast(column.type)
    return column.take(PLACES)


def check_there_and_back(batch: pa.RecordBatch) -> None:
    codec = KeyCodec(batch.schema, nulls=True)
    assert codec.layout == "bytes"
    for part in (batch, batch.slice(1, 3), batch.slice(1, 1), batch.slice(0, 0)):
        assert codec.null_rows(part) is None
        keys = codec.encode(part)
        for array, column in zip(codec.decode(keys), part.columns, strict=True):
            array.validate(full=True)
            assert array.type == column.type
            assert array.to_pylist() == column.to_pylist()
        again = codec.from_storage(codec.to_storage(keys))
        assert again.hashes.tolist() == keys.hashes.tolist()
        assert codec.as_tuples(again) == codec.as_tuples(keys)


@pytest.mark.parametrize("name", COLUMNS)
def test_one_column_of_each_type_comes_back(name: str) -> None:
    check_there_and_back(batch_of(with_nulls(COLUMNS[name])))
    check_there_and_back(batch_of(COLUMNS[name]))


def test_all_types_together_come_back() -> None:
    check_there_and_back(batch_of(*map(with_nulls, COLUMNS.values())))


row = st.tuples(
    st.none() | st.sampled_from([0, 1, 256]),
    st.none() | st.text(st.sampled_from("a\0\1"), max_size=2),
    st.none() | st.lists(st.integers(0, 1), max_size=2),
    st.none() | st.floats(0, 1, width=16),
)
TYPES = [pa.int16(), pa.string(), pa.list_(pa.int8()), pa.float64()]


@settings(max_examples=150)
@given(st.lists(row, min_size=1, max_size=12), st.integers(0, 11))
def test_bytes_are_equal_exactly_when_keys_are(rows: list[tuple[Any, ...]], first: int) -> None:
    columns = [pa.array(c, t) for c, t in zip(zip(*rows, strict=True), TYPES, strict=True)]
    batch = batch_of(*columns).slice(min(first, len(rows) - 1))
    rows = rows[-batch.num_rows :]
    codec = KeyCodec(batch.schema, nulls=True)
    keys = codec.encode(batch)
    assert codec.as_tuples(keys) == rows
    encoded = bytes_of(keys)
    for a, one in zip(rows, encoded, strict=True):
        for b, other in zip(rows, encoded, strict=True):
            assert (a == b) == (one == other)
    for a, hash in zip(rows, keys.hashes.tolist(), strict=True):
        assert codec.from_values(a).hashes[0] == hash


def test_the_memory_under_a_null_is_ignored() -> None:
    valid = pa.py_buffer(b"\x00")
    number = pa.Array.from_buffers(pa.int32(), 2, [valid, pa.py_buffer(np.array([3, 4], np.int32))])
    ends = pa.py_buffer(np.array([0, 1, 3], np.int32))
    text = pa.Array.from_buffers(pa.string(), 2, [valid, ends, pa.py_buffer(b"abc")])
    inner = pa.array([1, None, 3])
    lists = pa.Array.from_buffers(pa.list_(pa.int64()), 2, [valid, ends], children=[inner])
    batch = batch_of(number, text, lists)
    codec = KeyCodec(batch.schema, nulls=True)
    assert codec.null_rows(batch) is None
    one, other = bytes_of(codec.encode(batch))
    assert one == other == b"\0\0\0"


def test_nulls_inside_lists_and_structs_are_rejected() -> None:
    lists = pa.array([[1, None], None, [2]])
    structs = pa.array([{"a": 1}, {"a": None}, None])
    batch = batch_of(lists, structs)
    codec = KeyCodec(batch.schema, nulls=True)
    mask = codec.null_rows(batch)
    assert mask is not None
    assert mask.tolist() == [True, True, False]
    with pytest.raises(FlowError, match=r"contains a null.*What to do"):
        codec.from_values([[1, None], {"a": 1}])


def test_the_schema_restores_the_codec() -> None:
    codec = KeyCodec(pa.schema([("k", pa.int64())]), nulls=True)
    packed = pa.ipc.read_schema(codec.schema.serialize())
    for other in (pickle.loads(pickle.dumps(codec)), KeyCodec(codec.schema), KeyCodec(packed)):
        assert other.nulls
        assert other.layout == "bytes"
        assert other.from_values([None]).hashes[0] == codec.from_values([None]).hashes[0]
    plain = KeyCodec(pa.schema([("k", pa.int64())]))
    assert not plain.nulls
    assert plain.schema.metadata is None
    assert plain.layout == "int"


def test_the_encoding_matches_existing_checkpoints() -> None:
    codec = KeyCodec(pa.schema([("k", pa.string()), ("j", pa.int16())]), nulls=True)
    batch = pa.record_batch({"k": ["ab", None], "j": pa.array([None, 3], pa.int16())})
    keys = codec.encode(batch)
    assert bytes_of(keys) == [b"\1\2\0\0\0ab\0", b"\0\1\3\0"]


def test_a_key_without_columns_is_one_empty_key() -> None:
    codec = KeyCodec(pa.schema([]), nulls=True)
    assert codec.as_tuples(codec.encode(pa.record_batch({"v": [1, 2]}))) == [(), ()]


def test_a_table_keeps_null_keys_apart() -> None:
    codec = KeyCodec(pa.schema([("k", pa.string())]), nulls=True)
    table = ColumnTable(codec, [Column("total", pa.int64())], 8)
    keys = codec.encode(pa.record_batch({"k": pa.array(["", None, "a", None, ""])}))
    entries = table.upsert(keys)
    assert entries[0] == entries[4] != entries[1] == entries[3] != entries[2]
    table.column("total")[entries] = np.array([1, 2, 3, 2, 1])
    other = ColumnTable(codec, [Column("total", pa.int64())], 8)
    other.load(table.delta())
    assert other.column("total")[other.find(keys)].tolist() == [1, 2, 3, 2, 1]


def test_a_checkpoint_with_null_keys_can_be_inspected(tmp_path: Path) -> None:
    keys = KeyCodec(pa.schema([("word", pa.string()), ("n", pa.int64())]), nulls=True).schema
    epoch = [((None, 1), 10), (("null", 1), 20), (("a", None), 30)]
    _, checkpoint = making(tmp_path)(keys, epoch)
    for texts, total in ((["null,1"], 10), (['"null"', "1"], 20), (["a", "null"], 30)):
        history = checkpoint.history("words", texts)
        assert history is not None
        assert history.entry.state["total"] == total
    keys = [tuple(entry.key.values()) for entry in checkpoint.entries("words").entries]
    assert keys == [("a", None), ("null", 1), (None, 1)]
