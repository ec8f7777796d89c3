"""Names of keyed steps, and checkpoints whose steps had other names."""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

import penstock as ps
from penstock.errors import CheckpointError, FlowError
from penstock.flows.claim import claim
from penstock.flows.start import host_counts
from penstock.flows.step_names import matched
from penstock.state.store.store import Store

SOURCE = ps.rate(1000, keys=40, rows=150_000)
FLOW = ps.flow(SOURCE, event_time="arrival")
N: dict[str, Any] = {"n": ps.count()}
OLD_IDS = Path(__file__).parent.parent / "data" / "checkpoint-old-step-ids.tar.gz"


class Passing(ps.KeyedProcessor):
    output_schema = "n long"

    def init(self, handle: Any) -> None:
        self.n = handle.get_value_state("n", "n long")

    def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> Iterator[tuple[int]]:
        yield from ((row.value,) for row in rows)


def ids(flow: ps.Flow) -> list[str]:
    return [step.id for step in flow.plan.steps]


def test_automatic_names_count_keyed_steps_only() -> None:
    counted = FLOW.key_by("key").aggregate(**N)
    assert ids(counted.key_by("key").distinct()) == ["aggregate-1", "distinct-2"]
    mapped = FLOW.select("key").filter(pc.field("key") > 3)
    with_maps = mapped.key_by("key").aggregate(**N).select("key").key_by("key").distinct()
    assert ids(with_maps) == ["map-1", "map-2", "aggregate-1", "map-3", "distinct-2"]


KEYED: dict[str, Callable[[str], ps.Flow]] = {
    "aggregate": lambda name: FLOW.key_by("key").aggregate(name=name, n=ps.count()),
    "process": lambda name: FLOW.key_by("key").process(Passing(), name=name),
    "top": lambda name: FLOW.key_by("key").top(3, "value", name=name),
    "keep": lambda name: FLOW.key_by("key").keep("last", "value", name=name),
    "distinct": lambda name: FLOW.key_by("key").distinct(name=name),
    "global aggregate": lambda name: FLOW.global_(n=ps.count(), name=name),
    "global process": lambda name: FLOW.global_(Passing(), name=name),
    "join": lambda name: FLOW.select("key", "value").join(FLOW, on="key", name=name),
    "window": lambda name: windowed().aggregate(n=ps.count(), name=name),
    "top of a window": lambda name: windowed().top(3, "value", name=name),
    "distinct of a window": lambda name: windowed().distinct(name=name),
}


def windowed() -> ps.WindowedFlow:
    return FLOW.key_by("key").window(ps.tumbling("1s"))


@pytest.mark.parametrize("step", KEYED)
def test_every_keyed_step_can_have_a_name(step: str) -> None:
    flow = KEYED[step]("clicks")
    assert ids(flow)[-1] == "clicks"
    assert list(host_counts(flow.plan, {"clicks": 3})) == ["clicks"]


def test_a_name_counts_as_a_keyed_step() -> None:
    named = FLOW.key_by("key").distinct(name="new-keys").key_by("key").aggregate(**N)
    assert ids(named) == ["new-keys", "aggregate-2"]


def test_a_column_may_still_be_called_name() -> None:
    flow = FLOW.key_by("key").aggregate(a=ps.count(), name=ps.max("value"), b=ps.min("value"))
    assert flow.schema.names == ["key", "a", "name", "b"]
    assert ids(flow) == ["aggregate-1"]
    assert FLOW.global_(name=ps.max("value"), n=ps.count()).schema.names == ["name", "n"]
    windows = windowed().aggregate(name=ps.max("value"), n=ps.count())
    assert windows.schema.names[-2:] == ["name", "n"]


@pytest.mark.parametrize(
    ("name", "fault", "cure"),
    [
        ("", "'' cannot be the name", "1 to 64 letters"),
        ("a/b", "'a/b' cannot be the name", "letters, digits"),
        ("orders.left", "'orders.left' cannot be the name", "letters, digits"),
        ("-x", "'-x' cannot be the name", "not beginning with -"),
        ("x" * 65, "cannot be the name", "1 to 64"),
        (7, "7 cannot be the name", '"clicks"'),
        ("aggregate-1", "'aggregate-1' is reserved", "choose another"),
        ("map-3", "'map-3' is reserved", "choose another"),
        ("source", "'source' is reserved", "choose another"),
    ],
)
def test_a_name_that_cannot_be_is_refused(name: Any, fault: str, cure: str) -> None:
    for make in (KEYED["aggregate"], KEYED["top"], KEYED["join"]):
        with pytest.raises(FlowError) as caught:
            make(name)
        assert fault in caught.value.message
        assert cure in caught.value.hint


