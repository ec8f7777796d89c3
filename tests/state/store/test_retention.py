"""Retention: files of kept versions stay, whatever happens meanwhile, and all others are removed."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import CheckpointError, SettingError
from penstock.model import DeadLetter
from penstock.state.store.files import Files
from penstock.state.store.retention import Cleaned, clean
from penstock.state.store.store import Store
from tests.state.store.history import SLOTS, History

MANY = {key: (key, "x") for key in range(100)}


def names(store: Store) -> list[str]:
    return sorted(file.name for file in store.files.below(""))


def test_two_versions_are_kept_with_all_that_they_build_on(store: Store) -> None:
    history = History(store)
    for epoch in range(3):
        history.epoch({epoch: (epoch, "x")}, hosts=1)
    assert clean(store, keep=2, newest=2) == Cleaned(0, 0)
    history.compact(least=0)
    for epoch in range(3, 5):
        history.epoch({epoch: (epoch, "x")}, hosts=1)
    assert clean(store, keep=3, newest=4) == Cleaned(0, 0)
    before = {file.name: file.size for file in store.files.below("")}
    cleaned = clean(store, keep=2, newest=4)
    left = names(store)
    assert cleaned == Cleaned(6, sum(before.values()) - sum(before[name] for name in left))
    assert store.epochs() == [3, 4]
    for version in (3, 4):
        history.check(version)
    with pytest.raises(CheckpointError, match="no manifest of epoch 2"):
        store.chain(2)


def test_files_that_no_version_names_are_removed(store: Store) -> None:
    history = History(store)
    history.epoch(MANY, hosts=1)
    history.epoch(MANY, hosts=1)
    kept = names(store)
    for orphan in (
        "deltas/step/000000000001-1-step-0.arrow",
        "deltas/step/000000000001-0-step-0.arrow.77-1.tmp",
        "manifests/000000000001.json.77-2.tmp",
        "runs/step/000000000001-t-0.arrow",
        "snapshots/step/000000000000-t-3.arrow",
        "layouts/000000000001-t.json",
        "layouts/000000000001-t.json.77-3.tmp",
    ):
        store.files.write(orphan, b"orphan")
    assert clean(store, keep=2, newest=1) == Cleaned(7, 42)
    assert names(store) == kept


def test_files_that_may_still_be_named_stay(store: Store) -> None:
    history = History(store)
    history.epoch(MANY, hosts=1)
    history.epoch(MANY, hosts=1)
    store.write_flow({"id": "flow"})
    store.write_control({"pid": 1})
    store.write_dead_letters(0, [DeadLetter("step", "key", "row", "error")])
    for coming in (
        "deltas/step/000000000002-0-step-0.arrow",
        "deltas/step/000000000002-0-step-0.arrow.77-1.tmp",
        "manifests/000000000002.json.77-2.tmp",
        "runs/step/000000000001-busy-0.arrow",
        "runs/step/000000000001-busy-1.arrow.77-3.tmp",
        "snapshots/step/000000000001-busy-3.arrow",
        "layouts/000000000001-busy.json",
        "layouts/000000000002-t.json",
        "deltas/step/not of ours",
    ):
        store.files.write(coming, b"coming")
    kept = names(store)
    assert clean(store, keep=2, newest=1, active_tags=["busy"]) == Cleaned(0, 0)
    assert names(store) == kept
    assert clean(store, keep=2, newest=1, active_tags=["bus"]).files == 4


def test_a_version_beyond_the_newest_is_not_touched(store: Store) -> None:
    history = History(store)
    for _ in range(4):
        history.epoch(MANY, hosts=1)
    assert clean(store, keep=2, newest=2) == Cleaned(0, 0)
    history.compact()
    history.epoch({1: None})
    history.epoch({2: None})
    assert clean(store, keep=2, newest=3).files == 0
    for version in range(6):
        history.check(version)


def test_fewer_than_two_versions_are_rejected(store: Store) -> None:
    with pytest.raises(SettingError, match="cannot keep 1 versions"):
        clean(store, keep=1, newest=5)


def test_nothing_is_removed_from_a_checkpoint_that_is_damaged(store: Store) -> None:
    history = History(store)
    history.epoch(MANY, hosts=1)
    history.compact()
    for _ in range(3):
        history.epoch({1: None}, hosts=1)
    store.files.write("manifests/000000000002.json", b"{")
    before = names(store)
    with pytest.raises(CheckpointError, match="manifests/000000000002"):
        clean(store, keep=2, newest=3)
    assert names(store) == before


def test_a_reader_moves_on_when_its_version_is_no_longer_kept(store: Store) -> None:
    history = History(store)
    history.epoch(MANY)
    reader = history.reader()
    history.compact(least=0)
    history.epoch({1: None})
    history.epoch({2: None})
    assert clean(store, keep=2, newest=2).files > 0
    assert history.found(reader, [1, 2, 3]) == {3: (3, "x")}
    assert reader.version == 2


def test_an_interruption_between_any_two_removals_keeps_the_kept_versions(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Files.remove
    history = History(store)
    for stop in range(14):
        for _ in range(2):
            history.epoch(dict.fromkeys(range(stop % 5, 60, 7), (stop, "x")))
        history.compact(range(3), range(3, SLOTS), least=1000 * (stop % 3))
        history.epoch({stop: None})
        left = [stop % 13]

        def remove(self: Files, name: str, left: list[int] = left, **how: Any) -> bool:
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt
            return one(self, name, **how)

        monkeypatch.setattr(Files, "remove", remove)
        with suppress(KeyboardInterrupt):
            clean(store, keep=2, newest=history.newest)
        for version in (history.newest - 1, history.newest):
            history.check(version)
    monkeypatch.setattr(Files, "remove", one)
    clean(store, keep=2, newest=history.newest)
    assert len(store.epochs()) == 4
    assert clean(store, keep=2, newest=history.newest) == Cleaned(0, 0)


@settings(max_examples=30)
@given(
    st.lists(
        st.tuples(st.just("epoch"), st.integers(0, 2**32))
        | st.tuples(st.just("compact"), st.integers(0, 6000))
        | st.tuples(st.just("clean"), st.integers(2, 4)),
        min_size=6,
        max_size=30,
    )
)
def test_kept_versions_are_complete_in_any_history(actions: list[Any]) -> None:
    _counter[0] += 1
    history = History(Store(f"memory://kept/{_counter[0]}"))
    history.epoch(MANY)
    kept_from = 0
    for what, how in actions:
        if what == "epoch":
            rng = np.random.default_rng(how)
            keys = rng.integers(0, 120, 10).tolist()
            history.epoch({k: None if rng.random() < 0.3 else (how, "y") for k in keys})
        elif what == "compact":
            upto = max(kept_from, history.newest - how % 2)
            history.compact(range(how % 8), range(how % 8, SLOTS), upto=upto, least=how)
        else:
            clean(history.store, keep=how, newest=history.newest, active_tags=[_tag(history)])
            kept_from = max(kept_from, history.newest - how + 1)
            for version in range(kept_from, history.newest + 1):
                history.check(version)
    history.check()


_counter = [0]


def _tag(history: History) -> str:
    """The tag of the layout that the next manifest will name."""
    return history.layout.partition("-")[2].removesuffix(".json") or "none"
