"""`penstock state` on checkpoints with all kinds of files: merged, patched, old, damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.console.checkpoint.checkpoint import Checkpoint
from penstock.errors import CheckpointError
from penstock.model import StepId
from penstock.plan.migration import Migration
from penstock.plan.topology import Topology
from penstock.state.keys.codec import Keys, slots_of
from penstock.state.store.retention import clean
from penstock.state.store.store import FORMAT, Store, VersionChain
from penstock.state.table.patches import patch_fields
from tests.console.checkpoint.checkpoints import (
    HOSTS,
    SLOTS,
    THREE,
    WORD,
    Make,
    Writer,
    making,
    run,
)


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return making(tmp_path)


def compacted(make: Make) -> tuple[Writer, Checkpoint]:
    """Snapshots of epoch 0, a run of epochs 1 and 2 above them, and a delta."""
    writer, checkpoint = make(WORD, {f"w{i}": i for i in range(50)} | {"a": 1, "b": 10})
    writer.compact(least=0)
    writer.seal({"a": 1, "b": None})
    writer.seal({"c": 5})
    writer.compact()
    writer.seal({"a": 1, "c": None, "new": 3})
    return writer, checkpoint


def test_history_through_snapshot_run_and_delta(make: Make) -> None:
    _, checkpoint = compacted(make)
    history = checkpoint.history("words", ["a"])
    assert history is not None
    shown = [(c.kind, c.epoch, c.state["total"]) for c in history.changes]
    assert shown == [("snapshot", 0, 1), ("run", 2, 2), ("delta", 3, 3)]
    assert (history.entry.kind, history.entry.epoch, history.entry.state["total"]) == (
        "delta",
        3,
        3,
    )
    still = checkpoint.history("words", ["w7"])
    assert still is not None
    assert (still.entry.kind, still.entry.epoch, still.entry.file) == (
        "snapshot",
        0,
        still.changes[0].file,
    )
    for gone in ("b", "c", "nosuch"):
        assert checkpoint.history("words", [gone]) is None


def test_entries_through_snapshot_run_and_delta(make: Make) -> None:
    _, checkpoint = compacted(make)
    result = checkpoint.entries("words", limit=99)
    assert result.total == len(result.entries) == 52
    totals = {e.key["word"]: e.state["total"] for e in result.entries}
    assert totals == {f"w{i}": i for i in range(50)} | {"a": 3, "new": 3}
    assert checkpoint.entries("words", epoch=0).total == 52
    assert [e.key["word"] for e in checkpoint.entries("words", 1, limit=2).entries] == ["a", "w0"]


def test_overview_counts_snapshots_runs_and_deltas(make: Make, tmp_path: Path) -> None:
    _, checkpoint = compacted(make)
    (step,) = checkpoint.overview().steps
    assert (step.entries, step.layout) == (52, 2)
    for total, folder in ((step.snapshots, "snapshots"), (step.runs, "runs")):
        files = list((tmp_path / "penstock" / folder / "words").iterdir())
        assert (total.files, total.bytes) == (len(files), sum(f.stat().st_size for f in files))
        assert total.files
    assert step.deltas.files == len(list((tmp_path / "penstock/deltas/words").glob("*03-0*")))


@pytest.mark.parametrize("least", [0, 1 << 20])
def test_random_epochs_and_compactions(make: Make, least: int) -> None:
    rng = np.random.default_rng(3)
    writer, checkpoint = make(pa.schema([("k", pa.int64())]))
    versions: list[dict[int, int]] = []
    truth: dict[int, int] = {}
    for epoch in range(12):
        changes: dict[Any, int | None] = {}
        for key in rng.choice(60, 20, replace=False).tolist():
            remove = key in truth and rng.random() < 0.4
            changes[key] = None if remove else 1
            truth[key] = truth.get(key, 0) + 1
            if remove:
                del truth[key]
        writer.seal(changes)
        versions.append(dict(truth))
        if epoch in (2, 3, 7):
            writer.compact(least)
    for epoch, expected in enumerate(versions):
        entries = checkpoint.entries("words", epoch, limit=99).entries
        assert {e.key["k"]: e.state["total"] for e in entries} == expected
        for key in range(0, 60, 7):
            history = checkpoint.history("words", [str(key)], epoch)
            assert (history and history.entry.state["total"]) == expected.get(key)
    (step,) = checkpoint.overview().steps
    assert step.entries == len(truth)


# Maps and lists for which deltas contain only changes

PATCHES = pa.schema(
    [
        *patch_fields("pages.__map", pa.map_(pa.string(), pa.int64())),
        *patch_fields("log.__list", pa.list_(pa.string())),
    ]
)


def patched(make: Make) -> tuple[Writer, Checkpoint]:
    """A step with a map and a list: one key with its full state in epoch 0, then two patches."""
    writer, checkpoint = make(WORD)
    keys = writer.codec.from_values(["a"])
    (slot,) = slots_of(keys.hashes, SLOTS).tolist()
    frame = writer.tables[0].schema
    schema = pa.schema([*(frame.field(n) for n in range(4)), *PATCHES])
    rows = [
        {"pages.__map": [("x", 1), ("y", 2)], "log.__list": ["p", "q"]},
        {"pages.__map": [("y", 3)], "pages.__map~gone": ["x"], "log.__list": ["r"]},
        {"pages.__map": [("z", 4)], "log.__list": [], "log.__list~gone": 1},
    ]
    for epoch, row in enumerate(rows):
        stored = codec_row(writer, keys) | {"__slot": slot, "__present": True} | row
        stored |= {"pages.__map~patch": epoch > 0, "log.__list~patch": epoch > 0}
        host = HOSTS[writer.owner(keys)]
        writer.commit(writer.delta(host, pa.Table.from_pylist([stored], schema)))
    return writer, checkpoint


def codec_row(writer: Writer, keys: Keys) -> dict[str, Any]:
    return {"__hash": int(keys.hashes[0]), "__key": writer.codec.to_storage(keys)[0].as_py()}


@pytest.mark.parametrize("compactions", ["none", "run", "snapshot"])
def test_patches_are_folded(make: Make, compactions: str) -> None:
    writer, checkpoint = patched(make)
    if compactions != "none":
        schema = writer.store.open_segment(
            writer.store.chain(0).deltas("words")[0][1], writer.codec
        ).schema
        writer.compact(0 if compactions == "snapshot" else 1 << 20, schema)
        writer.commit()
    whole = {"pages.__map": [("y", 3), ("z", 4)], "log.__list": ["q", "r"]}
    history = checkpoint.history("words", ["a"])
    assert history is not None
    assert history.entry.state == whole
    assert [e.state for e in checkpoint.entries("words").entries] == [whole]
    if compactions == "none":
        assert [c.gone for c in history.changes] == [
            {},
            {"pages.__map": ["x"], "log.__list": None},
            {"pages.__map": None, "log.__list": 1},
        ]
        assert history.changes[1].state["log.__list"] == ["r"]
    else:
        assert [(c.kind, c.gone) for c in history.changes] == [(compactions, {})]


def test_patches_are_shown(make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    patched(make)
    assert run("state", "show", str(tmp_path)) == 0
    shown = capsys.readouterr().out
    assert "pages" in shown.splitlines()[0]
    assert '["q", "r"]' in shown
    assert run("state", "show", str(tmp_path), "--key", "a") == 0
    shown = capsys.readouterr().out
    assert 'added [["y", 3]] removed ["x"]' in shown
    assert "removed the first 1" in shown
    assert run("state", "ls", str(tmp_path)) == 0
    assert "~" not in capsys.readouterr().out


# Slots

LAZY = Migration.parse("lazy")


def placed(writer: Writer) -> None:
    """Epoch 0 with the first owners; then slots 0 and 1 move, and slot 7 is pending."""
    topology = Topology(StepId("words"), SLOTS, HOSTS)
    topology.advance(-1, HOSTS, LAZY)
    writer.placements = topology.placements_json()
    writer.seal({f"w{i}": i for i in range(50)})
    writer.compact(least=0)
    topology.move([0, 1], HOSTS[1])
    topology.advance(0, HOSTS, LAZY)
    topology.move([7], HOSTS[0])
    writer.routes, writer.placements = topology.routes, topology.placements_json()
    writer.seal({f"w{i}": 1 for i in range(50)})


def test_slots_are_shown_with_their_history(make: Make) -> None:
    writer, checkpoint = make(WORD)
    placed(writer)
    result = checkpoint.slots("words")
    assert (result.step, result.epoch, result.slots, result.layout) == ("words", 1, SLOTS, 0)
    shown = [(g.slots, g.host, g.since, g.why, g.source, g.home) for g in result.groups]
    assert shown == [
        ("0-1", "words/1", 0, "move", "words/0", "words/1"),
        ("2-3", "words/0", -1, "start", None, "words/0"),
        ("4-6", "words/1", -1, "start", None, "words/1"),
        ("7", "words/1", -1, "start", None, "words/0"),
    ]
    first = result.groups[0]
    assert (first.snapshots.slots, first.snapshots.oldest, first.snapshots.newest) == (2, 0, 0)
    assert (first.runs.files, first.deltas.files) == (0, 1)
    overview = checkpoint.overview().steps[0]
    assert sum(g.snapshots.bytes for g in result.groups) == overview.snapshots.bytes
    assert sum(g.deltas.bytes for g in result.groups) == pytest.approx(overview.deltas.bytes, abs=4)


def test_slots_on_the_command_line(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writer, _ = make(WORD)
    placed(writer)
    assert run("state", "slots", str(tmp_path)) == 0
    shown = capsys.readouterr().out
    assert "words at epoch 1: 8 slots, layout of version 0" in shown
    assert "2 slots, version 0" in shown
    assert run("state", "slots", str(tmp_path), "--step", "words", "--json") == 0
    (step,) = json.loads(capsys.readouterr().out)
    assert [g["host"] for g in step["groups"]] == ["words/1", "words/0", "words/1", "words/1"]
    assert run("state", "slots", str(tmp_path), "--step", "nosuch") == 2


# Format 1


def test_a_checkpoint_of_format_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer = Writer(tmp_path, WORD, format=1)
    for changes in THREE:
        writer.seal(changes)
    checkpoint = Checkpoint(str(tmp_path))
    result = checkpoint.entries("words")
    assert {e.key["word"]: e.state["total"] for e in result.entries} == {"a": 3, "c": 100, "d,e": 7}
    history = checkpoint.history("words", ["a"], epoch=1)
    assert history is not None
    assert [(c.epoch, c.state["total"]) for c in history.changes] == [(0, 1), (1, 2)]
    (step,) = checkpoint.overview().steps
    assert (step.entries, step.layout, step.state) == (
        3,
        None,
        {"total": "int64", "name": "string"},
    )
    slots = checkpoint.slots("words")
    assert [(g.slots, g.host, g.since, g.why) for g in slots.groups] == [
        ("0-3", "words/0", None, None),
        ("4-7", "words/1", None, None),
    ]
    assert run("state", "slots", str(tmp_path)) == 0
    assert "no layout yet" in capsys.readouterr().out
    # A query that continues on it writes format 2, and merges the old files.
    writer.format = FORMAT
    writer.seal({"a": 1, "c": None})
    writer.compact(least=0)
    writer.seal({"a": 1})
    result = checkpoint.entries("words")
    assert {e.key["word"]: e.state["total"] for e in result.entries} == {"a": 5, "d,e": 7}
    assert checkpoint.entries("words", epoch=3).total == 2


# Damaged and missing files


@pytest.mark.parametrize("folder", ["snapshots", "runs", "deltas"])
@pytest.mark.parametrize("harm", ["flip", "cut", "remove"])
def test_a_damaged_file_is_named(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str], folder: str, harm: str
) -> None:
    writer, checkpoint = compacted(make)
    chain = writer.store.chain(3)
    files = {ref.file for _, ref in chain.deltas("words")}
    files |= {ref.file for ref in chain.layout.refs()} if chain.layout else set()
    name = next(file for file in sorted(files) if file.startswith(folder))
    file = tmp_path / "penstock" / name
    data = bytearray(file.read_bytes())
    if harm == "remove":
        file.unlink()
    elif harm == "cut":
        file.write_bytes(data[: len(data) // 2])
    else:
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    assert run("state", "ls", str(tmp_path)) == 1
    assert name in capsys.readouterr().out
    assert checkpoint.overview().steps[0].entries is None
    assert run("state", "show", str(tmp_path)) == 2
    assert name in capsys.readouterr().err
    assert checkpoint.slots("words").groups


def test_a_version_that_is_removed_meanwhile(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, checkpoint = make(WORD, {"a": 1}, {"a": 1})
    read = Store.chain

    def overtaken(store: Store, version: int, known: VersionChain | None = None) -> VersionChain:
        chain = read(store, version, known)
        monkeypatch.setattr(Store, "chain", read)
        writer.compact()
        for _ in range(3):
            writer.seal({"a": 1})
        clean(writer.store, 2, writer.epoch - 1)
        return chain

    monkeypatch.setattr(Store, "chain", overtaken)
    result = checkpoint.entries("words")
    assert (result.epoch, result.entries[0].state["total"]) == (4, 5)
    monkeypatch.setattr(Store, "chain", overtaken)
    with pytest.raises(CheckpointError, match=r"epoch 3 of .* was removed while it was read"):
        checkpoint.entries("words", epoch=3)
