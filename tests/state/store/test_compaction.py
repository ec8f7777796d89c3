"""Compaction: fewer files, the same state, and no damage by a crash at any point."""

from __future__ import annotations

import numpy as np
import pytest

from penstock import codec
from penstock.errors import ProtocolError
from penstock.state.store.compaction import Compacted, compact, merged_layout, plan
from penstock.state.store.manifest import Layout, SegmentRef, StepLayout, pack_slots, unpack_slots
from penstock.state.store.store import DeltaRef, Store
from penstock.testing import Fault, InjectedFault, armed
from tests.state.store.history import INTS, SLOTS, History, schema_of

ALL = range(SLOTS)
MANY = {key: (key, f"name {key}") for key in range(500)}


def run(size: int, upto: int, slots: range = ALL, name: str = "") -> SegmentRef:
    return SegmentRef(
        "step", name or f"run {upto}", size, size, 0, pack_slots(slots), len(slots), upto
    )


def delta(size: int, slots: range = ALL) -> DeltaRef:
    return DeltaRef("step", "step/0", "delta", size, size, 0, pack_slots(slots))


def snapshot(size: int, slot: int) -> SegmentRef:
    return SegmentRef("step", f"snapshot {slot}", size, size, 0, pack_slots([slot]), 1, 0)


def files(store: Store, folder: str) -> list[str]:
    return [file.name for file in store.files.below(folder)]


class TestPlan:
    def test_runs_are_merged_up_to_the_first_that_is_much_larger(self) -> None:
        runs = (run(900, 1), run(150, 2), run(100, 3))
        assert plan(StepLayout(runs=runs), [delta(60)], np.array(ALL)).merged == 2
        assert plan(StepLayout(runs=runs), [delta(300)], np.array(ALL)).merged == 3
        assert plan(StepLayout(runs=runs), [delta(49)], np.array(ALL)).merged == 0

    def test_runs_of_one_version_are_merged_together(self) -> None:
        runs = (run(70, 1, range(4), "a"), run(70, 1, range(4, 8), "b"))
        todo = plan(StepLayout(runs=runs), [delta(69)], np.array(ALL))
        assert todo.merged == 0
        assert plan(StepLayout(runs=runs), [delta(70)], np.array(ALL)).merged == 2

    def test_only_the_share_of_these_slots_counts(self) -> None:
        runs = (run(800, 1),)
        assert plan(StepLayout(runs=runs), [delta(50, range(1))], np.arange(1)).merged == 1
        assert plan(StepLayout(runs=runs), [delta(50, range(1))], np.arange(2)).merged == 0
        assert plan(StepLayout(runs=runs), [delta(999, range(4, 8))], np.arange(2)).merged == 0

    def test_no_deltas_need_no_compaction(self) -> None:
        todo = plan(StepLayout(runs=(run(800, 1),)), [], np.array(ALL))
        assert (todo.merged, len(todo.snapshots)) == (0, 0)

    def test_a_slot_gets_a_snapshot_when_its_runs_exceed_half_of_the_last_one(self) -> None:
        below = StepLayout({0: snapshot(1000, 0), 1: snapshot(10, 1)}, (run(800, 1),))
        assert plan(below, [], np.array(ALL), least=50).snapshots.tolist() == list(range(1, 8))
        assert plan(below, [], np.array(ALL), least=101).snapshots.tolist() == []
        more = [delta(401, range(1))]
        assert plan(below, more, np.array(ALL), least=101).snapshots.tolist() == [0]


def test_deltas_become_a_run_and_the_run_a_snapshot(store: Store) -> None:
    history = History(store)
    history.epoch(MANY)
    history.epoch({1: None})
    history.compact()
    [ref] = store.read_layout(history.layout).refs()
    assert (ref.rows, ref.upto, ref.held) == (499, 1, SLOTS)
    history.epoch({2: None})
    history.compact(least=0)
    refs = store.read_layout(history.layout).refs()
    assert [ref.file.split("/")[0] for ref in refs] == ["snapshots"] * SLOTS
    assert sum(ref.rows for ref in refs) == 498
    history.epoch({3: None})
    for version in range(4):
        history.check(version)


def test_a_removal_is_stored_as_long_as_an_older_file_has_the_entry(store: Store) -> None:
    history = History(store)
    history.epoch(MANY)
    history.compact(least=0)
    history.epoch(dict.fromkeys(range(10)))
    history.compact()
    [gone] = store.read_layout(history.layout).steps["step"].runs
    assert gone.rows == 10
    history.epoch({10: None})
    history.check()
    history.compact(least=0)
    history.epoch(dict.fromkeys(MANY))
    history.compact(least=0)
    assert store.read_layout(history.layout).refs() == []
    history.epoch({5: (5, "again")})
    history.check()


def test_slots_of_two_hosts_are_compacted_separately(store: Store) -> None:
    history = History(store)
    history.epoch(MANY)
    history.compact()
    history.epoch(dict.fromkeys(range(3), (1, "x")))
    history.compact(range(3), range(3, SLOTS))
    runs = store.read_layout(history.layout).steps["step"].runs
    assert [ref.upto for ref in runs] == sorted(ref.upto for ref in runs)
    assert runs[0].slots == pack_slots(ALL)
    history.epoch(dict.fromkeys(range(400), (2, "y")))
    history.compact(range(4), range(4, SLOTS))
    refs = store.read_layout(history.layout).refs()
    assert sorted(slot for ref in refs for slot in unpack_slots(ref.slots)) == list(ALL)
    history.epoch({})
    for version in range(history.newest + 1):
        history.check(version)


