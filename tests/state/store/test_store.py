"""The store: atomic files, the manifest as commit point, retries of short failures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import CheckpointError, ProtocolError, SettingError, StoreError
from penstock.state.store import files
from penstock.state.store.files import Files
from penstock.state.store.retention import clean
from penstock.state.store.store import DeltaRef, Layout, Manifest, SegmentGone, StepLayout, Store
from penstock.testing import Fault, armed
from tests.state.store.history import INTS, History, entries_of, rows_of


def manifest(epoch: int, *deltas: DeltaRef, base: int = -1, layout: str = "") -> Manifest:
    return Manifest(epoch, 0, base, layout, deltas, {}, {"step": None}, 10, 0)


def delta(store: Store, epoch: int, changes: dict[int, Any]) -> DeltaRef:
    return store.write_delta(epoch, 0, "step", "step/0", rows_of(INTS, changes))


def names(store: Store) -> list[str]:
    return sorted(file.name for file in store.files.below(""))


def read_rows(store: Store, ref: DeltaRef) -> pa.Table:
    """All rows of a file."""
    segment = store.open_segment(ref, INTS)
    return segment.between(0, segment.rows)


def test_a_version_is_its_chain_of_manifests(store: Store) -> None:
    refs = []
    for epoch in range(3):
        refs.append(delta(store, epoch, {epoch: (epoch * 10, "x")}))
        store.write_manifest(manifest(epoch, refs[-1]))
    assert store.epochs() == [0, 1, 2]
    assert [m.epoch for m in store.chain(1).manifests] == [0, 1]
    assert store.chain(2).deltas("step") == list(enumerate(refs))
    assert store.chain(2).deltas("other") == []
    read = [entries_of(INTS, read_rows(store, ref)) for ref in refs]
    assert read == [{0: (0, "x")}, {1: (10, "x")}, {2: (20, "x")}]
    assert not [name for name in names(store) if name.endswith(".tmp")]


def test_a_chain_begins_after_its_layout(store: Store) -> None:
    layout = Layout(1, "a", {"step": StepLayout()})
    assert store.write_layout(layout) == layout.file == "layouts/000000000001-a.json"
    for epoch in range(4):
        base, file = (1, layout.file) if epoch > 1 else (-1, "")
        store.write_manifest(manifest(epoch, base=base, layout=file))
    chain = store.chain(3)
    assert (chain.version, chain.layout) == (3, layout)
    assert [m.epoch for m in chain.manifests] == [2, 3]
    assert [m.epoch for m in store.chain(1).manifests] == [0, 1]


def test_only_the_newest_manifest_of_a_known_chain_is_read_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = store.write_layout(Layout(0, "a", {}))
    store.write_manifest(manifest(0))
    for epoch in range(1, 4):
        store.write_manifest(manifest(epoch, base=0, layout=layout))
    known = store.chain(3)
    store.write_manifest(Manifest(3, 1, 0, layout, (), {}, {}, 0, 0))
    store.write_manifest(manifest(4, base=0, layout=layout))
    read: list[str] = []
    one = Files.read
    monkeypatch.setattr(Files, "read", lambda self, name: (read.append(name), one(self, name))[1])
    assert [m.run for m in store.chain(4, known).manifests] == [0, 0, 1, 0]
    assert read == ["manifests/000000000004.json", "manifests/000000000003.json"]


def test_a_history_of_epochs_compactions_and_clean_ups(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_AT_ONCE", 100)  # so that files are read in pieces
    history = History(store)
    for epoch in range(6):
        history.epoch(dict.fromkeys(range(epoch, 60, 5), (epoch, "x")))
        if epoch % 2:
            history.compact(least=500)
    history.epoch({1: None})
    assert clean(store, keep=2, newest=6).files > 0
    for version in (5, 6):
        history.check(version)
    assert store.damage(6) == ""


def test_an_empty_delta_is_not_written(store: Store) -> None:
    assert delta(store, 0, {}) == DeltaRef("step", "step/0", "", 0, 0)
    assert names(store) == []


def test_several_stores_see_the_same_files(store: Store) -> None:
    store.write_flow({"id": "flow"})
    other = Store(store.place)
    assert other.read_flow() == {"id": "flow"}
    other.write_flow({"id": "replaced"})
    assert store.read_flow() == {"id": "replaced"}


def test_folders_in_memory_are_independent() -> None:
    Store("memory://apart/one").write_flow({"id": "one"})
    assert Store("memory://apart/two").read_flow() is None
    assert Store("memory://elsewhere/one").read_flow() is None


def test_an_error_names_the_missing_file(store: Store) -> None:
    ref = delta(store, 0, {1: (1, "x")})
    store.write_manifest(manifest(0, ref))
    store.write_manifest(manifest(2))
    store.write_manifest(manifest(3, base=2, layout="layouts/000000000002-a.json"))
    with pytest.raises(CheckpointError, match="no manifest of epoch 5"):
        store.chain(5)
    with pytest.raises(CheckpointError, match="lacks the manifest of epoch 1"):
        store.chain(2)
    with pytest.raises(CheckpointError, match=r"lacks layouts/000000000002-a\.json"):
        store.chain(3)
    assert store.files.remove(ref.file)
    assert not store.files.remove(ref.file)
    with pytest.raises(SegmentGone, match=r"deltas/step/000000000000-0-step-0\.arrow"):
        store.open_segment(ref, INTS)


def test_any_damaged_byte_of_a_manifest_or_layout_is_detected(store: Store) -> None:
    store.write_manifest(manifest(0, DeltaRef("step", "step/0", "deltas/a", 1, 1, 1, "80")))
    layout = store.write_layout(Layout(0, "a", {"step": StepLayout()}))
    for name, read in (
        ("manifests/000000000000.json", lambda: store.read_manifest(0)),
        (layout, lambda: store.read_layout(layout)),
    ):
        good = store.files.read(name)
        assert good is not None
        for at in range(len(good)):
            if good[at : at + 1] == b" ":
                continue  # whitespace between JSON tokens does not matter
            store.files.write(name, good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
            with pytest.raises(CheckpointError, match=name):
                read()
        store.files.write(name, good)
        read()


@pytest.mark.parametrize("data", [b"", b"not arrow", b"ARROW1" + bytes(100) + b"ARROW1"])
def test_a_file_that_is_not_a_segment_is_rejected(store: Store, data: bytes) -> None:
    ref = delta(store, 0, {1: (1, "x")})
    store.files.write(ref.file, data)
    with pytest.raises(CheckpointError, match=r"000000000000-0-step-0\.arrow"):
        read_rows(store, ref)


def test_an_unknown_format_is_rejected(store: Store) -> None:
    store.write_manifest(manifest(0))
    name = "manifests/000000000000.json"
    facts = json.loads(store.files.read(name) or b"") | {"format": 99}
    store.files.write(name, json.dumps(facts).encode())
    with pytest.raises(
        CheckpointError, match="state format 99, but this release of Penstock reads 1 and 2"
    ):
        store.read_manifest(0)


def test_a_checkpoint_of_format_1_is_read(store: Store) -> None:
    old = rows_of(INTS, {5: (50, "five"), 6: None, 7: (70, "seven")}).drop_columns("__hash")
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, old.schema) as writer:
        writer.write_table(old)
    store.files.write("deltas/step/000000000003-0-step-0.arrow", sink.getvalue())
    file = {"step": "step", "host": "step/0", "file": "deltas/step/000000000003-0-step-0.arrow"}
    facts = {
        "epoch": 3, "run": 0, "base": 3, "deltas": [file | {"rows": 3, "size": 1}], "routes": {},
        "watermarks": {"step": None}, "rows": 3, "sealed_at_ms": 0, "format": 1,
    }  # fmt: skip
    store.files.write("manifests/000000000003.json", json.dumps(facts).encode())
    chain = store.chain(3)
    assert (chain.manifest.base, chain.manifest.layout, chain.layout) == (2, "", None)
    [(_, ref)] = chain.deltas("step")
    table = read_rows(store, ref)
    assert table.schema.names[0] == "__hash"
    assert entries_of(INTS, table.filter(table["__present"])) == {5: (50, "five"), 7: (70, "seven")}
    store.write_manifest(manifest(4, delta(store, 4, {6: (60, "six")}), base=2))
    assert [m.epoch for m in store.chain(4).manifests] == [3, 4]


def test_a_run_is_never_overwritten(store: Store) -> None:
    rows = rows_of(INTS, {1: (1, "x")})
    store.write_merged("runs", "step", 3, "a", rows)
    store.write_merged("snapshots", "step", 3, "a", rows)
    store.write_merged("runs", "step", 3, "b", rows)
    with pytest.raises(ProtocolError, match="already exists"):
        store.write_merged("runs", "step", 3, "a", rows)


def test_the_address_of_the_query(store: Store) -> None:
    assert store.read_control() is None
    store.remove_control()
    facts = {"location": "grpc://localhost:1", "pid": 7}
    store.write_control(facts)
    store.write_control(facts | {"pid": 8})
    assert store.read_control() == facts | {"pid": 8}
    store.remove_control()
    assert store.read_control() is None


def test_a_file_stays_readable_while_it_is_replaced_or_removed(store: Store) -> None:
    ref = delta(store, 0, {1: (1, "x")})
    before = store.open_segment(ref, INTS)
    again = delta(store, 0, {2: (2, "y")})
    after = store.open_segment(again, INTS)
    store.files.remove(again.file)
    assert entries_of(INTS, before.between(0, 1)) == {1: (1, "x")}
    assert entries_of(INTS, after.between(0, 1)) == {2: (2, "y")}


def test_a_short_failure_of_the_store_is_retried(tmp_path: Path) -> None:
    pauses: list[float] = []
    store = Store(str(tmp_path), pauses.append)
    with armed(Fault("store.write", OSError, hits=(1, 2))):
        store.write_manifest(manifest(0))
    assert store.epochs() == [0]
    assert pauses == [0.1, 0.2]


def test_a_full_store_is_an_error(tmp_path: Path) -> None:
    store = Store(str(tmp_path), lambda _: None)
    with (
        armed(Fault("store.write", OSError, hits=())),
        pytest.raises(StoreError, match=r"cannot write manifests/.*not committed"),
    ):
        store.write_manifest(manifest(0))


def test_an_unknown_uri_scheme() -> None:
    with pytest.raises(SettingError, match="cannot open the folder"):
        Store("nosuch://somewhere")
