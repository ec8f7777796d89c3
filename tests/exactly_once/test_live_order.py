"""Ordered live flows: the output of each partition is in the order of its input."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.faults import armed
from tests.exactly_once.test_live_stories import NEEDS, back_and_forth, die_at
from tests.trials.live_cluster import SETTINGS
from tests.trials.live_stories import POINTS, random_mishap, random_options, random_request
from tests.trials.live_subjects import SUBJECTS, Mismatch
from tests.trials.live_trial import subject_trial
from tests.trials.stories import many_faults
from tests.trials.trial import MIGRATIONS

MANY_CORES = replace(SETTINGS, host_cores=3, chunk_rows=5)
SOME = ("sums", "diary", "mixed", "tumbling", "interval", "hot")
"""Points that are passed at the start of a run."""


@pytest.mark.parametrize(
    "name",
    [name if name in SOME else pytest.param(name, marks=pytest.mark.slow) for name in SUBJECTS],
)
def test_it_gives_what_a_batch_would(tmp_path: Path, name: str) -> None:
    with subject_trial(name, tmp_path, ordered=True, hosts=3, migration="lazy") as trial:
        trial.give()
        back_and_forth(trial)
        trial.check()


@pytest.mark.parametrize("cores", [1, 3])
@pytest.mark.parametrize("migration", MIGRATIONS)
def test_rows_leave_in_the_order_of_arrival(tmp_path: Path, migration: str, cores: int) -> None:
    """Rows pass two steps with different keys and a map between them, while slots and hosts move."""
    settings = SETTINGS if cores == 1 else MANY_CORES
    with subject_trial("shops", tmp_path, hosts=3, migration=migration, settings=settings) as trial:
        trial.give()
        back_and_forth(trial)
        for step, hosts in ((0, 1), (1, 4), (0, 2)):
            trial.scale(step, hosts)
            trial.give(3)
        trial.check()
        assert len(trial.cluster.sink.all_rows()) > 500


def test_without_order_rows_come_host_by_host(tmp_path: Path) -> None:
    """A control: the same flow without `ordered` is not in order."""
    with subject_trial("shops", tmp_path, hosts=3) as trial:
        trial.give(20, rows=40)
        trial.check()
    unordered = replace(SUBJECTS["shops"], flow=replace(SUBJECTS["shops"].flow, ordered=False))
    SUBJECTS["unordered"] = unordered
    try:
        with subject_trial("unordered", tmp_path / "unordered", hosts=3) as trial:
            trial.give(20, rows=40)
            with pytest.raises(Mismatch):
                trial.check()
    finally:
        del SUBJECTS["unordered"]


@pytest.mark.parametrize("moves", [False, True])
def test_windows_close_in_the_order_of_time(tmp_path: Path, moves: bool) -> None:
    """That includes windows of different hosts, which progress independently."""
    with subject_trial("tumbling", tmp_path, ordered=True, hosts=3, checkpoint_ms=400) as trial:
        for turn in range(4):
            trial.give(batches=8, rows=12)
            if moves:
                trial.move(to=turn)
        trial.check()
        ends = [row["window_end"] for row in trial.cluster.sink.all_rows()]
        assert len(ends) > 20
        assert ends == sorted(ends)


@pytest.mark.parametrize("point", [point for point in POINTS if "releas" not in point])
def test_a_death_at_each_point(tmp_path: Path, point: str) -> None:
    """A death during moves: rows that are emitted again are in the same order."""
    settings = replace(SETTINGS, compact_epochs=1)
    options: dict[str, Any] = {"settings": settings, **NEEDS.get(point, {})}
    with subject_trial("shops", tmp_path, **options) as trial:
        die_at(trial, point)


def story(seed: int, store: Path, mishaps: int, turns: int = 6) -> Counter[str]:
    """Run a story of rows, requests and deaths; return the number of faults at each point."""
    pick = random.Random(seed)
    options = random_options(pick) | {"settings": pick.choice((SETTINGS, MANY_CORES))}
    with subject_trial("shops", store, seed, **options) as trial:
        on = trial.cluster
        with armed(*(random_mishap(on, pick) for _ in range(mishaps))) as faults:
            for _ in range(turns):
                trial.give(batches=pick.randint(1, 4), rows=pick.choice((5, 20)))
                random_request(trial, pick)
                if pick.random() < 0.5:
                    on.pass_epochs(1)
            trial.check()
        return Counter(passed.point for passed in faults.fired)


@pytest.mark.parametrize("seed", range(4))
def test_a_story(tmp_path: Path, seed: int) -> None:
    story(seed, tmp_path, mishaps=3)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_hundreds_of_faults(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run_story(number: int, pick: random.Random) -> Counter[str]:
        return story(2_000 + number, tmp_path / str(number), pick.randint(1, 5))

    many_faults(200, run_story, capsys)
