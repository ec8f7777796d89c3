"""The reader compared with a plain dict: any version, by key, by slot and by time."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import CheckpointError
from penstock.state.keys import kernels as key_kernels
from penstock.state.keys.codec import KeyCodec
from penstock.state.store import merging, segment
from penstock.state.store.reader import StateReader
from penstock.state.store.store import Store
from penstock.state.table.patches import patch_fields, same_fields
from tests.state.store.history import (
    INTS,
    SLOTS,
    TEXTS,
    History,
    entries_of,
    keys_of,
    pieces_of,
    rows_of,
    schema_of,
)

MANY = {key: (key, f"name {key}") for key in range(500)}


def test_before_the_first_epoch_there_is_nothing(store: Store) -> None:
    reader = StateReader(store, "step", INTS, schema_of(INTS), SLOTS)
    assert reader.version is None
    reader.refresh(-1)
    assert reader.version == -1
    assert reader.find(keys_of(INTS, [1])).equals(schema_of(INTS).empty_table())
    assert reader.scan(0, None, 100) == (schema_of(INTS).empty_table(), None)
    assert reader.due(np.arange(SLOTS), {"total": 9}) == (schema_of(INTS).empty_table(), {})


def test_every_version_is_read_by_key_and_by_slot(store: Store) -> None:
    history = History(store)
    history.epoch(MANY)
    history.epoch({1: None, 2: (20, "changed"), 1000: (1, "new")})
    history.epoch({1: (1, "back"), 2: None, 1000: (2, "new"), 2000: None})
    for version in range(3):
        history.check(version)
    reader = history.reader(0)
    assert history.found(reader, [2, 1000]) == {2: (2, "name 2")}
    reader.refresh(1)
    assert history.found(reader, [2, 1000]) == {2: (20, "changed"), 1000: (1, "new")}
    reader.refresh(0)
    assert history.found(reader, [2, 1000]) == {2: (2, "name 2")}
    with pytest.raises(CheckpointError, match="no manifest of epoch 3"):
        reader.refresh(3)
    assert reader.version == 0


def test_a_key_may_be_requested_twice(store: Store) -> None:
    history = History(store)
    history.epoch(MANY)
    entries = history.reader().find(keys_of(INTS, [3, 4, 3, 5, 5]))
    assert sorted(entries.column("total").to_pylist()) == [3, 3, 4, 5, 5]


@pytest.mark.parametrize("about_bytes", [1, 1000, 10_000, 1 << 20])
def test_a_slot_is_read_in_pieces(
    store: Store, about_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment, "_BLOCK_ROWS", 16)
    history = History(store)
    history.epoch(MANY)
    history.compact(least=1000)
    history.epoch(dict.fromkeys(range(0, 500, 5)))
    history.epoch({key: (-key, "changed") for key in range(0, 500, 3)})
    reader = history.reader()
    assert history.scanned(reader, about_bytes) == history.versions[-1]
    pieces = list(pieces_of(reader, 0, about_bytes))
    assert len(pieces) == {1: len(pieces), 1000: len(pieces), 10_000: 1, 1 << 20: 1}[about_bytes]
    if about_bytes == 1:
        assert max(piece.num_rows for piece in pieces) == 1


def test_due_entries_and_the_next_times(store: Store) -> None:
    history = History(store)
    history.epoch({key: (key * 10, "x") for key in range(100)})
    history.compact(least=0)
    history.epoch({key: (5000 + key, "moved") for key in range(0, 100, 2)})
    history.compact(least=1 << 20)
    history.epoch({1: None, 3: (0, "no time"), 5: (-7, "long ago"), 200: (311, "new")})
    reader = history.reader()

    def due(limit: int, slots: list[int] | None = None) -> tuple[dict[Any, Any], dict[str, int]]:
        where = np.array(range(SLOTS) if slots is None else slots)
        table, beyond = reader.due(where, {"total": limit})
        return entries_of(INTS, table), beyond

    model = history.versions[-1]
    for limit in (-10, -7, 0, 69, 70, 300, 5000, 9999):
        expected = {k: v for k, v in model.items() if v[0] != 0 and v[0] <= limit}
        least = min((v[0] for v in model.values() if v[0] != 0 and v[0] > limit), default=None)
        assert due(limit) == (expected, {} if least is None else {"total": least})
    parts = [due(300, [slot]) for slot in range(SLOTS)]
    assert {k: v for part, _ in parts for k, v in part.items()} == due(300)[0]
    assert min(beyond["total"] for _, beyond in parts if beyond) == 310
    assert due(300, []) == ({}, {})


def test_files_stay_open_from_version_to_version(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = History(store)
    history.epoch(MANY, hosts=1)
    opened: list[str] = []
    one = Store.open_segment
    monkeypatch.setattr(
        Store,
        "open_segment",
        lambda self, ref, codec: (opened.append(ref.file), one(self, ref, codec))[1],
    )
    reader = history.reader()
    history.found(reader, [1])
    for epoch in range(1, 4):
        history.epoch({1: (epoch, "changed")}, hosts=1)
        reader.refresh(epoch)
        assert history.found(reader, [1, 2]) == {1: (epoch, "changed"), 2: (2, "name 2")}
    assert len(opened) == 4
    history.compact()
    history.epoch({})
    reader.refresh(4)
    assert len(reader._open) == 0


def test_removed_files_make_a_reader_move_to_the_newest_version(store: Store) -> None:
    history = History(store)
    history.epoch(MANY)
    history.compact(least=0)
    reader = history.reader()
    history.epoch({1: (10, "changed")})
    for _, ref in store.chain(0).deltas("step"):
        store.files.remove(ref.file)
    assert history.found(reader, [1, 2]) == {1: (10, "changed"), 2: (2, "name 2")}
    assert reader.version == 1
    reader = history.reader()
    for file in store.read_layout(history.layout).refs():
        store.files.remove(file.file)
    with pytest.raises(CheckpointError, match="lacks snapshots/step"):
        reader.find(keys_of(INTS, [2]))


def test_an_error_names_a_damaged_file_when_the_part_is_read(store: Store) -> None:
    history = History(store)
    history.epoch(MANY)
    history.compact(least=0)
    history.epoch({})
    bad = store.read_layout(history.layout).steps["step"].snapshots[3]
    data = store.files.read(bad.file) or b""
    middle = len(data) // 2
    store.files.write(bad.file, data[:middle] + bytes([data[middle] ^ 8]) + data[middle + 1 :])
    reader = history.reader()
    for slot in (2, 4):
        assert reader.scan(slot, None, 1 << 20)[0].num_rows > 0
    with pytest.raises(CheckpointError, match=f"{bad.file} of .* is damaged: the checksum of"):
        reader.scan(3, None, 1 << 20)
    with pytest.raises(CheckpointError, match=bad.file):
        reader.find(keys_of(INTS, MANY))


def test_state_with_another_schema_is_rejected(store: Store) -> None:
    history = History(store)
    history.epoch(MANY)
    schema = schema_of(INTS).append(pa.field("more", pa.int64()))
    reader = StateReader(store, "step", INTS, schema, SLOTS)
    reader.refresh(0)
    with pytest.raises(CheckpointError, match="total int64, name string, but the flow's step has"):
        reader.find(keys_of(INTS, [1]))


def test_several_threads_read_during_refreshes(store: Store) -> None:
    history = History(store)
    history.epoch(MANY)
    for epoch in range(1, 20):
        history.epoch(dict.fromkeys(range(0, 500, 7), (epoch, "same")))
        if epoch % 6 == 0:
            history.compact(least=0)
    reader = history.reader(0)
    wrong: list[object] = []

    def read() -> None:
        for _ in range(20):
            found = history.found(reader, [1, 7, 14])
            if len({found[7][0] - 7, found[14][0] - 14} - {0}) == 2 and found[7] != found[14]:
                wrong.append(found)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for version in range(20):
        reader.refresh(version)
    for thread in threads:
        thread.join()
    assert not wrong


def test_keys_with_equal_hashes_are_distinguished_by_the_reader(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    true = key_kernels.hash_bytes
    few = np.uint64(0xF << 60)
    monkeypatch.setattr(key_kernels, "hash_bytes", lambda *key: true(*key) & few)
    monkeypatch.setattr(segment, "_BLOCK_ROWS", 4)
    history = History(store, TEXTS)
    rng = np.random.default_rng(5)
    for epoch in range(8):
        some = [f"key {n}" for n in set(rng.integers(0, 120, 40).tolist())]
        history.epoch({key: None if rng.random() < 0.3 else (epoch, key) for key in some})
        if epoch in (2, 5):
            history.compact(range(0, 5), range(5, SLOTS), least=int(rng.integers(0, 1000)))
        history.check()
        assert history.scanned(history.reader(), 1) == history.versions[-1]


CHANGES = st.dictionaries(
    st.integers(-20, 20),
    st.none() | st.tuples(st.integers(-5, 5), st.text(max_size=3)),
    max_size=12,
)
ACTIONS = st.lists(
    st.tuples(st.just("epoch"), CHANGES)
    | st.tuples(st.just("compact"), st.tuples(st.integers(0, SLOTS), st.integers(0, 4000)))
    | st.tuples(st.just("look"), st.integers(0, 99)),
    min_size=3,
    max_size=20,
)


@settings(max_examples=40)
@given(st.sampled_from([INTS, TEXTS]), ACTIONS)
def test_any_history_reads_like_a_dict(codec: KeyCodec, actions: list[Any]) -> None:
    _counter[0] += 1
    history = History(Store(f"memory://histories/{_counter[0]}"), codec)
    history.epoch({})
    reader = history.reader()
    for what, how in actions:
        if what == "epoch":
            history.epoch({(k if codec is INTS else f"k{k}"): v for k, v in how.items()})
        elif what == "compact":
            cut, least = how
            history.compact(range(cut), range(cut, SLOTS), least=least)
        else:
            version = how % len(history.versions)
            reader.refresh(version)
            assert history.scanned(reader, 200) == history.versions[version]
    history.check()


_counter = [0]

LISTS = pa.schema([*schema_of(INTS), *patch_fields("l.__list", pa.list_(pa.int64()))])


def lists(rows: Mapping[int, tuple[list[int], bool] | None]) -> pa.Table:
    """Rows of a list state: elements, and whether they are appended to the existing ones."""
    plain = rows_of(INTS, {k: None if v is None else (len(v[0]), "") for k, v in rows.items()})
    values = list(rows.values())
    columns = [
        pa.array([None if v is None else v[0] for v in values], pa.list_(pa.int64())),
        pa.array([None if v is None else v[1] for v in values], pa.bool_()),
        pa.array([0 if v is not None and v[1] else None for v in values], pa.int64()),
    ]
    return pa.Table.from_arrays([*plain.columns, *columns], schema=LISTS)


class Lists(History):
    """A history of appends."""

    def epoch(self, changes: Mapping[Any, Any], hosts: int = 2) -> None:
        epoch = len(self.versions)
        ref = self.store.write_delta(epoch, 0, "step", "step/0", lists(changes))
        self.store.write_manifest(self.manifest(epoch, ref))
        now: dict[Any, Any] = dict(self.versions[-1]) if self.versions else {}
        for key, value in changes.items():
            if value is None:
                now.pop(key, None)
            else:
                now[key] = [*now[key], *value[0]] if value[1] else value[0]
        self.versions.append(now)

    def read(self, table: pa.Table) -> dict[Any, Any]:
        keys = [key for (key,) in INTS.as_tuples(INTS.from_storage(table.column("__key")))]
        assert not any(table.column("l.__list~patch").to_pylist())
        return dict(zip(keys, table.column("l.__list").to_pylist(), strict=True))


def test_patches_are_applied_to_older_rows(store: Store) -> None:
    history = Lists(store, schema=LISTS)
    rng = np.random.default_rng(3)
    for epoch in range(12):
        now = history.versions[-1] if history.versions else {}
        changes: dict[int, Any] = {}
        for key in set(rng.integers(0, 60, 25).tolist()):
            appends = key in now and rng.random() < 0.7
            gone = rng.random() < 0.2
            changes[key] = None if gone else (rng.integers(0, 9, 2).tolist(), appends)
        history.epoch(changes)
        if epoch in (3, 6, 9):
            history.compact(range(3), range(3, SLOTS), least=[0, 1 << 20, 2000][epoch // 3 - 1])
    for version, model in enumerate(history.versions):
        reader = StateReader(store, "step", INTS, LISTS, SLOTS)
        reader.refresh(version)
        assert history.read(reader.find(keys_of(INTS, range(60)))) == model
        scanned = [history.read(reader.scan(slot, None, 1 << 20)[0]) for slot in range(SLOTS)]
        assert {k: v for part in scanned for k, v in part.items()} == model
        table, _ = reader.due(np.arange(SLOTS), {"total": 2})
        assert history.read(table) == model


PHOTOS = pa.schema([*schema_of(INTS), *same_fields("photo.bytes", pa.binary())])


class Photos(History):
    """A history of values. A change is (number, value), or (number, None) to leave the value as it is."""

    def epoch(self, changes: Mapping[Any, Any], hosts: int = 2) -> None:
        epoch = len(self.versions)
        plain = rows_of(INTS, {k: None if v is None else (v[0], "") for k, v in changes.items()})
        values = [None if change is None else change[1] for change in changes.values()]
        same = [None if change is None else change[1] is None for change in changes.values()]
        columns = [*plain.columns, pa.array(values, pa.binary()), pa.array(same, pa.bool_())]
        table = pa.Table.from_arrays(columns, schema=PHOTOS)
        ref = self.store.write_delta(epoch, 0, "step", "step/0", table)
        self.store.write_manifest(self.manifest(epoch, ref))
        now: dict[Any, Any] = dict(self.versions[-1]) if self.versions else {}
        for key, change in changes.items():
            if change is None:
                now.pop(key, None)
            else:
                now[key] = (change[0], change[1] or now[key][1])
        self.versions.append(now)

    def read(self, table: pa.Table) -> dict[Any, Any]:
        keys = [key for (key,) in INTS.as_tuples(INTS.from_storage(table.column("__key")))]
        assert not any(table.column("photo.__same~bytes").to_pylist())
        rows = zip(
            table.column("total").to_pylist(), table.column("photo.bytes").to_pylist(), strict=True
        )
        return dict(zip(keys, rows, strict=True))


def test_values_that_were_left_out_come_from_older_rows(store: Store) -> None:
    history = Photos(store, schema=PHOTOS)
    rng = np.random.default_rng(5)
    for epoch in range(12):
        now = history.versions[-1] if history.versions else {}
        changes: dict[int, Any] = {}
        for key in set(rng.integers(0, 60, 25).tolist()):
            same, gone = key in now and rng.random() < 0.7, rng.random() < 0.2
            value = None if same else rng.bytes(int(rng.integers(1, 900)))
            changes[key] = None if gone else (int(rng.integers(9)), value)
        history.epoch(changes)
        if epoch in (3, 6, 9):
            history.compact(range(3), range(3, SLOTS), least=[0, 1 << 20, 2000][epoch // 3 - 1])
    for version, model in enumerate(history.versions):
        reader = StateReader(store, "step", INTS, PHOTOS, SLOTS)
        reader.refresh(version)
        assert history.read(reader.find(keys_of(INTS, range(60)))) == model
        scanned = [history.read(reader.scan(slot, None, 1 << 20)[0]) for slot in range(SLOTS)]
        assert {k: v for part in scanned for k, v in part.items()} == model


def test_a_patch_without_an_older_row_is_complete(store: Store) -> None:
    nothing: dict[int, Any] = {1: []}
    history = Lists(store, schema=LISTS, versions=[nothing])
    ref = store.write_delta(0, 0, "step", "step/0", lists({1: ([4, 5], True)}))
    store.write_manifest(history.manifest(0, ref))
    reader = StateReader(store, "step", INTS, LISTS, SLOTS)
    reader.refresh(0)
    assert history.read(reader.find(keys_of(INTS, [1]))) == {1: [4, 5]}


def test_rows_of_many_tables_newest_first() -> None:
    tables = [
        rows_of(INTS, {1: (1, "new"), 2: None}),
        rows_of(INTS, {2: (2, "old"), 3: (3, "old")}),
    ]
    rows = merging.newest(iter(tables), schema_of(INTS), INTS)
    assert rows.num_rows == 3
    assert entries_of(INTS, merging.whole(rows)) == {1: (1, "new"), 3: (3, "old")}