def test_no_name_is_there_twice() -> None:
    clicks = FLOW.key_by("key").distinct(name="clicks")
    with pytest.raises(FlowError, match=r"two steps .* name 'clicks'.*another name"):
        clicks.key_by("key").aggregate(n=ps.count(), name="clicks")
    other = ps.flow(SOURCE).key_by("key").distinct(name="clicks")
    with pytest.raises(FlowError, match=r"two steps .* name 'clicks'"):
        clicks.join(other, on="key")


def test_joined_flows_share_steps_and_count_on() -> None:
    mapped = FLOW.select("key", "value")
    common = mapped.key_by("key").distinct(name="once")
    left = common.key_by("key").aggregate(**N)
    right = common.select("key").key_by("key").aggregate(m=ps.count())
    both = left.join(right, on="key")
    assert ids(both) == ["map-1", "once", "aggregate-2", "map-2", "aggregate-3", "join-4"]
    assert [step.kind for step in both.plan.keyed] == ["distinct", "aggregate", "aggregate", "join"]


def facts(*steps: str) -> list[dict[str, Any]]:
    """Facts of steps, each as "name" or, where the name does not tell it, "name: kind"."""
    split = [step.partition(": ") for step in steps]
    return [{"id": name} | ({"kind": kind} if kind else {}) for name, _, kind in split]


@pytest.mark.parametrize(
    ("before", "now", "names"),
    [
        (["aggregate-1"], ["aggregate-1"], ["aggregate-1"]),
        (["aggregate-2", "aggregate-4"], ["aggregate-1", "aggregate-2"], ["aggregate-1", "aggregate-2"]),
        (["aggregate-3", "join-7"], ["aggregate-1", "join-2"], ["aggregate-1", "join-2"]),
        (["aggregate-1"], ["clicks: aggregate"], ["clicks"]),
        (["aggregate-2", "top-3"], ["aggregate-1", "best: top"], ["aggregate-1", "best"]),
        (["a: top", "b: top"], ["b: top", "a: top"], ["a", "b"]),
        (["top-1", "b: top"], ["b: top", "a: top"], ["a", "b"]),
        ([], [], []),
    ],
)  # fmt: skip
def test_steps_of_a_checkpoint_match_those_of_the_flow(
    before: list[str], now: list[str], names: list[str]
) -> None:
    old = facts(*before)
    expected = dict(zip((step["id"] for step in old), names, strict=True))
    assert matched("ck", old, facts(*now)) == expected


@pytest.mark.parametrize(
    ("before", "now", "cure"),
    [
        (["aggregate-1"], ["top-1"], "same keyed steps in the same order"),
        (["aggregate-1", "top-2"], ["aggregate-1"], "same keyed steps in the same order"),
        (["aggregate-1"], ["aggregate-1", "top-2"], "same keyed steps in the same order"),
        (["aggregate-2", "top-3"], ["top-1", "aggregate-2"], "same keyed steps in the same order"),
        (["aggregate-1"], ["clicks: top"], "same keyed steps in the same order"),
        (["clicks: aggregate"], ["views: aggregate"], 'name="clicks"'),
        (["clicks: aggregate"], ["aggregate-1"], 'name="clicks"'),
        (["aggregate-1"], [], "same keyed steps in the same order"),
    ],
)
def test_steps_that_do_not_match_are_refused_with_both_lists(
    before: list[str], now: list[str], cure: str
) -> None:
    old, new = facts(*before), facts(*now)
    with pytest.raises(CheckpointError) as caught:
        matched("ck", old, new)
    assert f"steps {', '.join(step['id'] for step in old)}, but" in caught.value.message
    assert caught.value.message.endswith(", ".join(step["id"] for step in new) or "none")
    assert cure in caught.value.hint
    assert "new checkpoint folder" in caught.value.hint


@pytest.fixture
def old_store(tmp_path: Path) -> Store:
    """A checkpoint that was written when names counted all steps."""
    with tarfile.open(OLD_IDS) as archive:
        archive.extractall(tmp_path, filter="data")
    return Store(str(tmp_path / "live" / "penstock"))


def two_counts(*names: str | None, mapped: bool = True) -> ps.Flow:
    """The flow of that checkpoint, and a `select` more if `mapped`; its steps have these names."""
    named: list[dict[str, Any]] = [{"name": name} if name else {} for name in names]
    counted = FLOW.select("key", "value")
    if mapped:
        counted = counted.select("key")
    counts = counted.key_by("key", slots=4).aggregate(n=ps.count(), **named[0])
    return counts.key_by("key", slots=4).aggregate(most=ps.max("n"), **named[1])


def open_for(flow: ps.Flow, store: Store) -> str:
    return claim(store, flow.plan, "live", lambda facts: {})


