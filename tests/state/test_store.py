"""The store: whole files, the manifest as commit point, patience with a store that fails shortly."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.errors import CheckpointError, SettingError, StoreError
from penstock.state.store import DeltaRef, Manifest, Store


def manifest(epoch: int, *deltas: DeltaRef, base: int = 0) -> Manifest:
    return Manifest(epoch, 0, base, deltas, {}, {"step": None}, 10, 0)


def test_a_version_is_its_chain_of_manifests(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    refs = []
    for epoch in range(3):
        table = pa.table({"__key": [epoch], "v": [epoch * 10]})
        refs.append(store.write_delta(epoch, 0, "step", "step/0", table))
        store.write_manifest(manifest(epoch, refs[-1]))
    assert store.epochs() == [0, 1, 2]
    assert [m.epoch for m in store.chain(1)] == [0, 1]
    assert [m.epoch for m in store.chain(2)] == [0, 1, 2]
    assert [store.read_delta(r)["v"].to_pylist() for r in refs] == [[0], [10], [20]]
    assert not list(tmp_path.rglob("*.tmp"))


def test_an_empty_delta_is_not_written(tmp_path: Path) -> None:
    ref = Store(str(tmp_path)).write_delta(
        0, 0, "step", "step/0", pa.table({"v": pa.array([], "int64")})
    )
    assert ref.rows == 0
    assert not list(tmp_path.rglob("*.arrow"))


def test_what_is_missing_or_damaged_is_named(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    ref = store.write_delta(0, 0, "step", "step/0", pa.table({"v": [1]}))
    store.write_manifest(manifest(0, ref))
    store.write_manifest(manifest(2))
    with pytest.raises(CheckpointError, match="no manifest of epoch 5"):
        store.chain(5)
    with pytest.raises(CheckpointError, match="lacks the manifest of epoch 1"):
        store.chain(2)
    (tmp_path / ref.file).write_bytes(b"not arrow")
    with pytest.raises(CheckpointError, match=r"000000000000-0-step-0\.arrow"):
        store.read_delta(ref)
    (tmp_path / "manifests/000000000000.json").write_text("{")
    with pytest.raises(CheckpointError, match="damaged"):
        store.read_manifest(0)


def test_another_format_is_refused(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    store.write_manifest(manifest(0))
    file = tmp_path / "manifests/000000000000.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format": 99}))
    with pytest.raises(CheckpointError, match="state format 99"):
        store.read_manifest(0)


class Flaky(Store):
    """Refuses its first writes."""

    def __init__(self, uri: str, failures: int) -> None:
        self.pauses: list[float] = []
        super().__init__(uri, self.pauses.append)
        self.failures = failures

    def _write(self, name: str, data: bytes | pa.Buffer) -> None:
        if self.failures:
            self.failures -= 1
            raise OSError("no space left")
        super()._write(name, data)


def test_a_store_that_fails_shortly_is_asked_again(tmp_path: Path) -> None:
    store = Flaky(str(tmp_path), failures=2)
    store.write_manifest(manifest(0))
    assert store.epochs() == [0]
    assert len(store.pauses) == 2


def test_a_store_that_stays_full_says_so(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"no space left.*not committed"):
        Flaky(str(tmp_path), failures=99).write_manifest(manifest(0))


def test_a_folder_of_an_unknown_kind(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="cannot open the folder"):
        Store("nosuch://somewhere")
