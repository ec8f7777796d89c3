"""A damaged file in the newest version: the version before it and a second run of the epoch repair it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.spark.checkpoint import Folder, version_to_resume
from penstock.state.store.places import Place
from penstock.state.store.store import Store
from tests.trials.cluster import SETTINGS
from tests.trials.trial import Trial, Turn, trial

pytestmark = pytest.mark.timeout(60)


def _flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0x10
    file.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "flipped": _flip,
    "cut": lambda file: os.truncate(file, file.stat().st_size // 2),
    "missing": Path.unlink,
}
KINDS = ("manifest", "layout", "delta", "run")


class SparkLog:
    """Spark's part of a checkpoint: the epochs begun and committed."""

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint
        self.folder = Folder(f"file://{checkpoint}", Place(str(checkpoint)))
        for name in ("offsets", "commits"):
            (checkpoint / name).mkdir(parents=True)

    def note(self, name: str, epoch: int) -> None:
        for file in (str(epoch), f".{epoch}.crc"):
            (self.checkpoint / name / file).write_text("v1")

    def begun(self) -> int:
        """The epoch that Spark starts with: the one that it has not committed, or the next."""
        newest = {
            name: max((int(f.name) for f in (self.checkpoint / name).glob("[0-9]*")), default=-1)
            for name in ("offsets", "commits")
        }
        return newest["offsets"] + (newest["offsets"] == newest["commits"])


def newest_file(store: Store, kind: str, version: int) -> str:
    """A file that was added by this version."""
    chain = store.chain(version)
    if kind == "manifest":
        return store.manifest_files()[version]
    if kind == "delta":
        return chain.manifest.deltas[0].file
    assert chain.layout is not None
    return chain.layout.file if kind == "layout" else chain.layout.refs()[0].file


def run_until_damaged(flow: Trial, log: SparkLog, kind: str, how: str) -> list[list[object]]:
    """Run epochs until the newest version has its own file of this kind, and damage the file."""
    store = Store(flow.cluster.store)
    layouts = set[str]()
    for seed in range(20):
        turn = Turn(seed)
        epoch = flow.cluster.epoch
        log.note("offsets", epoch)
        flow.take(turn)
        log.note("commits", epoch)
        flow.cluster.await_upkeep()
        layout = store.chain(epoch).manifest.layout
        fresh, _ = layout not in layouts, layouts.add(layout)
        if seed > 1 and (kind in ("manifest", "delta") or (layout and fresh)):
            assert store.damage(epoch) == ""
            DAMAGES[how](Path(flow.cluster.store) / newest_file(store, kind, epoch))
            assert store.damage(epoch) != ""
            return flow.rows(turn)  # type: ignore[return-value]
    raise AssertionError("no such file was written")


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_newest_version(
    tmp_path: Path, kind: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    log = SparkLog(tmp_path)
    with trial("ledger", str(tmp_path / "penstock"), hosts=2) as flow:
        rows = run_until_damaged(flow, log, kind, how)
        on = flow.cluster
        newest = on.epoch - 1
        output = on.output(newest)
        on.restart()
        with caplog.at_level("WARNING"):
            version = version_to_resume(log.folder, Store(on.store))
        assert version == newest - 1
        assert [r.getMessage().split(" (")[0] for r in caplog.records] == [
            f"Version {newest} of {on.store} is damaged"
        ]
        on.epoch = log.begun()
        assert on.epoch == newest
        on.run(rows)
        assert on.output(newest) == output
        assert Store(on.store).damage(newest) == ""
        for seed in range(3):
            flow.take(Turn(seed))
        flow.check()


def test_where_sparks_log_does_not_allow_it_nothing_is_taken_back(tmp_path: Path) -> None:
    """Spark replays one epoch only, and it has already begun the one after the damaged epoch."""
    log = SparkLog(tmp_path)
    with trial("sums", str(tmp_path / "penstock"), hosts=1) as flow:
        run_until_damaged(flow, log, "delta", "cut")
        newest = flow.cluster.epoch - 1
        log.note("offsets", newest + 1)
        assert version_to_resume(log.folder, Store(flow.cluster.store)) == newest
        assert (tmp_path / "commits" / str(newest)).exists()


def test_where_the_version_before_is_not_whole_nothing_is_taken_back(tmp_path: Path) -> None:
    log = SparkLog(tmp_path)
    settings = replace(SETTINGS, compact_epochs=1000)
    with trial("sums", str(tmp_path / "penstock"), hosts=1, settings=settings) as flow:
        run_until_damaged(flow, log, "manifest", "flipped")
        store, newest = Store(flow.cluster.store), flow.cluster.epoch - 1
        Path(flow.cluster.store, newest_file(store, "delta", newest - 1)).unlink()
        assert version_to_resume(log.folder, store) == newest
        assert (tmp_path / "commits" / str(newest)).exists()


def test_the_first_epoch_is_run_again_from_nothing(tmp_path: Path) -> None:
    log = SparkLog(tmp_path)
    with trial("sums", str(tmp_path / "penstock"), hosts=1) as flow:
        log.note("offsets", 0)
        flow.take(Turn(1))
        log.note("commits", 0)
        store = Store(flow.cluster.store)
        DAMAGES["flipped"](Path(flow.cluster.store) / newest_file(store, "manifest", 0))
        assert version_to_resume(log.folder, store) == -1
        output = flow.cluster.output(0)
        flow.cluster.restart()
        flow.cluster.epoch = log.begun()
        flow.cluster.run(flow.rows(Turn(1)))
        assert flow.cluster.output(0) == output
        flow.check()
