"""Live flows on one host: a chain of steps gives the same output as one thread, whatever fails."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.faults import Fault, armed
from tests.trials.live_cluster import SETTINGS
from tests.trials.live_stories import POINTS, mishap, random_mishap
from tests.trials.live_subjects import SUBJECTS
from tests.trials.live_trial import SubjectTrial, subject_trial
from tests.trials.plain_rows import Row
from tests.trials.shops import in_arrival_order, unchained
from tests.trials.stories import many_faults

MANY_CORES = replace(SETTINGS, host_cores=3, chunk_rows=5)
CHAINS = [name for name, subject in SUBJECTS.items() if subject.flow.linear]
SOME = ("shops", "chained", "diary", "mixed", "hot")
MOVES = ("host.fetch", "host.fetched", "host.serve", "host.install")
"""Points that are passed only when slots move."""
PASSED = [point for point in POINTS if point not in MOVES and "releas" not in point]
BEGINS = ("host.assign", "host.trickle", "driver.assign", "driver.begin")
"""Points that are passed at the start of a run."""


@pytest.mark.parametrize("cores", [1, 3])
@pytest.mark.parametrize(
    "name",
    [name if name in SOME else pytest.param(name, marks=pytest.mark.slow) for name in CHAINS],
)
def test_it_gives_what_a_batch_would(tmp_path: Path, name: str, cores: int) -> None:
    settings = SETTINGS if cores == 1 else MANY_CORES
    with subject_trial(name, tmp_path, one_host=True, settings=settings) as trial:
        for _ in range(3):
            trial.give()
            trial.cluster.pass_epochs(1)
        trial.check()
        assert all(one.runs == 1 for one in trial.cluster.progress)


def in_one_thread(trial: SubjectTrial, output: list[Row]) -> None:
    """Assert that the output equals that of one thread that processes row by row, in exactly that order."""
    (rows,) = in_arrival_order([row | {"p": "all"} for row in trial.rows]).values()
    left = [("all", *row[1:]) for row in map(tuple, (row.values() for row in unchained(output)))]
    assert left == rows
    assert [row["place"] for row in output] == list(range(len(output)))


@pytest.mark.parametrize("settings", [SETTINGS, MANY_CORES], ids=["one core", "three cores"])
def test_one_partition_is_as_in_one_thread(tmp_path: Path, settings: Any) -> None:
    """The global step at the end of the chain also sees its rows in the order of the source."""
    options = {"settings": settings, "partitions": 1, "couriers": 1, "one_host": True}
    with subject_trial("chained", tmp_path, **options) as trial:
        with armed(mishap(trial.cluster, "host.round", 6)) as faults:
            for _ in range(6):
                trial.give(batches=8, rows=10)
                trial.cluster.pass_epochs(1)
            trial.check()
        assert faults.fired
        in_one_thread(trial, trial.cluster.sink.all_rows())


def test_couriers_get_what_their_own_rows_caused(tmp_path: Path) -> None:
    with subject_trial("shops", tmp_path, one_host=True, couriers=3, transactional=True) as trial:
        trial.give(10)
        trial.check()
        assert {courier for _, courier in trial.cluster.sink.delivered} == {0, 1, 2}


@pytest.mark.parametrize("point", PASSED)
def test_a_death_at_each_point(tmp_path: Path, point: str) -> None:
    settings = replace(MANY_CORES if "host" in point else SETTINGS, compact_epochs=1)
    with subject_trial("chained", tmp_path, one_host=True, settings=settings) as trial:
        trial.give()
        trial.cluster.pass_epochs(1)
        with armed(mishap(trial.cluster, point, 1 if point in BEGINS else 2)) as faults:
            if point in (
                "host.assign",
                "host.trickle",
            ):  # one that comes back brings its state first
                trial.cluster.jobs.kill("first/0")
            elif point in BEGINS:
                trial.cluster.courier_jobs.kill("courier/0")
            for _ in range(20):
                trial.give(2)
                trial.cluster.pass_epochs(1)
                if faults.fired:
                    break
            trial.check()
        assert [passed.point for passed in faults.fired] == [point]


def test_a_host_that_came_back_goes_back_before_its_first_checkpoint(tmp_path: Path) -> None:
    """Its restored state is complete before rows flow."""
    with subject_trial("chained", tmp_path, one_host=True) as trial:
        trial.give()
        trial.cluster.pass_epochs(2)
        run = trial.cluster.runner._run
        with armed(Fault("courier.polled", where={"run": run + 1})) as faults:
            trial.cluster.jobs.kill("first/0")
            trial.give(2)
            trial.cluster.until(lambda: faults.fired, "a courier dies in the next run")
            trial.cluster.pass_epochs(2)
            trial.check()
        assert max(one.runs for one in trial.cluster.progress) >= 3


def story(seed: int, store: Path, mishaps: int, turns: int = 6) -> Counter[str]:
    """Run a story of rows and deaths; return the number of faults at each point."""
    pick = random.Random(seed)
    options: dict[str, Any] = {
        "couriers": pick.randint(1, 3),
        "settings": pick.choice((SETTINGS, MANY_CORES)),
        "transactional": pick.random() < 0.5,
    }
    name = pick.choice(CHAINS)
    with subject_trial(name, store, seed, one_host=True, **options) as trial:
        on = trial.cluster
        with armed(*(random_mishap(on, pick) for _ in range(mishaps))) as faults:
            for _ in range(turns):
                trial.give(batches=pick.randint(1, 4), rows=pick.choice((5, 20)))
                if pick.random() < 0.2:
                    on.jobs.kill_all()
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
        return story(3_000 + number, tmp_path / str(number), pick.randint(1, 5))

    many_faults(100, run_story, capsys)
