"""Hosts with several workers each: workers share the parts of the state, and results do not change."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from tests.trials.event_ledger import CASES
from tests.trials.event_trial import event_trial
from tests.trials.ledger import SLOTS
from tests.trials.one_host_trial import SHARED
from tests.trials.stories import random_turn
from tests.trials.trial import FLOWS, MEMORY, MIGRATIONS, Mishap, Request, Turn, trial

ALL_SLOTS = tuple(range(SLOTS))
NOW = ("chain", "interval")
STORY = (
    Request("scale", 0, 2),
    Request("move", 1, 1, (0, 1, 2)),
    Request("kill", 0, 1),
    Request("move", 0, 2, ALL_SLOTS),
    Request("restart", 0, 1),
)


@pytest.mark.parametrize(
    ("name", "migration"),
    [
        pytest.param(
            name,
            MIGRATIONS[number % len(MIGRATIONS)],
            id=name,
            marks=[] if name in NOW else [pytest.mark.slow],
        )
        for number, name in enumerate([*FLOWS, *CASES])
    ],
)
def test_slots_move_and_hosts_die_under_a_flow(tmp_path: Path, name: str, migration: str) -> None:
    started = trial if name in FLOWS else event_trial
    with started(name, str(tmp_path), hosts=1, migration=migration, settings=SHARED) as flow:
        flow.take(Turn(0))
        for seed, request in enumerate(STORY):
            mishap = Mishap("host.applied", "break", 2)
            flow.take(Turn(seed, requests=(request,), mishaps=(mishap,) * (seed % 2), rows=30))
        flow.check()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(24))
def test_any_story(tmp_path: Path, seed: int) -> None:
    pick = random.Random(seed)
    name = pick.choice([*FLOWS, *CASES])
    started = trial if name in FLOWS else event_trial
    with started(
        name,
        str(tmp_path),
        hosts=pick.randint(1, 3),
        migration=pick.choice(MIGRATIONS),
        memory_limit=pick.choice(MEMORY),
        settings=replace(SHARED, host_parts=pick.choice((2, 5, None)), compact_epochs=2),
    ) as flow:
        for _ in range(8):
            flow.take(random_turn(pick, mishaps=pick.randint(0, 3), requests=1))
        flow.check()
