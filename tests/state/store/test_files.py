"""Files: retries of a store that fails, durability of writes, and files that vanish."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import CheckpointError, StoreError
from penstock.faults import Fault, armed
from penstock.state.store import blocks, files
from penstock.state.store.blocks import SegmentGone
from penstock.state.store.files import FilePieces, Files
from penstock.state.store.places import Place, open_filesystem
from penstock.state.store.s3 import s3_options
from penstock.state.store.store import Store
from tests.state.store.history import INTS, entries_of, rows_of

OPERATIONS: dict[str, Callable[[Files], object]] = {
    "store.read/read": lambda some: some.read("a/file"),
    "store.read/open": lambda some: some.open("a/file"),
    "store.read/exists": lambda some: some.exists("a/file"),
    "store.read/below": lambda some: some.below("a"),
    "store.write/write": lambda some: some.write("a/file", b"data"),
    "store.write/put": lambda some: some.put_if_absent("a/other", b"data"),
    "store.write/publish": lambda some: some.publish(some.prepare("a/file", b"data")),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_short_failures_are_retried(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    waited: list[tuple[float, str]] = []
    some = Files(str(tmp_path), lambda pause_s: waited.append((pause_s, some.trouble)))
    some.write("a/file", b"data")
    with armed(Fault(name.split("/")[0], OSError, hits=(1, 2, 3))), caplog.at_level("WARNING"):
        OPERATIONS[name](some)
    pauses = [pause_s for pause_s, _ in waited]
    assert pauses == [0.1, 0.2, 0.4]
    assert all("cannot" in trouble for _, trouble in waited)
    assert some.trouble == ""
    assert [(r.name, r.levelno) for r in caplog.records] == [
        ("penstock.store", logging.WARNING)
    ] * 2
    assert "is done after 0.7 s" in caplog.text


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_failure_of_a_minute_is_an_error(tmp_path: Path, name: str) -> None:
    pauses: list[float] = []
    some = Files(str(tmp_path), pauses.append)
    some.write("a/file", b"data")
    full = OSError(errno.ENOSPC, "no space left on device")

    def refuse(_: object) -> None:
        raise full

    with (
        armed(Fault(name.split("/")[0], refuse, hits=())),
        pytest.raises(StoreError, match=r"cannot (read|write) a.*no space left"),
    ):
        OPERATIONS[name](some)
    assert sum(pauses) == pytest.approx(60)
    assert some.trouble == ""


@pytest.mark.parametrize("refusal", [PermissionError, NotADirectoryError])
def test_permanent_errors_are_not_retried(tmp_path: Path, refusal: type[OSError]) -> None:
    pauses: list[float] = []
    some = Files(str(tmp_path), pauses.append)
    with armed(Fault("store.write", refusal)), pytest.raises(StoreError, match="cannot write"):
        some.write("a/file", b"data")
    assert some.read("a/file") is None
    assert not some.remove("a/file")
    assert pauses == []


def test_a_full_disk_keeps_no_incomplete_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, one = [3], os.write

    def write(file: int, data: memoryview) -> int:
        left[0] -= 1
        if left[0] >= 0:
            one(file, data[:1])
            raise OSError(errno.ENOSPC, "no space left on device")
        return one(file, data[: max(1, len(data) // 2)])

    monkeypatch.setattr(os, "write", write)
    some = Files(str(tmp_path), lambda _: None)
    some.write("a/file", b"all of it")
    assert some.read("a/file") == b"all of it"
    assert [file.name for file in some.below("")] == ["a/file"]


def test_a_file_is_synced_before_its_rename_and_the_folder_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, one = tmp_path / "new" / "root", os.fsync
    synced: list[tuple[str, bool]] = []

    def fsync(handle: int) -> None:
        path = os.readlink(f"/proc/self/fd/{handle}")
        name = "file" if path.endswith(".tmp") else os.path.relpath(path, tmp_path)
        synced.append((name, (root / "deltas/step/a").exists()))
        one(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    some = Files(str(root))
    some.write("deltas/step/a", b"data")
    folders = [("new/root/deltas", False), ("new/root", False), ("new", False), (".", False)]
    assert synced[:4] == folders
    assert synced[-2:] == [("file", False), ("new/root/deltas/step", True)]
    synced.clear()
    some.write("deltas/step/b", b"data")
    assert [name for name, _ in synced] == ["file", "new/root/deltas/step"]
    synced.clear()
    some.write("deltas/other/c", b"data")
    assert [name for name, _ in synced] == ["new/root/deltas", "file", "new/root/deltas/other"]
    synced.clear()
    some.write("deltas/step/d", b"data", durable=False)
    assert synced == []


def test_a_file_that_shrinks_under_a_reader_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A memory-mapped file would kill the process."""
    store = Store(str(tmp_path))
    monkeypatch.setattr(files, "_AT_ONCE", 0)
    rows = rows_of(INTS, {key: (key, "x" * 20) for key in range(40_000)})
    ref = store.write_delta(0, 0, "step", "step/0", rows)
    segment = store.open_segment(ref, INTS)
    assert segment.between(0, 1).num_rows == 1
    os.truncate(tmp_path / ref.file, ref.size // 2)
    with pytest.raises(CheckpointError, match="is damaged: the checksum of block"):
        segment.between(0, segment.rows)
    assert store.damage(0) != ""


def test_a_stale_file_handle_counts_as_a_missing_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file on NFS that another process has removed. A reader then moves to a newer version."""
    store = Store(str(tmp_path))
    monkeypatch.setattr(files, "_AT_ONCE", 0)
    ref = store.write_delta(0, 0, "step", "step/0", rows_of(INTS, {1: (1, "x")}))
    segment = store.open_segment(ref, INTS)

    def stale(*_: object) -> bytes:
        raise OSError(errno.ESTALE, "stale file handle")

    monkeypatch.setattr(os, "pread", stale)
    with pytest.raises(SegmentGone):
        segment.between(0, 1)


def test_large_files_are_not_kept_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(str(tmp_path))
    monkeypatch.setattr(files, "_AT_ONCE", 0)
    ref = store.write_delta(0, 0, "step", "step/0", rows_of(INTS, {1: (1, "x")}))
    before = len(os.listdir("/proc/self/fd"))
    opened = [store.open_segment(ref, INTS) for _ in range(10)]
    assert [segment.between(0, 1).num_rows for segment in opened] == [1] * 10
    assert len(os.listdir("/proc/self/fd")) == before


def test_blocks_of_large_files_are_kept_up_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_AT_ONCE", 0)
    monkeypatch.setattr(blocks, "_kept", kept := blocks._Kept())
    store = Store(str(tmp_path))
    changes = {key: (key, "x" * 20) for key in range(40_000)}
    ref = store.write_delta(0, 0, "step", "step/0", rows_of(INTS, changes))
    read: list[int] = []
    one = FilePieces.slice
    monkeypatch.setattr(
        FilePieces, "slice", lambda self, at, size: (read.append(at), one(self, at, size))[1]
    )
    segment = store.open_segment(ref, INTS)
    opened = len(read)
    assert entries_of(INTS, segment.between(0, segment.rows)) == changes
    first = len(read) - opened
    assert first > 10
    segment.between(0, segment.rows)
    assert len(read) == opened + first
    monkeypatch.setattr(blocks, "_KEPT_BYTES", 300_000)
    segment = store.open_segment(ref, INTS)
    assert entries_of(INTS, segment.between(0, segment.rows)) == changes
    assert kept._bytes <= 300_000
    assert kept._bytes == sum(block.rows.nbytes for block in kept._blocks.values())


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("file:/data/x", "/data/x"),
        ("file:///data/x/", "/data/x"),
        ("file://localhost/data/x", "/data/x"),
        ("file:///data/a%20b%3F", "/data/a b?"),
        ("/data/a%20b?c", "/data/a%20b?c"),
        ("~/x", os.path.expanduser("~/x")),
        ("x", os.path.abspath("x")),
    ],
)
def test_ways_to_name_a_local_folder(uri: str, path: str) -> None:
    filesystem, opened = open_filesystem(uri)
    assert (filesystem.type_name, opened) == ("local", path)


def test_s3_options_from_a_uri_and_from_spark_settings() -> None:
    settings = {
        "access.key": "key", "secret.key": "secret", "session.token": "token",
        "endpoint": "minio:9000", "endpoint.region": "eu-west-1", "connection.ssl.enabled": "false",
        "path.style.access": "true", "aws.credentials.provider": "some.Provider",
    }  # fmt: skip
    options, missing = s3_options(settings)
    assert dict(options) == {
        "access_key": "key", "secret_key": "secret", "session_token": "token",
        "endpoint_override": "minio:9000", "region": "eu-west-1", "scheme": "http",
    }  # fmt: skip
    assert missing == ["aws.credentials.provider"]
    hosted, _ = s3_options(settings | {"path.style.access": "false"})
    assert dict(hosted)["force_virtual_addressing"] is True
    place = Place("s3a://bucket/flow%20a/penstock?region=us-east-2", options)
    filesystem, path = open_filesystem(place)
    assert (filesystem.type_name, path) == ("s3", "bucket/flow a/penstock")
    assert filesystem.region == "us-east-2"
    assert repr(place).count("key") == repr(place).count("secret") == 0


def test_a_prepared_file_is_seen_when_it_is_published(tmp_path: Path) -> None:
    some = Files(str(tmp_path))
    ready = some.prepare("a/file", b"data")
    assert some.read("a/file") is None
    some.publish(ready)
    assert some.read("a/file") == b"data"
    dropped = some.prepare("a/other", b"data")
    some.discard(dropped)
    assert [file.name for file in some.below("a")] == ["a/file"]


def test_a_prepared_file_that_is_gone_is_written_again(tmp_path: Path) -> None:
    some = Files(str(tmp_path))
    ready = some.prepare("a/file", b"data")
    some.discard(ready)
    some.publish(ready)
    assert some.read("a/file") == b"data"
