"""Windows, sessions, joins and tops are exactly once, whatever fails, and whenever."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.faults import Fault, InjectedFault, armed
from penstock.state.store.store import Store
from tests.trials.event_ledger import CASES
from tests.trials.event_trial import IN_TIME, MOSTLY_IN_TIME, EventTrial, event_trial
from tests.trials.ledger import SLOTS
from tests.trials.stories import (
    GAPS_MS,
    NEEDS,
    OFTEN,
    cluster_options,
    drawn_turns,
    many_faults,
    random_options,
    random_turn,
)
from tests.trials.trial import (
    MIGRATIONS,
    POINTS,
    RUNS,
    Mishap,
    Request,
    Turn,
    hows,
)

ALL_SLOTS = tuple(range(SLOTS))
HOUR_MS = 3_600_000
AT_A_POINT = 2
"""Number of flows that are tried at each fault point; the next point gets others."""


def shares() -> list[tuple[str, str]]:
    """Pairs (fault point, flow): every flow gets some points, and every point some flows."""
    names = list(CASES)
    return [
        (point, names[(number * AT_A_POINT + turn) % len(names)])
        for number, point in enumerate(POINTS)
        for turn in range(AT_A_POINT)
    ]


def moves(flow: EventTrial, of: tuple[int, ...] = ALL_SLOTS) -> tuple[Request, ...]:
    """Requests that move slots of all steps to the host with the fewest slots."""
    made = []
    for number, step in enumerate(flow.cluster.flow.keyed):
        slots = {host: len(held) for _, host, held in flow.cluster.relocation.owners()}
        hosts = flow.cluster.relocation.hosts(step.id)
        other = min(range(len(hosts)), key=lambda place: slots.get(hosts[place], 0))
        made.append(Request("move", number, other, of))
    return tuple(made)


@pytest.mark.parametrize("name", CASES)
def test_without_a_fault(tmp_path: Path, name: str) -> None:
    """Rows in time are counted, late rows are reported, and no state is left in the end."""
    behind = MOSTLY_IN_TIME if CASES[name].closes else IN_TIME
    with event_trial(name, str(tmp_path), behind) as flow:
        for seed, gap_ms in enumerate((1000, 3000, 500)):
            flow.take(Turn(seed, gap_ms=gap_ms))
        flow.check()
        assert flow.late or not flow.case.closes


@pytest.mark.parametrize(("point", "name"), shares())
def test_a_fault_at_each_point(tmp_path: Path, point: str, name: str) -> None:
    """Only the death of the driver ends a query, and the next driver continues where it was."""
    # A channel begins if some of its state is on the host, and some is not.
    slots = ALL_SLOTS[::2] if point == "host.began" else ALL_SLOTS
    with event_trial(name, str(tmp_path), settings=OFTEN, **NEEDS.get(point, {})) as flow:
        for number, how in enumerate(reversed(hows(point))):
            flow.settle()
            flow.take(Turn(number, rows=40))
            died = flow.cluster.deaths["driver"]
            mishap = Mishap(point, how)
            flow.take(Turn(9 + number, requests=moves(flow, slots), mishaps=(mishap,), gap_ms=3000))
            assert flow.fired[point] == number + 1, "the point was not passed"
            assert flow.cluster.deaths["driver"] - died == point.startswith("driver.")
        flow.check()


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name].closes][::2])
def test_faults_while_everything_closes(tmp_path: Path, name: str) -> None:
    """The last epochs close all open windows: their output is exactly once too."""
    mishaps = (
        Mishap("host.applied", "break"),
        Mishap("courier.closed", "linger"),
        Mishap("driver.sealed", "die"),
        Mishap("driver.committed", "die"),
    )
    with event_trial(name, str(tmp_path), IN_TIME, memory_limit=1) as flow:
        for seed in range(3):
            flow.take(Turn(seed))
        flow.check(mishaps)
        assert flow.fired["driver.committed"]


@pytest.mark.parametrize(
    ("name", "migration"),
    [(name, MIGRATIONS[number % len(MIGRATIONS)]) for number, name in enumerate(CASES)],
)
def test_slots_move_under_a_flow(tmp_path: Path, name: str, migration: str) -> None:
    """Moves, scale-out, scale-in and a restart, with more state than fits into memory."""
    with event_trial(name, str(tmp_path), hosts=1, migration=migration) as flow:
        flow.take(Turn(0))
        for seed, request in enumerate(
            [
                Request("scale", 0, 2),
                Request("move", 1, 1, (0, 1, 2)),
                Request("scale", 0, 0),
                Request("scale", 1, 1),
            ]
        ):
            flow.take(Turn(seed, requests=(request,)))
        flow.settle()
        flow.take(Turn(8, requests=(Request("memory", 0, 1), Request("restart", 0, 1))))
        flow.take(Turn(9, requests=moves(flow)))
        assert flow.moved["slots"] >= SLOTS // 2
        flow.check()


@pytest.mark.parametrize(
    ("name", "limit"),
    [("tumbling", 1), ("late-session", 6_000), ("interval", 1), ("enriched", 1), ("hot", 6_000)],
)
def test_state_that_memory_does_not_hold(tmp_path: Path, name: str, limit: int) -> None:
    """State that is due is fetched from the store, and so is the state of arriving rows."""
    with event_trial(name, str(tmp_path), memory_limit=limit) as flow:
        for seed in range(5):
            flow.take(Turn(seed, rows=40, gap_ms=GAPS_MS[seed % len(GAPS_MS)]))
        flow.check()
        assert flow.moved["evicted"]


@pytest.mark.parametrize("name", ["by-clock", "tumbling", "partitions"])
def test_a_clock_that_is_set_back_and_forth(tmp_path: Path, name: str) -> None:
    """A processing-time window closes once, and a source does not become idle too early."""
    steps = (1000, -HOUR_MS, 500, HOUR_MS, 1000, -HOUR_MS, 3000, HOUR_MS, 2000)
    with event_trial(name, str(tmp_path), settings=OFTEN) as flow:
        for seed, gap_ms in enumerate(steps):
            mishap = Mishap(("driver.committed", "host.applied", "driver.sealed")[seed % 3], "die")
            restart = (Request("restart", 0, 1),) * (seed % 4 == 3)
            flow.take(Turn(seed, gap_ms=gap_ms, requests=restart, mishaps=(mishap,)))
        flow.check()


def test_an_epoch_that_is_run_again_is_not_earlier(tmp_path: Path) -> None:
    """The driver dies when the manifest is written; the next driver's clock is an hour behind."""
    with event_trial("by-clock", str(tmp_path)) as flow:
        flow.take(Turn(1))
        on = flow.cluster
        before = on.now_ms + 1000

        def die(where: Mapping[str, object]) -> None:
            on.now_ms -= HOUR_MS
            raise InjectedFault("driver.committed", where)

        on.now_ms = before
        with armed(Fault("driver.committed", do=die)) as faults:
            on.run_through([[], []], lambda: len(faults.fired))
        assert faults.fired
        manifest = Store(str(tmp_path)).read_manifest(1)
        assert manifest is not None
        assert manifest.time_ms == before


