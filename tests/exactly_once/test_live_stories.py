"""Live flows of every kind through moves, deaths and silence: the output is that of a batch computation."""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.faults import FAULT_POINTS, LIVE_POINTS, armed
from tests.trials.live_cluster import SETTINGS
from tests.trials.live_stories import BURST_POINTS, POINTS, mishap, tell
from tests.trials.live_subjects import SUBJECTS, newest
from tests.trials.live_trial import SubjectTrial, subject_trial
from tests.trials.stories import many_faults
from tests.trials.trial import MIGRATIONS

NAMES = list(SUBJECTS)
NEEDS = {
    "host.install": {"migration": "all_at_once"},
    "host.trickle": {"migration": "all_at_once"},
    "host.fetch": {"migration": "lazy(0)"},
    "host.fetched": {"migration": "lazy(0)"},
    "host.serve": {"migration": "lazy(0)"},
}
"""Cluster settings with which a point is certainly passed."""


def test_every_point_is_told_of() -> None:
    """Points that only micro-batches or Spark's sinks pass are exempt."""
    micro = {
        "host.channel", "host.began", "host.applied", "driver.written", "courier.read", "courier.closed",
        "sink.merge", "host.confirm",
    }  # fmt: skip
    assert {*POINTS, *BURST_POINTS} | micro == set(FAULT_POINTS) | set(LIVE_POINTS)


def back_and_forth(trial: SubjectTrial, turns: int = 3) -> None:
    """Move all slots of all steps to one host, while rows flow, then to another one."""
    for turn in range(turns):
        for number in range(len(trial.cluster.flow.keyed)):
            trial.move(number, to=turn)
        trial.give(2)
        trial.cluster.pass_epochs(1)
        trial.give(1)


def die_at(trial: SubjectTrial, point: str) -> None:
    """Let a process die at a point while slots move back and forth, and assert that nothing is lost."""
    trial.give()
    trial.cluster.pass_epochs(1)
    begins = point in ("host.assign", "driver.assign", "driver.begin")
    with armed(mishap(trial.cluster, point, 1 if begins else 2)) as faults:
        if begins:  # At the start of a run.
            trial.cluster.courier_jobs.kill("courier/0")
        for _ in range(20):
            back_and_forth(trial, 2)
            if faults.fired:
                break
        trial.check()
    assert [passed.point for passed in faults.fired] == [point]


@pytest.mark.parametrize(
    ("name", "migration"),
    [(name, MIGRATIONS[number % len(MIGRATIONS)]) for number, name in enumerate(NAMES)],
)
def test_slots_go_back_and_forth(tmp_path: Path, name: str, migration: str) -> None:
    """Windows and timers fire meanwhile, and hosts come and go."""
    with subject_trial(name, tmp_path, migration=migration) as trial:
        trial.give()
        back_and_forth(trial)
        for hosts in (3, 1):
            trial.scale(0, hosts)
            trial.give(2)
        trial.check()


@pytest.mark.slow
@pytest.mark.parametrize("migration", MIGRATIONS)
@pytest.mark.parametrize("name", NAMES)
def test_slots_go_back_and_forth_by_each_migration(
    tmp_path: Path, name: str, migration: str
) -> None:
    with subject_trial(
        name, tmp_path, migration=migration, memory_limit=6_000, couriers=2
    ) as trial:
        trial.give()
        back_and_forth(trial, 6)
        trial.check()


DELIVERED = ("courier.flushed", "courier.release", "courier.released", "host.seal", "host.sealed",
             "driver.sealed", "driver.committed", "driver.begin", "store.write")  # fmt: skip
"""Points between the end of an epoch and its delivery."""


@pytest.mark.parametrize(
    ("number", "point", "transactional"),
    [
        *((n, point, False) for n, point in enumerate(POINTS) if "releas" not in point),
        *((n, point, True) for n, point in enumerate(DELIVERED)),
    ],
)
def test_a_death_at_each_point(
    tmp_path: Path, number: int, point: str, transactional: bool
) -> None:
    """A process dies during moves; each point is tried with a different kind of flow."""
    settings = replace(SETTINGS, compact_epochs=1)
    options: dict[str, Any] = {"settings": settings, **NEEDS.get(point, {})}
    options["transactional"] = transactional
    name = NAMES[(5 * number) % len(NAMES)]
    with subject_trial(name, tmp_path, **options) as trial:
        die_at(trial, point)
        died = trial.cluster.deaths["driver"]
        assert died == (point.startswith("driver.") or 0), "the query has ended"


@pytest.mark.parametrize("seed", range(6))
def test_a_story(tmp_path: Path, seed: int) -> None:
    tell(NAMES[(7 * seed) % len(NAMES)], seed, tmp_path, mishaps=3)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_hundreds_of_faults(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run_story(story: int, pick: random.Random) -> Counter[str]:
        name = NAMES[story % len(NAMES)]
        return tell(name, 1_000 + story, tmp_path / str(story), mishaps=pick.randint(1, 5))

    many_faults(300, run_story, capsys)


def test_the_store_holds_what_a_batch_would_count(tmp_path: Path) -> None:
    """The newest version in the store is right after a story with deaths and moves."""
    with subject_trial("sums", tmp_path, memory_limit=6_000) as trial:
        with armed(
            mishap(trial.cluster, "host.sealed", 2), mishap(trial.cluster, "courier.sent", 9)
        ):
            back_and_forth(trial)
            trial.check()
        last = newest(trial.cluster.sink.all_rows(), "k")
        stored = trial.stored()
        assert stored.keys() == last.keys()
        for key, row in stored.items():
            columns = ("sum(v)", "count(*)", "min(v)", "max(v)")
            assert tuple(row[name] for name in columns) == last[key][1:]


def test_a_host_that_falls_silent_is_given_up(tmp_path: Path) -> None:
    """The silent host cannot be killed: it continues when others own its slots, and changes nothing."""
    settings = replace(SETTINGS, host_lost_ms=700)
    with subject_trial("sums", tmp_path, settings=settings) as trial:
        on = trial.cluster
        trial.give()
        on.pass_epochs(1)
        on.jobs.stop("sums/0")
        trial.give()
        began = time.monotonic()
        on.pass_epochs(2)
        assert time.monotonic() - began < 10
        on.jobs.resume_given_up()
        trial.give()
        on.pass_epochs(1)
        trial.check()


@pytest.mark.parametrize("name", ["tumbling", "reminders", "bells", "hot"])
def test_a_window_does_not_wait_for_a_checkpoint(tmp_path: Path, name: str) -> None:
    """It closes when all partitions have passed it, within a second on a busy machine; the next
    checkpoint is a minute away."""
    with subject_trial(name, tmp_path, checkpoint_ms=60_000) as trial:
        trial.give(batches=4, rows=12, gap_ms=400)
        trial.polled()
        before = len(trial.cluster.sink.all_rows())
        trial.give(batches=1, rows=12, gap_ms=6_000)
        trial.give(batches=1, rows=12, gap_ms=2_000)
        took_s = trial.cluster.until(
            lambda: len(trial.cluster.sink.all_rows()) > before, "a window closes"
        )
        assert took_s < 1, f"{took_s:.1f} s"
        assert not trial.cluster.progress
        trial.cluster.stop()
