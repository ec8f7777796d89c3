"""Checkpoints that are damaged or made up: manifests, layouts, segments, names of files."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock import codec
from penstock.errors import CheckpointError
from penstock.plan import watermarks
from penstock.state.store.blocks import INDEX, frame_checksum, header_size
from penstock.state.store.retention import clean
from penstock.state.store.segment import SegmentFile, write_segment
from penstock.state.store.store import Store
from penstock.state.table.table import HASH
from tests.fuzz.fuzzing import ABSURD, bounded, fuzz, must_be_clear, mutated, numbers, plain
from tests.state.store.history import INTS, SLOTS, TEXTS, History, keys_of, rows_of

KEYS = {key: (key, "x" * (key % 5)) for key in range(200)}
_names = count()


@pytest.fixture(scope="module")
def written() -> dict[str, bytes]:
    """The files of a checkpoint with deltas, runs, snapshots and layouts."""
    history = History(Store(f"memory://fuzz-{next(_names)}"))
    for epoch in range(6):
        history.epoch({key: value for key, value in KEYS.items() if key % 3 == epoch % 3})
        if epoch in (1, 3):
            history.compact(least=0 if epoch == 3 else 1 << 20)
    files = history.store.files
    return {found.name: files.read(found.name) or b"" for found in files.below("")}


def copy_of(written: dict[str, bytes], **changed: bytes) -> Store:
    store = Store(f"memory://fuzz-{next(_names)}", pause=lambda _: None)
    for name, data in (written | changed).items():
        store.files.write(name, data)
    return store


def read_everything(store: Store) -> None:
    """All that reads a checkpoint: a host, a clean-up, a driver that starts."""
    history = History(store)
    epochs = store.epochs()
    newest = max(epochs, default=0)
    chain = store.chain(newest)
    watermarks.known_from(chain.manifest.event_times)
    reader = history.reader(newest)
    reader.find(keys_of(INTS, range(50)))
    for slot in range(SLOTS):
        reader.scan(slot, None, 1 << 16)
    clean(store, 2, newest)


def fixed(facts: dict[str, Any]) -> bytes:
    """A manifest or layout with the checksum that fits."""
    rest = {name: fact for name, fact in facts.items() if name not in ("format", "checksum")}
    head = {"format": facts.get("format", 2), "checksum": zlib.crc32(json.dumps(rest).encode())}
    return json.dumps(head | rest).encode()


def must_refuse_or_read(store: Store) -> None:
    with bounded():
        try:
            read_everything(store)
        except CheckpointError as refused:
            must_be_clear(refused)


@fuzz(100)
@given(st.data(), plain | numbers, st.integers(0, 60), st.booleans())
def test_manifests_and_layouts(
    written: dict[str, bytes], data: st.DataObject, change: Any, path: int, repaired: bool
) -> None:
    names = sorted(name for name in written if name.startswith(("manifests/", "layouts/")))
    name = data.draw(st.sampled_from(names[-3:] + names[:2]))
    facts = mutated(json.loads(written[name]), change, path)
    whole = fixed(facts) if repaired and isinstance(facts, dict) else json.dumps(facts).encode()
    must_refuse_or_read(copy_of(written, **{name: whole}))


@pytest.mark.parametrize("field", ["base", "epoch", "run", "rows", "sealed_at_ms", "time_ms"])
@pytest.mark.parametrize("number", ABSURD)
def test_absurd_numbers_in_a_manifest(written: dict[str, bytes], field: str, number: int) -> None:
    newest = max(name for name in written if name.startswith("manifests/"))
    facts = json.loads(written[newest]) | {field: number}
    must_refuse_or_read(copy_of(written, **{newest: fixed(facts)}))


@pytest.mark.parametrize("slots", ["ff" * 50_000, "0" * 3, "zz", "-1", "f" * (1 << 18)])
def test_absurd_sets_of_slots(written: dict[str, bytes], slots: str) -> None:
    for kind in ("manifests/", "layouts/"):
        newest = max(name for name in written if name.startswith(kind))
        text = json.dumps(json.loads(written[newest]))
        facts = json.loads(text)
        for ref in _refs(facts):
            ref["slots"] = slots
        must_refuse_or_read(copy_of(written, **{newest: fixed(facts)}))


def _refs(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict) and "file" in value:
        yield value
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for part in inner:
        yield from _refs(part)


@fuzz(50)
@given(st.data(), st.binary(max_size=30) | st.none(), st.integers(0, 10**6))
def test_any_file_that_is_another(
    written: dict[str, bytes], data: st.DataObject, content: bytes | None, at: int
) -> None:
    """A bit is another, the end is missing, or it is something else altogether."""
    name = data.draw(st.sampled_from(sorted(written)))
    whole = bytearray(written[name])
    if content is not None:
        changed = content
    elif at % 2:
        changed = bytes(whole[: at % len(whole)])
    else:
        whole[at % len(whole)] ^= 1 << (at % 8)
        changed = bytes(whole)
    must_refuse_or_read(copy_of(written, **{name: changed}))


@pytest.mark.parametrize(
    "name",
    ["manifests/x.json", "manifests/.json", "manifests/-1.json", "manifests/1.2.json",
     "manifests/999999999999.json", "layouts/x", "runs/a", "runs/step/1-2-3.arrow", "deltas/é.arrow",
     "manifests/000000000009.json.tmp", "manifests/folder/000000000001.json"],
)  # fmt: skip
def test_files_with_other_names(written: dict[str, bytes], name: str) -> None:
    must_refuse_or_read(copy_of(written, **{name: b"{}"}))


# Segments

_INDEX = ("rows", "hashes", "slots", "sizes", "checksums")


def use(segment: SegmentFile, keys: Any) -> None:
    order = np.argsort(keys.hashes, kind="stable")
    _, rows = segment.find(keys, order)
    segment.take(np.sort(rows))
    segment.between(0, 5)
    segment.in_slots(np.arange(SLOTS))
    for slot in range(SLOTS):
        segment.span(slot)
    segment.after(5)
    if segment.rows:
        segment.hash_at(segment.rows - 1)


def must_open_or_refuse(data: bytes, key_codec: Any, keys: Any, checksum: int | None) -> None:
    with bounded():
        try:
            use(SegmentFile.open(pa.py_buffer(data), "a file", key_codec, checksum), keys)
        except CheckpointError as refused:
            must_be_clear(refused)


def with_index(data: pa.Buffer, index: Any) -> tuple[bytes, int]:
    """The same blocks behind another index, with a checksum that fits."""
    with pa.ipc.open_file(data) as file:
        schema = file.schema.with_metadata({INDEX: json.dumps(index).encode()})
        batches = [file.get_batch(number) for number in range(file.num_record_batches)]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    made = sink.getvalue()
    sizes = index.get("sizes") if isinstance(index, dict) else None
    try:
        checksum = frame_checksum(made, header_size(made), sum(sizes))  # type: ignore[arg-type]
    except (TypeError, ValueError, IndexError, OverflowError, pa.ArrowException):
        checksum = 0
    return made.to_pybytes(), checksum


def index_of(data: pa.Buffer) -> dict[str, list[int]]:
    with pa.ipc.open_file(data) as file:
        return codec.decode((file.schema.metadata or {})[INDEX], dict[str, list[int]])


@fuzz(120)
@given(st.booleans(), plain | numbers, st.integers(0, 12))
@example(False, [10**15], 1)
@example(False, [-1], 1)
def test_an_index_that_is_another(texts: bool, change: Any, path: int) -> None:
    key_codec = TEXTS if texts else INTS
    changes = {str(k) if texts else k: v for k, v in KEYS.items()}
    data, _ = write_segment(rows_of(key_codec, changes))
    made, checksum = with_index(data, mutated(index_of(data), change, path))
    must_open_or_refuse(made, key_codec, keys_of(key_codec, changes), checksum)


@fuzz(80)
@given(st.integers(0, 10**6), st.booleans(), st.booleans())
def test_bits_and_ends_of_a_segment(at: int, cut: bool, checked: bool) -> None:
    data, checksum = write_segment(rows_of(INTS, KEYS))
    whole = bytearray(data.to_pybytes())
    if cut:
        whole = whole[: at % len(whole)]
    else:
        whole[at % len(whole)] ^= 1 << (at % 8)
    must_open_or_refuse(bytes(whole), INTS, keys_of(INTS, KEYS), checksum if checked else None)


@pytest.mark.parametrize("name", [HASH, "__key", "__slot", "__present"])
def test_a_segment_without_a_column_that_all_have(name: str) -> None:
    table = rows_of(INTS, KEYS)
    data, _ = write_segment(table)
    index = index_of(data)
    place = table.schema.get_field_index(name)
    for other in (None, pa.array(["x"] * table.num_rows)):
        made = table.remove_column(place)
        if other is not None:
            made = made.append_column(name, other)
        batch = made.combine_chunks().to_batches()[0]
        message = batch.serialize()
        index |= {"rows": [len(batch)], "sizes": [message.size], "hashes": [0], "slots": [0]}
        index |= {"checksums": [zlib.crc32(message)]}
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, batch.schema) as writer:
            writer.write_batch(batch)
        whole, checksum = with_index(sink.getvalue(), index)
        must_open_or_refuse(whole, INTS, keys_of(INTS, KEYS), checksum)


def test_a_checkpoint_of_nothing_but_garbage(tmp_path: Path) -> None:
    store = Store(str(tmp_path), pause=lambda _: None)
    for name in ("flow.json", "control.json", "journal/1-1.jsonl", "owner.json"):
        store.files.write(name, b"\xff\x00garbage")
    for read in (store.read_flow, store.read_control, lambda: store.journal_entries(dict)):
        with pytest.raises(CheckpointError):
            read()
