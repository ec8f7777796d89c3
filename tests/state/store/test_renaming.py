"""Steps that get other names: every version reads as before, under the new name."""

from __future__ import annotations

import pytest

from penstock.state.store.manifest import Renaming
from penstock.state.store.ownership import manifest_file
from penstock.state.store.renaming import rename_steps, renamed_manifest
from penstock.state.store.retention import clean
from penstock.state.store.store import Manifest, Store
from tests.state.store.history import History

CLICKS = [Renaming(1, {"step": "clicks"})]


@pytest.fixture
def history(store: Store) -> History:
    """Five versions, of which the last two build on a layout; then the next start of the flow."""
    history = History(store)
    store.claim(0)
    for epoch in range(3):
        history.epoch({key: (epoch, f"name {key}") for key in range(epoch, 60)})
    history.compact(range(0, 4), range(4, 8), least=100)
    history.epoch({1: None, 2: (20, "changed")})
    history.epoch({1: (1, "back"), 70: (70, "new")})
    store.claim(1_000)
    return history


def test_every_version_is_read_under_the_new_name(history: History) -> None:
    old = {epoch: history.store.read_manifest(epoch) for epoch in history.store.epochs()}
    rename_steps(history.store, CLICKS)
    history.step = "clicks"
    for version in range(5):
        history.check(version)
        assert history.store.damage(version) == ""
        before, now = old[version], history.store.read_manifest(version)
        assert before is not None
        assert now is not None
        assert [ref.file for ref in now.deltas] == [ref.file for ref in before.deltas]
    assert history.store.chain(4).manifest.watermarks == {"clicks": None}


def test_the_flow_goes_on_and_is_compacted_and_cleaned_up(history: History) -> None:
    rename_steps(history.store, CLICKS)
    history.step = "clicks"
    history.layout = history.store.chain(4).manifest.layout
    history.epoch({3: None, 71: (71, "later")})
    history.check()
    history.compact(range(8))
    history.epoch({72: (72, "last")})
    clean(history.store, keep=2, newest=history.newest)
    for version in (history.newest - 1, history.newest):
        history.check(version)
    left = history.store.files.below("manifests")
    assert {found.name for found in left} <= {
        manifest_file(epoch, history.store.owner) for epoch in range(history.newest + 1)
    }


def test_it_may_be_repeated(history: History) -> None:
    rename_steps(history.store, CLICKS)
    written = history.store.manifest_files()
    history.store.claim(2_000)
    rename_steps(history.store, CLICKS)
    assert history.store.manifest_files() == written


def test_what_an_older_driver_writes_late_does_not_count(history: History) -> None:
    older = Store(history.store.uri, lambda _: None)
    rename_steps(history.store, CLICKS)
    older.files.write(manifest_file(5), older.files.read(manifest_file(4)) or b"")
    assert history.store.epochs() == [0, 1, 2, 3, 4]


def test_a_damaged_version_is_left_out(history: History) -> None:
    history.store.files.write(manifest_file(4), b"{")
    rename_steps(history.store, CLICKS)
    history.step = "clicks"
    assert history.store.epochs() == [0, 1, 2, 3]
    history.check(3)


def test_hosts_are_renamed_with_their_step() -> None:
    routes = {
        "a-2": {"hosts": ["a-2/0", "a-2/10"], "owner": ""},
        "b": {"hosts": ["b/0"], "owner": ""},
    }
    moved = {
        "slots": "0",
        "host": "a-2/10",
        "since": 3,
        "why": "move",
        "source": "a-2/0",
        "home": "a-2/10",
    }
    begun = {
        "slots": "1",
        "host": "b/0",
        "since": -1,
        "why": "start",
        "source": None,
        "home": "b/0",
    }
    marks = {"a-2": 5, "b": None}
    manifest = Manifest(7, 0, -1, "", (), routes, marks, 0, 0, {"a-2": [moved], "b": [begun]})
    now = renamed_manifest(manifest, {"a-2": "b", "b": "a-2"}, "")
    assert now.routes == {
        "b": {"hosts": ["b/0", "b/10"], "owner": ""},
        "a-2": {"hosts": ["a-2/0"], "owner": ""},
    }
    assert now.watermarks == {"b": 5, "a-2": None}
    assert now.placements == {
        "b": [moved | {"host": "b/10", "source": "b/0", "home": "b/10"}],
        "a-2": [begun | {"host": "a-2/0", "home": "a-2/0"}],
    }
