"""Keys: every type is decoded as it was encoded, distinct keys stay distinct, hashes never change."""

from __future__ import annotations

import datetime as dt
import pickle
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import FlowError
from penstock.state.keys import kernels
from penstock.state.keys.codec import KeyCodec, Keys, slots_of

DAY = dt.date(2024, 2, 29)
NOON = dt.datetime(2024, 2, 29, 12, 0, 0, 1)
COLUMNS: dict[str, pa.Array] = {
    "int64": pa.array([3, -1, 2**63 - 1, -(2**63)], pa.int64()),
    "int8": pa.array([1, -128, 127, 0], pa.int8()),
    "uint64": pa.array([1, 2**64 - 1, 3, 4], pa.uint64()),
    "bool": pa.array([True, False, True, True]),
    "date32": pa.array([DAY, dt.date(1, 1, 1), DAY, DAY]),
    "timestamp": pa.array([NOON, NOON, None, NOON]).fill_null(NOON).cast(pa.timestamp("us", "UTC")),
    "duration": pa.array([1, 2, 3, -4], pa.duration("us")),
    "time32": pa.array([1, 2, 3, 4], pa.time32("ms")),
    "string": pa.array(["a", "", "ccc", "ätherisch und länger"]),
    "large_string": pa.array(["a", "", "ccc", "d" * 100], pa.large_string()),
    "string_view": pa.array(["a", "", "ccc", "d" * 100], pa.string_view()),
    "dictionary": pa.array(["a", "b", "a", ""]).dictionary_encode(),
    "binary": pa.array([b"\0", b"", b"\0\0", b"x" * 17]),
    "fixed_binary": pa.array([b"abc", b"def", b"ghi", b"jkl"], pa.binary(3)),
    "float64": pa.array([1.5, 0.0, float("inf"), -2.25]),
    "float32": pa.array([1.5, 0.0, float("inf"), -2.25], pa.float32()),
    "decimal": pa.array([Decimal("1.50"), Decimal("-2.25"), Decimal(0), Decimal("9.99")]).cast(
        pa.decimal128(10, 2)
    ),
    "list": pa.array([[1, 2], [], [3], [4, 5, 6]]),
    "list of text": pa.array([["a", ""], [], ["xx"], ["p", "q", "r"]]),
    "list of lists": pa.array([[[1], [2, 3]], [], [[]], [[4], [], [5]]]),
    "fixed list": pa.array([[1, 2], [3, 4], [5, 6], [7, 8]], pa.list_(pa.int32(), 2)),
    "struct": pa.array(
        [{"a": 1, "b": "x"}, {"a": 2, "b": ""}, {"a": 3, "b": "yy"}, {"a": 4, "b": "z"}]
    ),
}


def batch_of(*columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns), [f"c{i}" for i in range(len(columns))])


def check_there_and_back(batch: pa.RecordBatch) -> None:
    codec = KeyCodec(batch.schema)
    for part in (batch, batch.slice(1, 2), batch.slice(3), batch.slice(0, 0)):
        assert codec.null_rows(part) is None
        keys = codec.encode(part)
        decoded = codec.decode(keys)
        for array, column in zip(decoded, part.columns, strict=True):
            array.validate(full=True)
            assert array.type == column.type
            assert array.to_pylist() == column.to_pylist()
        stored = codec.to_storage(keys)
        stored.validate(full=True)
        assert stored.type == codec.storage_type
        again = codec.from_storage(stored)
        assert again.hashes.tolist() == keys.hashes.tolist()
        assert codec.as_tuples(again) == codec.as_tuples(keys)


@pytest.mark.parametrize("name", COLUMNS)
def test_one_column_of_each_type_comes_back(name: str) -> None:
    check_there_and_back(batch_of(COLUMNS[name]))


def test_all_types_together_come_back() -> None:
    check_there_and_back(batch_of(*COLUMNS.values()))
    check_there_and_back(batch_of(*reversed(COLUMNS.values())))