def test_a_run_is_trimmed_when_some_of_its_slots_get_newer_files(store: Store) -> None:
    history = History(store)
    history.epoch(MANY)
    history.compact()
    [old] = store.read_layout(history.layout).refs()
    history.epoch(dict.fromkeys(range(300), (1, "x")))
    first = compact(
        store, "step", INTS, schema_of(INTS), np.arange(4), 1, "some", lambda: None, least=0
    )
    rest = Compacted("step", 1, pack_slots(range(4, 8)), StepLayout(), 0)
    assert [ref.file for ref in first.files.runs] == []
    half = old.trimmed(np.arange(4, 8))
    assert half is not None
    assert unpack_slots(half.slots).tolist() == [4, 5, 6, 7]
    assert half.slot_bytes == old.slot_bytes
    assert old.trimmed(np.array([], np.int32)) is None
    kept = Compacted("step", 1, rest.slots, StepLayout(runs=(half,)), 0)
    layout = merged_layout(store.chain(1).layout, [first, kept], 1, "some")
    assert layout.steps["step"].runs == (half,)
    assert sorted(layout.steps["step"].snapshots) == [0, 1, 2, 3]


def test_a_layout_of_an_earlier_version_than_the_newest(store: Store) -> None:
    history = History(store)
    for epoch in range(4):
        history.epoch(dict.fromkeys(range(epoch * 10, epoch * 10 + 20), (epoch, "x")))
    history.compact(upto=1)
    history.epoch({1: None})
    assert [m.epoch for m in store.chain(4).manifests] == [2, 3, 4]
    for version in range(5):
        history.check(version)


def test_few_files_and_few_bytes_written(store: Store) -> None:
    history = History(store)
    rng = np.random.default_rng(1)
    written = deltas = most = 0
    for epoch in range(60):
        history.epoch(dict.fromkeys(rng.integers(0, 3000, 100).tolist(), (epoch, "x")), hosts=1)
        deltas += sum(ref.size for _, ref in store.chain(epoch).deltas("step"))
        before = set(files(store, "runs") + files(store, "snapshots"))
        history.compact(least=20_000)
        new = store.files.below("runs") + store.files.below("snapshots")
        written += sum(file.size for file in new if file.name not in before)
        layout = store.read_layout(history.layout)
        most = max(most, len(layout.steps["step"].runs))
    history.epoch({})
    history.check()
    assert most <= 5
    assert written < 8 * deltas


def test_parts_survive_the_wire(store: Store) -> None:
    history = History(store)
    history.epoch(MANY)
    part = compact(
        store, "step", INTS, schema_of(INTS), np.arange(SLOTS), 0, "t", lambda: None, least=0
    )
    assert part.written == sum(ref.size for ref in part.files.snapshots.values())
    assert codec.decode(codec.encode(part), Compacted) == part
    layout = merged_layout(None, [part], 0, "t")
    assert codec.decode(codec.encode(layout), Layout) == layout


def test_parts_that_do_not_make_up_a_version_are_rejected() -> None:
    def part(slots: range, version: int = 5) -> Compacted:
        return Compacted("step", version, pack_slots(slots), StepLayout(), 0)

    old = Layout(3, "old", {"step": StepLayout(runs=(run(1, 3),))})
    assert merged_layout(old, [part(range(4)), part(range(4, 8))], 5, "t").steps == {
        "step": StepLayout()
    }
    for parts in (
        [part(range(4))],
        [part(range(5)), part(range(4, 8))],
        [],
        [part(range(8), version=4)],
    ):
        with pytest.raises(ProtocolError, match="step step"):
            merged_layout(old, parts, 5, "t")


def test_check_is_called_before_each_file(store: Store) -> None:
    history = History(store)
    history.epoch(MANY)

    class Enough(Exception):
        pass

    def check() -> None:
        if len(files(store, "snapshots")) == 3:
            raise Enough

    with pytest.raises(Enough):
        compact(store, "step", INTS, schema_of(INTS), np.arange(SLOTS), 0, "t", check, least=0)
    assert len(files(store, "snapshots")) == 3
    history.check()


def test_large_slots_are_merged_in_groups(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.state.store.compaction._AT_ONCE", 10_000)
    history = History(store)
    history.epoch(MANY)
    history.compact()
    refs = store.read_layout(history.layout).refs()
    assert len(refs) > 1
    assert {ref.upto for ref in refs} == {0}
    assert sorted(slot for ref in refs for slot in unpack_slots(ref.slots)) == list(ALL)
    history.epoch({1: None})
    history.check()


def test_a_crash_at_any_write_leaves_every_version_readable(store: Store) -> None:
    rng = np.random.default_rng(7)
    crashes = 0
    history = History(store)
    for hit in range(1, 200):
        crashed = False
        with armed(Fault("store.write", hits=(hit,))):
            try:
                for _ in range(3):
                    keys = rng.integers(0, 60, 15).tolist()
                    history.epoch({k: None if rng.random() < 0.2 else (hit, "x") for k in keys})
                history.compact(range(3), range(3, SLOTS), least=int(rng.integers(0, 5000)))
            except InjectedFault:
                crashed = True
        crashes += crashed
        assert store.epochs() == list(range(len(history.versions)))
        for version in range(max(0, history.newest - 4), history.newest + 1):
            history.check(version)
        if not crashed:
            break
    assert crashes >= 10
    assert not crashed
