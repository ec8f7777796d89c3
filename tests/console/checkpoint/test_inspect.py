"""`penstock state` on checkpoints made of deltas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.console.checkpoint.checkpoint import Checkpoint
from penstock.errors import CheckpointError, FlowError
from penstock.model import HostId
from tests.console.checkpoint.checkpoints import (
    HOSTS,
    SEALED,
    THREE,
    WORD,
    Epoch,
    Make,
    making,
    run,
)


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return making(tmp_path)


def test_later_deltas_win_and_removed_entries_are_gone(make: Make) -> None:
    _, checkpoint = make(WORD, *THREE)
    result = checkpoint.entries("words")
    assert [(e.key["word"], e.state["total"], e.epoch) for e in result.entries] == [
        ("a", 3, 2),
        ("c", 100, 0),
        ("d,e", 7, 2),
    ]
    assert result.total == 3


def test_an_earlier_epoch(make: Make) -> None:
    _, checkpoint = make(WORD, *THREE)
    result = checkpoint.entries("words", epoch=0)
    assert [e.key["word"] for e in result.entries] == ["a", "b", "c"]
    assert result.entries[0].state == {"total": 1, "name": "after 0"}


def test_a_removed_key_that_comes_back(make: Make) -> None:
    _, checkpoint = make(WORD, *THREE, {"b": 5})
    history = checkpoint.history("words", ["b"])
    assert history is not None
    assert [(c.epoch, c.present) for c in history.changes] == [(0, True), (1, False), (3, True)]
    assert history.entry.state["total"] == 5


def test_slots_and_hosts_are_those_of_the_routes(make: Make) -> None:
    writer, checkpoint = make(WORD, {f"w{i}": i for i in range(50)})
    entries = checkpoint.entries("words", limit=50).entries
    assert len(entries) == 50
    for entry in entries:
        assert entry.host == HOSTS[writer.routes.owner[entry.slot]]
        assert entry.host.replace("/", "-") in entry.file
        table = writer.tables[HOSTS.index(HostId(entry.host))]
        keys = writer.codec.from_values([entry.key["word"]])
        assert table.column("total")[table.find(keys)[0]] == entry.state["total"]


def test_limit(make: Make) -> None:
    _, checkpoint = make(pa.schema([("id", pa.int64())]), {i: i for i in range(100)})
    result = checkpoint.entries("words", limit=3)
    assert [e.key["id"] for e in result.entries] == [0, 1, 2]
    assert result.total == 100


def test_overview(make: Make, tmp_path: Path) -> None:
    _, checkpoint = make(WORD, *THREE)
    overview = checkpoint.overview()
    assert (overview.flow, overview.epoch, overview.sealed_at_ms) == ("f00d", 2, SEALED)
    (step,) = overview.steps
    files = list((tmp_path / "penstock" / "deltas" / "words").iterdir())
    assert step.keys == {"word": "string"}
    assert step.state == {"total": "int64", "name": "string"}
    assert step.hosts == {"words/0": 4, "words/1": 4}
    assert (step.entries, step.layout, step.damaged) == (3, None, ())
    assert (step.deltas.files, step.runs.files, step.snapshots.files) == (len(files), 0, 0)
    assert step.deltas.bytes == sum(file.stat().st_size for file in files)


def test_the_inner_folder_will_do(make: Make, tmp_path: Path) -> None:
    make(WORD, *THREE)
    assert Checkpoint(f"{tmp_path}/penstock/").overview().epoch == 2


def test_nothing_sealed_yet(make: Make) -> None:
    _, checkpoint = make(WORD)
    assert checkpoint.overview().epoch is None
    with pytest.raises(CheckpointError, match="no sealed epoch"):
        checkpoint.entries("words")


@pytest.mark.parametrize(
    ("keys", "key", "texts"),
    [
        (pa.schema([("id", pa.int32())]), (-7,), ["-7"]),
        (
            pa.schema([("w", pa.string()), ("day", pa.date32())]),
            ("x", "2026-01-31"),
            ["x,2026-01-31"],
        ),
        (pa.schema([("w", pa.string()), ("n", pa.int64())]), ("x,y", 3), ["x,y", "3"]),
        (pa.schema([("w", pa.string()), ("n", pa.int64())]), ("x,y", 3), ['"x,y",3']),
        (
            pa.schema([("at", pa.timestamp("us", tz="UTC"))]),
            ("2026-01-31 12:00:00Z",),
            ["2026-01-31 12:00:00Z"],
        ),
        (pa.schema([("d", pa.decimal128(10, 2))]), ("12.50",), ["12.50"]),
        (pa.schema([("raw", pa.binary())]), (b"\x00\xff",), ["0x00ff"]),
        (pa.schema([("s", pa.struct([("x", pa.int64())]))]), ({"x": 4},), ['{"x": 4}']),
        (pa.schema([("l", pa.list_(pa.string()))]), (["p", "q"],), ['["p", "q"]']),
    ],
)
def test_keys_of_many_types(
    make: Make, keys: pa.Schema, key: tuple[Any, ...], texts: list[str]
) -> None:
    _, checkpoint = make(keys, [(key, 42)])
    history = checkpoint.history("words", texts)
    assert history is not None
    assert history.entry.state["total"] == 42
    assert checkpoint.entries("words").entries[0].key == history.entry.key


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no folder"):
        Checkpoint(f"{tmp_path}/nowhere")


def test_not_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not a Penstock checkpoint"):
        Checkpoint(str(tmp_path))


def test_another_format(make: Make, tmp_path: Path) -> None:
    writer, _ = make(WORD)
    writer.store.write_flow({"format": 99, "id": "x", "steps": []})
    with pytest.raises(CheckpointError, match="format 99"):
        Checkpoint(str(tmp_path))


def test_unknown_step_and_epoch(make: Make) -> None:
    _, checkpoint = make(WORD, *THREE)
    with pytest.raises(CheckpointError, match=r"no step 'nosuch'.*one of: words"):
        checkpoint.entries("nosuch")
    with pytest.raises(CheckpointError, match=r"does not have epoch 9.*0 to 2"):
        checkpoint.entries("words", epoch=9)


@pytest.mark.parametrize(
    ("type", "text"),
    [(pa.int64(), "x"), (pa.binary(), "0xzz"), (pa.list_(pa.int64()), "[1"), (pa.int8(), "1000")],
)
def test_bad_key_text(make: Make, type: pa.DataType, text: str) -> None:
    _, checkpoint = make(pa.schema([("k", type)]), {})
    with pytest.raises(FlowError, match="is not a valid value of the key column 'k'"):
        checkpoint.history("words", [text])


def test_too_many_key_columns(make: Make) -> None:
    _, checkpoint = make(WORD, *THREE)
    with pytest.raises(FlowError, match="the key has 2 values instead of 1"):
        checkpoint.history("words", ["a", "b"])


def test_ls_and_show_on_the_command_line(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(WORD, *THREE)
    assert run("state", "ls", str(tmp_path)) == 0
    shown = capsys.readouterr().out
    assert "epoch 2, sealed 2026-01-02 03:04:05 UTC" in shown
    assert "8: words/0 (4), words/1 (4)" in shown

    assert run("state", "show", str(tmp_path), "--step", "words", "--limit", "2") == 0
    assert "2 of 3 entries" in capsys.readouterr().out

    assert run("state", "show", str(tmp_path), "--key", "d,e") == 0
    assert "000000000002-0-words-" in capsys.readouterr().out

    assert run("state", "show", str(tmp_path), "--key", "b") == 1
    assert "no entry for the key b" in capsys.readouterr().err


def test_json_on_the_command_line(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(WORD, *THREE)
    assert run("state", "ls", str(tmp_path), "--json") == 0
    assert json.loads(capsys.readouterr().out)["steps"][0]["entries"] == 3
    assert run("state", "show", str(tmp_path), "--json") == 0
    assert json.loads(capsys.readouterr().out)["entries"][0]["key"] == {"word": "a"}
    assert run("state", "show", str(tmp_path), "--json", "--key", "a") == 0
    assert [c["epoch"] for c in json.loads(capsys.readouterr().out)["changes"]] == [0, 1, 2]


def test_no_key_columns(make: Make) -> None:
    _, checkpoint = make(pa.schema([]), {(): 5}, {(): 5})
    (entry,) = checkpoint.entries("words").entries
    assert (entry.key, entry.state["total"]) == ({}, 10)


def test_many_entries_merge(make: Make) -> None:
    rng = np.random.default_rng(7)
    truth: dict[int, int] = {}
    epochs: list[Epoch] = []
    for _ in range(6):
        changes: dict[Any, int | None] = {}
        for key in rng.choice(40, 15, replace=False).tolist():
            changes[key] = None if key in truth and rng.random() < 0.3 else 1
            truth[key] = truth.get(key, 0) + 1
            if changes[key] is None:
                del truth[key]
        epochs.append(changes)
    _, checkpoint = make(pa.schema([("k", pa.int64())]), *epochs)
    result = {e.key["k"]: e.state["total"] for e in checkpoint.entries("words", limit=99).entries}
    assert result == truth