def steps_of(store: Store) -> set[tuple[str, ...]]:
    """The step names in a store: a tuple for each place in a manifest that has them."""
    names = set()
    for epoch in store.epochs():
        manifest = store.read_manifest(epoch)
        assert manifest is not None
        hosts = (host for routes in manifest.routes.values() for host in routes["hosts"])
        placed = (group for groups in manifest.placements.values() for group in groups)
        for named in (
            manifest.routes,
            manifest.watermarks,
            manifest.placements,
            (ref.step for ref in manifest.deltas),
            (ref.host.rpartition("/")[0] for ref in manifest.deltas),
            (host.rpartition("/")[0] for host in hosts),
            (group[name].rpartition("/")[0] for group in placed for name in ("host", "home")),
        ):
            names.add(tuple(sorted(set(named))))
    return names


def test_an_old_checkpoint_gets_the_names_of_the_flow(old_store: Store) -> None:
    known = old_store.read_flow()
    assert known is not None
    assert steps_of(old_store) == {("aggregate-2", "aggregate-4")}
    refs = {epoch: old_store.read_manifest(epoch) for epoch in old_store.epochs()}
    assert open_for(two_counts(None, None), old_store) == known["id"]
    assert steps_of(old_store) == {("aggregate-1", "aggregate-2")}
    for epoch, before in refs.items():
        now = old_store.read_manifest(epoch)
        assert before is not None
        assert now is not None
        # Each file belongs to the step that it belonged to: the first of two, or the second.
        order = {"aggregate-2": "aggregate-1", "aggregate-4": "aggregate-2"}
        assert [(order[ref.step], ref.file) for ref in before.deltas] == [
            (ref.step, ref.file) for ref in now.deltas
        ]
        assert old_store.damage(epoch) == ""
    now_known = old_store.read_flow()
    assert now_known is not None
    assert "renamings" not in now_known
    assert [step["id"] for step in now_known["steps"]] == ["aggregate-1", "aggregate-2"]
    assert [step["kind"] for step in now_known["steps"]] == ["aggregate", "aggregate"]
    assert now_known["positions"] == known["positions"]


def test_a_step_gets_a_name_later_and_keeps_it(old_store: Store) -> None:
    open_for(two_counts(None, None), old_store)
    open_for(two_counts("counts", None), old_store)
    assert steps_of(old_store) == {("aggregate-2", "counts")}
    open_for(two_counts("counts", "most"), old_store)
    assert steps_of(old_store) == {("counts", "most")}
    written = old_store.manifest_files()
    open_for(two_counts("counts", "most", mapped=False), old_store)
    assert old_store.manifest_files() == written, "nothing is written again"
    with pytest.raises(CheckpointError, match=r'counts, most.*aggregate-1, most.*name="counts"'):
        open_for(two_counts(None, "most"), old_store)
    assert steps_of(old_store) == {("counts", "most")}


def test_a_flow_of_other_steps_changes_nothing(old_store: Store) -> None:
    with pytest.raises(CheckpointError, match="aggregate-2, aggregate-4, but the flow has top-1"):
        open_for(FLOW.key_by("key").top(3, "value"), old_store)
    swapped = FLOW.key_by("key", slots=4).aggregate(most=ps.max("value"))
    with pytest.raises(CheckpointError, match=r"step aggregate-1: the state schema"):
        open_for(swapped.key_by("key", slots=4).aggregate(n=ps.count()), old_store)
    assert steps_of(old_store) == {("aggregate-2", "aggregate-4")}


@pytest.mark.parametrize("writes", range(1, 9))
def test_a_start_that_breaks_off_is_finished_by_the_next(
    old_store: Store, writes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was written before a crash, the next start finds all: under the same names, or others."""

    class Crash(Exception):
        pass

    left = writes

    def write(name: str, data: Any, **options: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Crash
        written(name, data, **options)

    epochs, written = old_store.epochs(), old_store.files.write
    order = [ref.file for ref in old_store.chain(epochs[-1]).manifests[0].deltas]
    with monkeypatch.context() as patch:
        patch.setattr(old_store.files, "write", write)
        try:
            open_for(two_counts(None, None), old_store)
        except Crash:
            assert old_store.epochs() == epochs
    for names in (("clicks", None), ("clicks", "most")):
        open_for(two_counts(*names), old_store)
        assert steps_of(old_store) == {tuple(sorted((names[0] or "", names[1] or "aggregate-2")))}
        assert old_store.epochs() == epochs
        deltas = old_store.chain(epochs[-1]).manifests[0].deltas
        assert [ref.file for ref in deltas] == order
        assert [ref.step for ref in deltas] == ["clicks", "clicks", names[1] or "aggregate-2"]


def test_a_checkpoint_from_before_there_were_owners_is_renamed_too(old_store: Store) -> None:
    old_store.files.remove("owners/000000000000.json")
    epochs = old_store.epochs()
    open_for(two_counts(None, None), old_store)
    assert steps_of(old_store) == {("aggregate-1", "aggregate-2")}
    assert old_store.epochs() == epochs
