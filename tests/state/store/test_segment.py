"""Segments: searched by key, read in part, and all damage is detected."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import CheckpointError
from penstock.state.keys import kernels as key_kernels
from penstock.state.keys.codec import KeyCodec, Keys
from penstock.state.store import segment, segment_kernels
from penstock.state.store.segment import SegmentFile, hash_order, write_segment
from penstock.state.table.columns import Column
from penstock.state.table.table import HASH, SLOT, ColumnTable
from tests.state.store.history import INTS, SLOTS, TEXTS, entries_of, keys_of, rows_of, schema_of

MANY = {key: (key, f"name {key}") for key in range(1000)}


@pytest.fixture(autouse=True, params=[0, 1 << 30], ids=["all hashes", "first hashes"])
def large_row(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test is for files with the hashes of all rows, and for files without."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment, "_LARGE_ROW", request.param)
        yield


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "_BLOCK_ROWS", 7)


def opened(codec: KeyCodec, changes: dict[Any, Any]) -> SegmentFile:
    data, checksum = write_segment(rows_of(codec, changes))
    return SegmentFile.open(data, "the file", codec, checksum)


def ordered(keys: Keys) -> Keys:
    return keys.take(hash_order(keys.hashes))


def found(codec: KeyCodec, file: SegmentFile, asked: list[Any]) -> dict[Any, Any]:
    """The entries of these keys. Checks that positions and rows match."""
    keys = ordered(keys_of(codec, asked))
    places, rows = file.find(keys, np.arange(len(keys)))
    table = file.take(rows)
    entries = entries_of(codec, table)
    assert [key for (key,) in codec.as_tuples(keys.take(places))] == list(entries)
    return entries


def test_a_segment_is_an_arrow_file_sorted_by_hash() -> None:
    data, _ = write_segment(rows_of(INTS, MANY))
    table = pa.ipc.open_file(data).read_all()
    assert table.schema.equals(schema_of(INTS))
    assert entries_of(INTS, table) == MANY
    hashes = table.column(HASH).to_pylist()
    assert hashes == sorted(hashes)
    slots = table.column(SLOT).to_pylist()
    assert slots == sorted(slots)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("codec", [INTS, TEXTS])
def test_keys_are_found_in_their_blocks(codec: KeyCodec) -> None:
    model = {(k if codec is INTS else f"k{k}"): v for k, v in MANY.items() if k % 3}
    file = opened(codec, model)
    assert file.rows == len(model)
    every = [k if codec is INTS else f"k{k}" for k in MANY]
    assert found(codec, file, every) == model
    assert found(codec, file, every[:1]) == {}
    assert found(codec, file, every[1:2]) == {every[1]: (1, "name 1")}
    assert found(codec, file, []) == {}


def test_only_blocks_that_may_contain_a_key_are_read(
    small_blocks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = opened(INTS, MANY)
    read: list[int] = []
    one = file._blocks.read
    monkeypatch.setattr(file._blocks, "read", lambda block: (read.append(block), one(block))[1])
    assert len(found(INTS, file, [1, 2])) == 2
    assert len(set(read)) <= 2


@pytest.mark.parametrize(("bytes_each", "reads"), [(40, True), (5000, False)])
def test_a_file_of_large_rows_is_not_read_for_keys_that_it_lacks(
    bytes_each: int, reads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment, "_LARGE_ROW", 1024)
    file = opened(INTS, {key: (key, "x" * bytes_each) for key in range(100)})
    read: list[int] = []
    one = file._blocks.read
    monkeypatch.setattr(file._blocks, "read", lambda block: (read.append(block), one(block))[1])
    assert found(INTS, file, list(range(1000, 1400))) == {}
    assert bool(read) is reads
    assert len(found(INTS, file, [3, 1003, 7])) == 2


def test_only_the_requested_positions_are_looked_up() -> None:
    file = opened(INTS, MANY)
    keys = ordered(keys_of(INTS, range(100)))
    which = np.arange(0, 100, 2)
    places, rows = file.find(keys, which)
    assert places.tolist() == which.tolist()
    assert list(entries_of(INTS, file.take(rows))) == [
        k for (k,) in INTS.as_tuples(keys.take(which))
    ]


@given(
    here=st.sets(st.text(max_size=12), max_size=60), asked=st.sets(st.text(max_size=12), max_size=9)
)
def test_texts_of_any_length(here: set[str], asked: set[str]) -> None:
    model = {key: (len(key), key) for key in here}
    file = opened(TEXTS, model)
    assert found(TEXTS, file, [*(asked | here)]) == model


@pytest.mark.parametrize("different", [1, 3])
def test_keys_with_the_same_hash_are_distinguished(
    monkeypatch: pytest.MonkeyPatch, different: int
) -> None:
    sizes = key_kernels.hash_bytes
    monkeypatch.setattr(segment, "_BLOCK_ROWS", 4)
    monkeypatch.setattr(
        key_kernels, "hash_bytes", lambda *key: sizes(*key) % np.uint64(different) << np.uint64(60)
    )
    model = {f"k{i}": (i, "x") for i in range(20)}
    file = opened(TEXTS, model)
    assert found(TEXTS, file, [*model, *(f"n{i}" for i in range(20))]) == model


@pytest.mark.usefixtures("small_blocks")
def test_rows_by_slot_and_by_hash() -> None:
    file = opened(INTS, MANY)
    table = file.between(0, file.rows)
    slots = np.array(table.column(SLOT))
    hashes = np.array(table.column(HASH))
    for slot in range(SLOTS):
        start, stop = file.span(slot)
        assert (slots[start:stop] == slot).all()
        assert stop - start == np.count_nonzero(slots == slot)
        assert file.between(start, stop).equals(table.slice(start, stop - start))
    for wanted in ([], [3], [0, 1], [1, 4, 7], list(range(SLOTS))):
        expected = table.filter(pa.array(np.isin(slots, wanted)))
        assert file.in_slots(np.array(wanted, np.int32)).equals(expected)
    for row in (0, 6, 7, 500, 999):
        assert file.hash_at(row) == hashes[row]
        assert file.after(int(hashes[row])) == row + 1
        assert file.after(int(hashes[row]) - 1) == row
    assert file.after(0) == 0
    assert file.after(2**64 - 1) == file.rows
    assert file.between(5, 5).num_rows == 0


def test_an_empty_segment() -> None:
    file = opened(INTS, {})
    assert file.rows == 0
    assert found(INTS, file, [1, 2]) == {}
    assert file.span(3) == (0, 0)
    assert file.in_slots(np.arange(SLOTS)).num_rows == 0
    assert file.between(0, 0).schema.equals(schema_of(INTS))


def read_all(data: bytes, checksum: int | None) -> pa.Table:
    file = SegmentFile.open(pa.py_buffer(data), "the file", INTS, checksum)
    return file.between(0, file.rows)


@pytest.mark.usefixtures("small_blocks")
def test_any_damaged_byte_is_detected_and_the_file_named() -> None:
    data, checksum = write_segment(rows_of(INTS, dict(list(MANY.items())[:20])))
    good = data.to_pybytes()
    assert read_all(good, checksum).num_rows == 20
    for at in range(len(good)):
        bad = bytearray(good)
        bad[at] ^= 1 << at % 8
        with pytest.raises(CheckpointError, match="the file is damaged"):
            read_all(bytes(bad), checksum)
    for length in range(0, len(good), 7):
        with pytest.raises(CheckpointError, match="the file is damaged"):
            read_all(good[:length], checksum)


@pytest.mark.usefixtures("small_blocks")
def test_a_damaged_block_is_detected_when_it_is_used() -> None:
    data, checksum = write_segment(rows_of(INTS, MANY))
    bad = bytearray(data.to_pybytes())
    bad[len(bad) // 2] ^= 1
    file = SegmentFile.open(pa.py_buffer(bytes(bad)), "the file", INTS, checksum)
    first = INTS.as_tuples(INTS.from_storage(file.between(0, 3).column("__key")))
    assert len(found(INTS, file, [key for (key,) in first])) == 3
    with pytest.raises(CheckpointError, match=r"the file is damaged: the checksum of block \d+ "):
        file.between(0, file.rows)


@pytest.mark.parametrize("codec", [INTS, TEXTS])
def test_a_delta_of_format_1_can_be_searched(codec: KeyCodec) -> None:
    model = {(k if codec is INTS else f"k{k}"): v for k, v in MANY.items()}
    old = rows_of(codec, model).drop_columns(HASH)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, old.schema) as writer:
        writer.write_table(old, max_chunksize=300)
    file = SegmentFile.open(sink.getvalue(), "the file", codec)
    assert file.schema.equals(schema_of(codec))
    assert found(codec, file, list(model)) == model
    start, stop = file.span(2)
    assert 0 < start < stop < file.rows


def test_blocks_are_small() -> None:
    texts = {key: (key, "x" * 10_000) for key in range(500)}
    data, _ = write_segment(rows_of(INTS, texts))
    reader = pa.ipc.open_file(data)
    assert 35 <= reader.num_record_batches <= 42, "about 128 KB each"
    keys = np.arange(200_000)
    flat = rows_of(INTS, {0: (0, "")}).take(pa.array(np.zeros(len(keys), np.int64)))
    flat = flat.set_column(0, schema_of(INTS).field(0), pa.array(keys.astype(np.uint64)))
    batches = pa.ipc.open_file(write_segment(flat)[0])
    rows = [batches.get_batch(i).num_rows for i in range(batches.num_record_batches)]
    assert max(rows) <= 1 << 16
    assert sum(rows) == len(keys)


@given(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 5), max_size=300))
def test_the_order_of_hashes(hashes: list[int]) -> None:
    array = np.array(hashes, np.uint64)
    assert hash_order(array).tolist() == np.argsort(array, kind="stable").tolist()


def test_crowded_hashes_use_another_sort() -> None:
    array = np.array([*range(500), 2**63], np.uint64)[::-1].copy()
    assert len(segment_kernels.hash_order(array)) == 0
    assert hash_order(array).tolist() == list(range(501))[::-1]


def test_huge_keys() -> None:
    """Keys of megabytes among small ones are stored, written, found and distinguished."""
    codec = KeyCodec(pa.schema([("k", pa.string())]))
    names = ["x" * 3_000_000, "x" * 3_000_000 + "y", "small", ""]
    keys = codec.encode(pa.RecordBatch.from_pydict({"k": names}, codec.schema))
    table = ColumnTable(codec, [Column("n", pa.int64())], slots=8)
    entries = table.upsert(keys)
    table.column("n")[entries] = np.arange(4)
    data, checksum = write_segment(table.delta())
    segment = SegmentFile.open(data, "file", codec, checksum)
    ordered = keys.take(np.argsort(keys.hashes))
    which, rows = segment.find(ordered, np.arange(len(ordered)))
    values = segment.take(rows)["n"].to_pylist()
    stored = dict(zip(codec.as_tuples(ordered.take(which)), values, strict=True))
    assert stored == {(name,): n for n, name in enumerate(names)}
