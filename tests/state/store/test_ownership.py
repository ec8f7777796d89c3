"""Two starts on one checkpoint: the newer one owns it, and the older one can do no harm."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.errors import CheckpointError, SettingError
from penstock.faults import Fault, armed
from penstock.model import DeadLetter
from penstock.state.store import ownership
from penstock.state.store.ownership import current, generation_of
from penstock.state.store.places import Owner, Place
from penstock.state.store.retention import clean
from penstock.state.store.store import DeltaRef, Layout, Manifest, Store
from tests.state.store.history import INTS, rows_of

TAKEN = r"process \d+ of .* on .*, at 1970-01-01 00:00:0\d UTC, has started a flow"


def starts(store: Store, count: int = 2) -> list[Store]:
    """Stores of several starts, one after the other."""
    made = [Store(store.place, lambda _: None) for _ in range(count)]
    for n, one in enumerate(made):
        one.claim(n * 1000)
    return made


def manifest(epoch: int, *deltas: DeltaRef, run: int = 0) -> Manifest:
    return Manifest(epoch, run, -1, "", deltas, {}, {"step": None}, 10, 0)


def delta(store: Store, epoch: int, value: int) -> DeltaRef:
    rows = rows_of(INTS, {epoch: (value, "x")})
    return store.write_delta(epoch, 0, "step", "step/0", rows, store.new_tag())


CHANGES: dict[str, Callable[[Store], object]] = {
    "manifest": lambda store: store.write_manifest(manifest(3)),
    "layout": lambda store: store.write_layout(Layout(3, store.new_tag(), {})),
    "flow": lambda store: store.write_flow({"id": "x"}),
    "closing": lambda store: store.begin_closing(3),
    "letters": lambda store: store.write_dead_letters(3, [DeadLetter("step", "k", "r", "e")]),
    "clean": lambda store: clean(store, keep=2, newest=1),
}


@pytest.mark.parametrize("change", CHANGES)
def test_an_older_start_changes_nothing(store: Store, change: str) -> None:
    old = starts(store, 1)[0]
    for epoch in range(2):
        old.write_manifest(manifest(epoch, delta(old, epoch, 1)))
    [new] = starts(store, 1)
    before = {file.name for file in store.files.below("")}
    with pytest.raises(CheckpointError, match=TAKEN):
        CHANGES[change](old)
    assert {file.name for file in store.files.below("")} == before
    CHANGES[change](new)


def test_concurrent_starts_get_different_generations(store: Store) -> None:
    if not store.files.excludes:
        pytest.skip("this store cannot exclude others: they find out when they look again")
    made = [Store(store.place) for _ in range(8)]
    barrier = threading.Barrier(8)

    def start(one: Store) -> int:
        barrier.wait()
        one.claim(0)
        assert one.owner is not None
        return one.owner.generation

    with ThreadPoolExecutor(8) as pool:
        generations = list(pool.map(start, made))
    assert sorted(generations) == list(range(8))
    for one, generation in zip(made, generations, strict=True):
        if generation == 7:
            one.must_own()
        else:
            with pytest.raises(CheckpointError, match="has started a flow"):
                one.must_own()


def test_without_atomic_puts_the_last_writer_owns(store: Store) -> None:
    """Two concurrent starts may both believe that they have the generation."""
    [first] = starts(store, 1)
    facts = store.files.read("owners/000000000000.json")
    assert facts is not None
    assert first.owner is not None
    store.files.write(
        "owners/000000000000.json", facts.replace(first.owner.mark.encode(), b"another")
    )
    if first.files.excludes:
        first.must_own()  # with atomic puts this cannot happen
    else:
        with pytest.raises(CheckpointError, match="has started a flow"):
            first.write_manifest(manifest(0))


def test_a_late_manifest_of_an_older_start_replaces_none(store: Store) -> None:
    """The older driver was suspended between its check of the owners and its write."""
    [old] = starts(store, 1)
    old.write_manifest(manifest(0, run=7))
    new: list[Store] = []

    def wake(_: object) -> None:
        if not new:
            new.extend(starts(store, 1))
            new[0].write_manifest(manifest(1, run=2))
            new[0].write_manifest(manifest(2, run=2))

    with armed(Fault("store.write", wake)):
        old.write_manifest(manifest(1, run=1))
    for reader in (new[0], store, Store(store.place)):
        assert reader.epochs() == [0, 1, 2]
        assert [m.run for m in reader.chain(2).manifests] == [7, 2, 2]
        read = reader.read_manifest(1)
        assert read is not None
        assert read.run == 2


def test_a_manifest_of_an_older_start_after_a_newer_one_is_ignored(store: Store) -> None:
    old, new = starts(store)
    new.write_manifest(manifest(4))
    old.files.write("manifests/000000000005.json", b"written by one that is no longer the owner")
    assert store.epochs() == new.epochs() == [4]


def test_a_late_clean_up_removes_nothing_of_a_newer_start(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    [old] = starts(store, 1)
    for epoch in range(4):
        old.write_manifest(manifest(epoch, delta(old, epoch, 1)))
    orphan = delta(old, 2, 3)
    look = ownership.must_own
    new: list[Store] = []
    made: set[str] = set()

    def must_own(files: object, owner: Owner) -> None:
        """The old start is the owner when it checks, and no longer when it continues."""
        look(files, owner)  # type: ignore[arg-type]
        if owner == old.owner and not new:
            before = {file.name for file in store.files.below("")}
            new.extend(starts(store, 1))
            tag = new[0].new_tag()
            new[0].write_merged("runs", "step", 2, tag, rows_of(INTS, {1: (1, "x")}))
            new[0].write_layout(Layout(2, tag, {}))
            delta(new[0], 3, 5)
            new[0].write_manifest(manifest(3, delta(new[0], 3, 2)))
            made.update({file.name for file in store.files.below("")} - before)

    monkeypatch.setattr(ownership, "must_own", must_own)
    assert clean(old, keep=2, newest=3).files == 1
    assert not store.files.exists(orphan.file)
    assert made <= {file.name for file in store.files.below("")}
    [(_, ref)] = [one for one in new[0].chain(3).deltas("step") if one[0] == 3]
    assert new[0].open_segment(ref, INTS).rows == 1
    with pytest.raises(CheckpointError, match="has started a flow"):
        clean(old, keep=2, newest=3)
    orphans = {name for name in made if name.startswith(("runs", "layouts"))}
    clean(new[0], keep=2, newest=3)
    assert not orphans & {file.name for file in store.files.below("")}


def test_the_address_of_the_newer_query_stays(store: Store) -> None:
    old, new = starts(store)
    old.write_control({"pid": 1})
    new.write_control({"pid": 2})
    old.remove_control()
    assert store.read_control() == {"pid": 2}
    new.remove_control()
    assert store.read_control() is None


def test_a_host_proves_that_it_sees_the_same_store(tmp_path: Path) -> None:
    pauses: list[float] = []
    here = Store(str(tmp_path / "here"))
    here.claim(0)
    seeing = Store(here.place, pauses.append)
    seeing.must_see("sum/0")
    assert pauses == []
    place = Store(str(tmp_path / "there")).place
    blind = Store(ownership_of(place.uri, here), pauses.append)
    with pytest.raises(SettingError, match=r"host sum/0 on .* finds nothing at .*hdfs://"):
        blind.must_see("sum/0")
    assert 2 < sum(pauses) < 10
    Store(str(tmp_path / "there")).claim(0)
    with pytest.raises(SettingError, match="finds another store"):
        blind.must_see("sum/0")


def ownership_of(uri: str, store: Store) -> Place:

    return replace(store.place, uri=uri)


def test_generations_are_in_file_names() -> None:
    assert generation_of("deltas/s/000000000001-0-s-0.arrow") == 0
    assert generation_of("deltas/s/000000000001-0-s-0-ab12cd.arrow") == 0
    assert generation_of("deltas/s/000000000001-0-s-0-ab12cdg7.arrow.77-1.tmp") == 7
    assert generation_of("deltas/a-beefg9/000000000001-0-a-beefg9-0-ab12cdg7.arrow") == 7
    assert generation_of("layouts/000000000001-12345678.json") == 0
    assert generation_of("runs/s/000000000001-12345678g3-5.arrow") == 3
    assert generation_of("manifests/000000000001-4.json.77-1.tmp") == 4


@pytest.mark.parametrize("seed", range(50))
def test_current_manifests_form_one_history(seed: int) -> None:
    """Each generation begins before the previous one stops, which keeps writing for a while."""
    pick = random.Random(seed)
    names, truth, start = list[str](), dict[int, int](), 0
    for generation in range(4):
        end = start + pick.randrange(1, 5)
        for epoch in range(start, end):
            truth = {e: g for e, g in truth.items() if e < epoch} | {epoch: generation}
            names.append(ownership.manifest_file(epoch, Owner(generation, "")))
        late = pick.randrange(0, 3)
        names += [
            ownership.manifest_file(epoch, Owner(generation, ""))
            for epoch in range(end, end + late)
        ]
        start = pick.randrange(max(start, end - 1), end + 1)
        if generation == 3:
            truth |= dict.fromkeys(range(end, end + late), 3)
    pick.shuffle(names)
    generations = {epoch: generation_of(file) for epoch, file in current(names).items()}
    assert {e: g for e, g in generations.items() if e in truth} == truth
    assert list(generations) == sorted(generations)
