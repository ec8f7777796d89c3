"""Live flows of which some rows go to burst workers: whatever these do and whoever dies, what comes out is
what a batch gives."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.faults import Fault, armed
from penstock.offload.plan.segments import live_segment, segments
from tests.exactly_once.test_live_stories import NEEDS, back_and_forth
from tests.offload.in_process import ANYHOW, WELL, Chances, Helped, helped
from tests.trials.live_cluster import SETTINGS
from tests.trials.live_stories import BURST_POINTS, POINTS, mishap, tell
from tests.trials.live_subjects import SUBJECTS
from tests.trials.live_trial import SubjectTrial, subject_trial
from tests.trials.stories import many_faults
from tests.trials.trial import MIGRATIONS

SOON_MS = 60
"""Milliseconds after which burst workers that hang are given up."""
NAMES = [
    name
    for name, subject in SUBJECTS.items()
    if any(
        live_segment(segment).offloadable
        for segment in segments(subject.flow)
        if segment.keyed is not None
    )
]
SOME = NAMES[::3]
"""Flows that are tried each time; the others where there is time."""


@contextmanager
def helped_trial(
    name: str, store: Path, chances: Chances = ANYHOW, seed: int = 1, **options: Any
) -> Iterator[tuple[SubjectTrial, Helped]]:
    with helped(SUBJECTS[name].flow, chances, seed, SOON_MS) as by:
        by.chance = 1.0
        with subject_trial(name, store, seed, helped=by, **options) as trial:
            yield trial, by


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in SOME else [pytest.mark.slow]) for name in NAMES],
)
def test_whatever_becomes_of_burst_workers(tmp_path: Path, name: str) -> None:
    """While slots go back and forth."""
    migration = MIGRATIONS[NAMES.index(name) % len(MIGRATIONS)]
    with helped_trial(name, tmp_path, migration=migration) as (trial, by):
        for _ in range(2):
            back_and_forth(trial)
        trial.check()
        assert by.workers.did["answer"] > 5
        assert len(by.workers.did) > 3
        assert all(one.runs == 1 for one in trial.cluster.progress)


def test_slow_burst_workers_keep_no_checkpoint_for_longer_than_the_deadline(
    tmp_path: Path,
) -> None:
    with helped_trial("sums", tmp_path, {"hang": 1}) as (trial, by):
        for _ in range(4):
            trial.give()
            trial.cluster.pass_epochs(1)
        trial.check()
        assert by.workers.did["hang"] > 5


@pytest.mark.parametrize(
    ("number", "point"),
    [
        pytest.param(number, point, marks=[] if now else [pytest.mark.slow])
        for number, point in enumerate((*BURST_POINTS, *POINTS))
        for now in [point in BURST_POINTS or number % 4 == 0]
        if "releas" not in point
    ],
)
def test_a_death_at_each_point(tmp_path: Path, number: int, point: str) -> None:
    settings = replace(SETTINGS, compact_epochs=1)
    options: dict[str, Any] = {"settings": settings, **NEEDS.get(point, {})}
    with helped_trial(NAMES[number % len(NAMES)], tmp_path, **options) as (trial, _):
        trial.give()
        trial.cluster.pass_epochs(1)
        begins = point in ("host.assign", "driver.assign", "driver.begin")
        with armed(mishap(trial.cluster, point, 1 if begins else 2)) as faults:
            if begins:  # a run, that is
                trial.cluster.courier_jobs.kill("courier/0")
            for _ in range(20):
                back_and_forth(trial, 2)
                if faults.fired:
                    break
            trial.check()
        assert [passed.point for passed in faults.fired] == [point]


@pytest.mark.parametrize("point", BURST_POINTS)
def test_couriers_die_again_and_again(tmp_path: Path, point: str) -> None:
    with helped_trial("sums", tmp_path) as (trial, _):
        with armed(Fault(point, hits=(3, 9, 20))) as faults:
            for _ in range(20):
                back_and_forth(trial, 1)
                if len(faults.fired) == 3:
                    break
            trial.check()
        assert len(faults.fired) == 3


def told(name: str, seed: int, store: Path, mishaps: int, did: Counter[str]) -> Counter[str]:
    with helped(SUBJECTS[name].flow, ANYHOW, seed, SOON_MS) as by:
        fired = tell(name, seed, store, mishaps, helped=by)
    did.update(by.workers.did)
    return fired


@pytest.mark.parametrize("seed", range(4))
def test_a_story(tmp_path: Path, seed: int) -> None:
    did = Counter[str]()
    told(NAMES[(5 * seed) % len(NAMES)], seed, tmp_path, 3, did)
    assert did


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_hundreds_of_faults(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    did = Counter[str]()

    def one(story: int, pick: random.Random) -> Counter[str]:
        name, seed = NAMES[story % len(NAMES)], 2_000 + story
        return told(name, seed, tmp_path / str(story), pick.randint(1, 5), did)

    assert set(BURST_POINTS) <= set(many_faults(300, one, capsys))
    assert set(did) == set(ANYHOW)


def test_nothing_is_done_twice_when_all_is_well(tmp_path: Path) -> None:
    """No answer is refused: what burst workers give is what hosts take."""
    with helped(SUBJECTS["sums"].flow, WELL, 1, 10_000) as by:
        by.chance = 1.0
        with subject_trial("sums", tmp_path, helped=by) as trial:
            seen = list[Any]()
            take = trial.cluster.registry.actions["passed"]

            def passed(facts: dict[str, Any]) -> Any:
                seen.extend(facts["seen"]["offloaded"])
                return take(facts)

            trial.cluster.registry.actions["passed"] = passed
            for _ in range(4):
                trial.give()
                trial.cluster.pass_epochs(1)
            trial.check()
    assert seen
    assert all(not one["failures"] and not one["returned"] for one in seen)
