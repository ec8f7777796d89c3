"""Dead letters: each is stored once, in few files, even after interruptions."""

from __future__ import annotations

import json
import logging

import pytest

from penstock.faults import Fault, InjectedFault, armed
from penstock.model import DeadLetter
from penstock.state.store import dead_letters
from penstock.state.store.store import Store

LOTS = 1 << 30


def write(store: Store, epochs: range) -> None:
    for epoch in epochs:
        store.write_dead_letters(epoch, [DeadLetter("step", str(n), "row", "e") for n in range(3)])


def stored(store: Store) -> list[tuple[int, str]]:
    letters = [json.loads(line) for line in dead_letters.letters(store)]
    return [(letter["epoch"], letter["key"]) for letter in letters]


def expected(epochs: range) -> list[tuple[int, str]]:
    return [(epoch, str(n)) for epoch in epochs for n in range(3)]


def files(store: Store) -> list[str]:
    return sorted(file.name.split("/")[1] for file in store.files.below("dead_letters"))


def test_letters_of_many_epochs_share_a_file(store: Store) -> None:
    for epoch in range(1000):
        write(store, range(epoch, epoch + 1))
        if epoch % 32 == 0:
            dead_letters.tidy(store, epoch, LOTS)
    dead_letters.tidy(store, 999, LOTS)
    assert stored(store) == expected(range(1000))
    assert len(files(store)) < 70
    assert "000000000999.jsonl" in files(store), "the newest epoch may be run again"
    dead_letters.tidy(store, 1040, LOTS)
    assert len(files(store)) < 40
    assert stored(store) == expected(range(1000))


def test_a_large_batch_stays(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "_BATCH_BYTES", 1000)
    for start in range(0, 200, 40):
        write(store, range(start, start + 40))
        dead_letters.tidy(store, start + 40, LOTS)
    assert len(files(store)) == 5
    assert stored(store) == expected(range(200))


def test_a_letter_exists_once_after_any_interruption(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(store, range(40))
    dead_letters.tidy(store, 40, LOTS)
    write(store, range(40, 80))
    with armed(Fault("store.write")), pytest.raises(InjectedFault):
        dead_letters.tidy(store, 80, LOTS)
    assert stored(store) == expected(range(80))
    remove, left = store.files.remove, 0
    for left in range(0, 41, 5):

        def failing(name: str, left: int = left) -> bool:
            if len(files(store)) <= left + 1:
                raise OSError("the store is gone")
            return remove(name)

        with monkeypatch.context() as patch:
            patch.setattr(store.files, "remove", failing)
            try:
                dead_letters.tidy(store, 80, LOTS)
            except OSError:
                assert stored(store) == expected(range(80))
        write(store, range(80 + left, 85 + left))
    dead_letters.tidy(store, 200, LOTS)
    assert stored(store) == expected(range(125))
    assert len(files(store)) == 1


def test_the_oldest_are_removed_beyond_the_limit(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(dead_letters, "_BATCH_BYTES", 1)
    for start in range(0, 160, 40):
        write(store, range(start, start + 40))
        dead_letters.tidy(store, start + 40, LOTS)
    size = sum(file.size for file in store.files.below("dead_letters"))
    with caplog.at_level(logging.WARNING, "penstock.store"):
        dead_letters.tidy(store, 160, size * 3 // 5)
    assert stored(store) == expected(range(80, 160))
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "removing dead letters of epochs 0 to 39",
        "removing dead letters of epochs 40 to 79",
    ]