@pytest.mark.parametrize("name", ["int64", "uint64", "bool", "timestamp", "date32"])
def test_one_number_is_kept_as_an_integer(name: str) -> None:
    codec = KeyCodec(batch_of(COLUMNS[name]).schema)
    assert (codec.layout, codec.storage_type) == ("int", pa.int64())


def test_take_returns_keys_in_the_requested_order() -> None:
    for names in (["int64"], ["string"], ["string", "int64"]):
        batch = batch_of(*(COLUMNS[name] for name in names)).slice(1)
        codec = KeyCodec(batch.schema)
        keys = codec.encode(batch)
        taken = keys.take(np.array([2, 0, 2]))
        tuples = codec.as_tuples(keys)
        assert codec.as_tuples(taken) == [tuples[2], tuples[0], tuples[2]]
        assert taken.hashes.tolist() == codec.from_storage(codec.to_storage(taken)).hashes.tolist()


def bytes_of(keys: Keys) -> list[bytes]:
    assert keys.offsets is not None
    assert keys.data is not None
    ends = keys.offsets.tolist()
    return [keys.data[a:b].tobytes() for a, b in pairwise(ends)]


text = st.text(st.sampled_from("ab\0"), max_size=3)
row = st.tuples(text, st.lists(text, max_size=2), text)


@settings(max_examples=100)
@given(st.lists(row, min_size=1, max_size=12))
def test_bytes_are_equal_exactly_when_keys_are(rows: list[tuple[str, list[str], str]]) -> None:
    types = [pa.string(), pa.list_(pa.string()), pa.string()]
    columns = [pa.array(c, t) for c, t in zip(zip(*rows, strict=True), types, strict=True)]
    batch = batch_of(*columns)
    encoded = bytes_of(KeyCodec(batch.schema).encode(batch))
    for a, one in zip(rows, encoded, strict=True):
        for b, other in zip(rows, encoded, strict=True):
            assert (a == b) == (one == other)


def test_floats_that_spark_takes_for_equal_are_one_key() -> None:
    nans = np.array([0x7FF8000000000000, 0xFFF8000000000001], np.uint64).view(np.float64)
    batch = batch_of(pa.array([0.0, -0.0, *nans]))
    encoded = bytes_of(KeyCodec(batch.schema).encode(batch))
    assert encoded[0] == encoded[1]
    assert encoded[2] == encoded[3] != encoded[0]


def test_rows_with_a_null_anywhere_in_the_key_are_found() -> None:
    nested = pa.array([[1, None], [2], None, [3]])
    struct = pa.array([{"a": 1}, {"a": None}, {"a": 2}, {"a": 3}])
    text = pa.array(["a", "b", "c", None])
    assert nulls(nested) == [True, False, True, False]
    assert nulls(struct) == [False, True, False, False]
    assert nulls(text, nested) == [True, False, True, True]
    assert nulls(nested, struct, text) == [True, True, True, True]
    assert nulls(nested.slice(1)) == [False, True, False]
    assert nulls(nested.slice(3)) is None


def nulls(*columns: pa.Array) -> list[bool] | None:
    batch = batch_of(*columns)
    mask = KeyCodec(batch.schema).null_rows(batch)
    return None if mask is None else mask.tolist()


def test_misaligned_memory_is_readable() -> None:
    """Flight may return buffers at any address."""
    values = np.arange(5, dtype=np.int64)
    buffer = pa.py_buffer(b"x" + values.tobytes()).slice(1)
    batch = batch_of(pa.Array.from_buffers(pa.int64(), 5, [None, buffer]))
    keys = KeyCodec(batch.schema).encode(batch)
    assert keys.ints is not None
    assert keys.ints.flags.aligned
    assert keys.ints.tolist() == values.tolist()


def test_a_key_without_columns_is_one_empty_key() -> None:
    codec = KeyCodec(pa.schema([]))
    keys = codec.encode(pa.record_batch({"v": [1, 2, 3]}))
    assert codec.as_tuples(keys) == [(), (), ()]
    assert codec.decode(keys) == []
    assert len(set(keys.hashes.tolist())) == 1
    assert codec.from_values([]).hashes[0] == keys.hashes[0]