@pytest.mark.parametrize("migration", ["all_at_once", "batched(3)", "pause"])
def test_hosts_leave_though_memory_is_full(tmp_path: Path, migration: str) -> None:
    """Their slots are never complete in other hosts' memory, but the store has all evicted state."""
    with event_trial(
        "tumbling", str(tmp_path), hosts=3, migration=migration, memory_limit=1
    ) as flow:
        for seed in range(3):
            flow.take(Turn(seed))
        flow.take(Turn(4, requests=(Request("scale", 0, 0),)))
        flow.settle()
        flow.check()


@settings(max_examples=6, derandomize=True, database=None)
@given(
    name=st.sampled_from(sorted(CASES)),
    story=st.lists(drawn_turns(gaps_ms=GAPS_MS), min_size=2, max_size=6),
    options=cluster_options,
    behind=st.sampled_from([IN_TIME, MOSTLY_IN_TIME]),
)
def test_any_story_gives_what_lists_give(
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    story: list[Turn],
    options: dict[str, Any],
    behind: tuple[int, ...],
) -> None:
    store = str(tmp_path_factory.mktemp("store"))
    with event_trial(name, store, behind, **options) as flow:
        for turn in story:
            flow.take(turn)
        flow.check()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_thousand_faults(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def tell(story: int, pick: random.Random) -> Counter[str]:
        name, store = list(CASES)[story % len(CASES)], str(tmp_path / str(story))
        behind = pick.choice((IN_TIME, MOSTLY_IN_TIME))
        with event_trial(name, store, behind, **random_options(pick)) as flow:
            for _ in range(12):
                turn = random_turn(pick, mishaps=pick.randint(1, 2 * RUNS), requests=1)
                flow.take(replace(turn, gap_ms=pick.choice(GAPS_MS)))
            flow.check()
        return flow.fired

    assert set(many_faults(1000, tell, capsys)) == set(POINTS)
