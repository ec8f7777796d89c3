"""State is exactly once: whatever fails while slots move, a flow's output is that of plain dicts."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trials.ledger import SLOTS
from tests.trials.stories import (
    NEEDS,
    OFTEN,
    cluster_options,
    drawn_turns,
    many_faults,
    random_options,
    random_turn,
)
from tests.trials.trial import (
    FLOWS,
    MIGRATIONS,
    POINTS,
    RUNS,
    Mishap,
    Request,
    Trial,
    Turn,
    everything,
    hows,
    trial,
)

ALL_SLOTS = tuple(range(SLOTS))


def swap(flow: Trial, number: int) -> tuple[Request, ...]:
    """A request that moves all slots to one host, a different one each time."""
    return tuple(Request("move", step, number, ALL_SLOTS) for step in range(2))


@pytest.mark.parametrize("point", POINTS)
def test_a_fault_at_each_point(tmp_path: Path, point: str) -> None:
    """Only the death of the driver ends a query, and the next driver continues where it was."""
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
    """Moves, scale-out, scale-in and a restart; in the end all slots and rows are where they should be."""
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
    """Slots that arrived in the abandoned run count as missing, and are requested again."""
    with trial(name, str(tmp_path), migration=migration) as flow:
        for seed in range(4):
            flow.take(Turn(seed))
            move = Request("move", 0, seed, (seed, seed + 1, seed + 2, seed + 4))
            point = ("host.sealed", "host.applied", "host.fetched", "host.sealed")[seed]
            rest = (Mishap("host.serve", "slow"), Mishap("host.fetched", "slow", 2))
            flow.take(Turn(seed, requests=(move,), mishaps=(Mishap(point, "break"), *rest)))
        flow.check()


@settings(max_examples=10, derandomize=True, database=None)
@given(
    name=st.sampled_from(sorted(FLOWS)),
    story=st.lists(drawn_turns(), min_size=2, max_size=8),
    options=cluster_options,
)
def test_any_story_gives_what_dicts_give(
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    story: list[Turn],
    options: dict[str, Any],
) -> None:
    with trial(name, str(tmp_path_factory.mktemp("store")), **options) as flow:
        for turn in story:
            flow.take(turn)
        flow.check()


@pytest.mark.parametrize("seed", range(3))
def test_a_long_life_of_moves(tmp_path: Path, seed: int) -> None:
    """No process dies, but calls break and slots are always moving: old messages must not count."""
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
    def tell(story: int, pick: random.Random) -> Counter[str]:
        name = pick.choice(("sums", "sums", "ledger", "ledger", "chain"))
        with trial(name, str(tmp_path / str(story)), **random_options(pick)) as flow:
            for _ in range(16):
                flow.take(random_turn(pick, mishaps=pick.randint(2, 2 * RUNS), requests=1))
            flow.check()
        return flow.fired

    assert set(many_faults(1000, tell, capsys)) == set(POINTS)