def test_hashes_and_slots_match_existing_checkpoints() -> None:
    """If this fails, the state of every existing checkpoint would be searched in the wrong slots."""
    ints = KeyCodec(pa.schema([("k", pa.int64())])).encode(pa.record_batch({"k": [0, 1, -1]}))
    assert ints.hashes.tolist() == INT_HASHES
    texts = pa.record_batch({"k": ["", "a", "abcd", "abcdefgh", "abcdefghijklmnopq"]})
    hashes = KeyCodec(texts.schema).encode(texts).hashes
    assert hashes.tolist() == TEXT_HASHES
    assert slots_of(hashes, 1024).tolist() == TEXT_SLOTS
    pair = pa.record_batch({"k": ["a"], "j": pa.array([1], pa.int32())})
    assert bytes_of(KeyCodec(pair.schema).encode(pair)) == [b"\1\0\0\0a\1\0\0\0"]


INT_HASHES = [16294208416658607535, 10451216379200822465, 16490336266968443936]
TEXT_HASHES = [
    16294208416658607535,
    3862423473328736683,
    2875904359154799751,
    11123663042810495546,
    899955872332121857,
]
TEXT_SLOTS = [904, 214, 159, 617, 49]


def test_keys_are_spread_evenly_over_slots() -> None:
    keys = pa.record_batch({"k": [f"user-{i}" for i in range(64_000)]})
    for batch in (keys, pa.record_batch({"k": np.arange(64_000) * 1024})):
        slots = slots_of(KeyCodec(batch.schema).encode(batch).hashes, 64)
        counts = np.bincount(slots, minlength=64)
        assert len(counts) == 64
        assert 850 < counts.min() <= counts.max() < 1150
        assert slots.dtype == np.int32


def test_a_codec_pickles() -> None:
    batch = batch_of(COLUMNS["string"], COLUMNS["list"])
    codec = KeyCodec(batch.schema)
    copy = pickle.loads(pickle.dumps(codec))
    assert copy.encode(batch).hashes.tolist() == codec.encode(batch).hashes.tolist()


@pytest.mark.parametrize(
    ("type", "value"), [(pa.int64(), "17"), (pa.date32(), "2024-02-29"), (pa.string(), "x")]
)
def test_a_key_is_parsed_from_text(type: pa.DataType, value: Any) -> None:
    codec = KeyCodec(pa.schema([("k", type)]))
    batch = pa.RecordBatch.from_arrays([pa.array([value]).cast(type)], ["k"])
    assert codec.from_values([value]).hashes[0] == codec.encode(batch).hashes[0]


def test_an_invalid_key_is_rejected_with_a_hint() -> None:
    codec = KeyCodec(pa.schema([("k", pa.int64())]))
    for values in (["seven"], [None], [1, 2], []):
        with pytest.raises(FlowError, match="What to do"):
            codec.from_values(values)
    for type in (pa.map_(pa.string(), pa.int64()), pa.null(), pa.list_(pa.null())):
        with pytest.raises(FlowError, match=r"column 'm'.*What to do"):
            KeyCodec(pa.schema([("m", type)]))


def test_received_numbers_use_the_same_kernels() -> None:
    """numba compiles a second kernel for read-only arrays, such as those made from bytes."""
    codec = KeyCodec(pa.schema([("k", pa.string())]))
    keys = codec.encode(pa.record_batch({"k": ["a", "bb", "c"]}))
    kept = keys.take(np.array([2, 1]))
    before = kernels.gather_offsets.signatures, kernels.gather_bytes.signatures
    received = keys.take(np.frombuffer(np.array([2, 1]).tobytes(), np.int64))
    assert codec.as_tuples(received) == codec.as_tuples(kept) == [("c",), ("bb",)]
    assert (kernels.gather_offsets.signatures, kernels.gather_bytes.signatures) == before
