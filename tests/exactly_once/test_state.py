"""The proof of exactly once: whatever fails while slots move, a flow gives what plain dicts give."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trials.cluster import SETTINGS
from tests.trials.ledger import SLOTS
from tests.trials.trial import (
    FLOWS,
    MEMORY,
    MIGRATIONS,
    POINTS,
    RUNS,
    Mishap,
    Request,
    Trial,
    Turn,
    everything,
    hows,
    random_turn,
    trial,
)

# A host's own threads die with an injected fault, as they would with their process.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
    pytest.mark.timeout(120),
]

ALL_SLOTS = tuple(range(SLOTS))
OFTEN = replace(SETTINGS, compact_epochs=1)
"""Every epoch gives cause to a compaction."""

NEEDS: dict[str, dict[str, Any]] = {
    "host.fetch": {"migration": "lazy(0)"},
    "host.fetched": {"migration": "lazy(0)"},
    "host.serve": {"migration": "lazy(0)"},
    "host.trickle": {"migration": "all_at_once"},
    "host.install": {"migration": "all_at_once"},
}
"""What a cluster must be like to pass a point when slots move."""


def swap(flow: Trial, number: int) -> tuple[Request, ...]:
    """All slots go to one host, which is another one each time."""
    return tuple(Request("move", step, number, ALL_SLOTS) for step in range(2))


@pytest.mark.parametrize("point", POINTS)
def test_a_fault_at_each_point(tmp_path: Path, point: str) -> None:
    """Only the death of the driver ends a query; and the next one goes on where it was."""
    with trial("chain", str(tmp_path), settings=OFTEN, **NEEDS.get(point, {})) as flow:
        flow.take(Turn(1))
        for number, how in enumerate(hows(point)):
            flow.epoch(everything("chain"))
            died = flow.cluster.deaths["driver"]
            mishap = Mishap(point, how)
            flow.take(Turn(number, requests=swap(flow, number), mishaps=(mishap,)))
            assert flow.fired[point] == number + 1, "the point was not passed"
            assert flow.cluster.deaths["driver"] - died == point.startswith("driver.")
        flow.check()


@pytest.mark.parametrize("migration", MIGRATIONS)
@pytest.mark.parametrize("name", FLOWS)
def test_slots_move_under_a_flow(tmp_path: Path, name: str, migration: str) -> None:
    """Moves, scale-out, scale-in and a restart; in the end everything is where it should be."""
    with trial(name, str(tmp_path), hosts=1, migration=migration) as flow:
        flow.take(Turn(0))
        for seed, request in enumerate(
            [
                Request("scale", 0, 2),
                Request("move", 0, 1, (0, 1, 2)),
                Request("scale", 0, 0),
                Request("scale", 0, 1),
                Request("restart", 0, 2),
                Request("move", 0, 2, ALL_SLOTS),
            ]
        ):
            flow.take(Turn(seed, requests=(request,)))
            flow.settle()
        assert flow.moved["slots"] >= 2 * SLOTS
        flow.check()


@pytest.mark.parametrize("limit", [1, 6_000])
@pytest.mark.parametrize("migration", ["lazy", "all_at_once", "pause"])
def test_state_that_memory_does_not_hold(tmp_path: Path, migration: str, limit: int) -> None:
    with trial("ledger", str(tmp_path), migration=migration, memory_limit=limit) as flow:
        for seed in range(6):
            flow.take(Turn(seed))
        flow.take(Turn(7, requests=(Request("scale", 0, 2),)))
        flow.settle()
        flow.take(Turn(8, requests=(Request("scale", 0, 0),)))
        assert flow.moved["evicted"]
        flow.check()


@pytest.mark.parametrize("migration", MIGRATIONS)
@pytest.mark.parametrize("name", ["sums", "ledger"])
def test_a_run_is_given_up_while_slots_come(tmp_path: Path, name: str, migration: str) -> None:
    """What came with it counts as not come, and is asked for again."""
    with trial(name, str(tmp_path), migration=migration) as flow:
        for seed in range(4):
            flow.take(Turn(seed))
            move = Request("move", 0, seed, (seed, seed + 1, seed + 2, seed + 4))
            point = ("host.sealed", "host.applied", "host.fetched", "host.sealed")[seed]
            rest = (Mishap("host.serve", "slow"), Mishap("host.fetched", "slow", 2))
            flow.take(Turn(seed, requests=(move,), mishaps=(Mishap(point, "break"), *rest)))
        flow.check()


requests = st.builds(
    Request,
    st.sampled_from(["move", "scale", "migration", "memory", "kill", "restart"]),
    st.integers(0, 1),
    st.integers(0, 5),
    st.sets(st.integers(0, SLOTS - 1), min_size=1).map(lambda slots: tuple(sorted(slots))),
)
mishaps = st.sampled_from(
    [(point, how) for point in POINTS for how in (*hows(point), "slow")]
).flatmap(lambda at: st.builds(Mishap, st.just(at[0]), st.just(at[1]), st.integers(1, 4)))
turns = st.builds(
    Turn,
    seed=st.integers(0, 1 << 16),
    partitions=st.integers(1, 3),
    requests=st.lists(requests, max_size=2).map(tuple),
    mishaps=st.lists(mishaps, max_size=3).map(tuple),
    gap_ms=st.sampled_from([100, 1000]),
    reads=st.integers(1, 2),
    rows=st.sampled_from([20, 5, 0]),
)


@settings(max_examples=10, derandomize=True, deadline=None, database=None)
@given(
    name=st.sampled_from(sorted(FLOWS)),
    story=st.lists(turns, min_size=2, max_size=8),
    hosts=st.integers(1, 3),
    migration=st.sampled_from(MIGRATIONS),
    limit=st.sampled_from(MEMORY),
)
def test_any_story_gives_what_dicts_give(
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    story: list[Turn],
    hosts: int,
    migration: str,
    limit: int | None,
) -> None:
    store = str(tmp_path_factory.mktemp("store"))
    with trial(name, store, hosts=hosts, migration=migration, memory_limit=limit) as flow:
        for turn in story:
            flow.take(turn)
        flow.check()


@pytest.mark.parametrize("seed", range(3))
def test_a_long_life_of_moves(tmp_path: Path, seed: int) -> None:
    """Nobody dies, but calls break and slots are always on their way: what is old must not count."""
    pick = random.Random(seed)
    name = "sums" if seed >= 6 else "ledger"
    migration = ("lazy(0)", "lazy", "batched(3)")[seed % 3]
    with trial(name, str(tmp_path), hosts=2 + seed % 2, migration=migration) as flow:
        for _ in range(25):
            flow.take(random_turn(pick, mishaps=pick.randint(0, 2), requests=1, calm=True))
        assert not flow.cluster.deaths["driver"]
        flow.check()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_thousand_faults(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fired: Counter[str] = Counter()
    moved: Counter[str] = Counter()
    story = 0
    while sum(fired.values()) < 1000:
        story += 1
        pick = random.Random(story)
        name = pick.choice(("sums", "sums", "ledger", "ledger", "chain"))
        with trial(
            name,
            str(tmp_path / str(story)),
            hosts=pick.randint(1, 3),
            settings=pick.choice((SETTINGS, OFTEN)),
            migration=pick.choice(MIGRATIONS),
            memory_limit=pick.choice(MEMORY),
        ) as flow:
            for _ in range(16):
                flow.take(random_turn(pick, mishaps=pick.randint(2, 2 * RUNS), requests=1))
            flow.check()
        fired += flow.fired
        moved += flow.moved
    with capsys.disabled():
        print(f"\n{sum(fired.values())} faults in {story} stories; {dict(moved)}")
        for point in POINTS:
            print(f"  {point:<18}{fired[point]:>5}  {POINTS[point].when}")
    assert set(fired) == set(POINTS)
