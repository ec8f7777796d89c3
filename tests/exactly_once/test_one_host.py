"""Flows on one host are exactly once, whatever fails, with any number of workers."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.plan.migration import Migration
from penstock.settings import Settings
from tests.trials import trial
from tests.trials.cluster import SETTINGS, MiniCluster
from tests.trials.event_ledger import CASES
from tests.trials.event_trial import MOSTLY_IN_TIME, EventTrial
from tests.trials.one_host_trial import (
    ALONE,
    LINEAR,
    SMALL,
    THREE,
    WORKERS,
    OneHost,
    one_host_trial,
)
from tests.trials.stories import random_turn
from tests.trials.trial import FLOWS, Mishap, Trial, Turn, everything, hows

# A host's own threads die with an injected fault, as they would with their process.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
    pytest.mark.timeout(120),
]

_MOVING = ("host.began", "host.fetch", "host.fetched", "host.serve")
"""Points that are passed only when slots move between hosts."""
_COMING = ("host.assign", "host.trickle", "host.install")
"""Points that are passed only when a host has just started."""
POINTS = [point for point in trial.POINTS if point not in _MOVING]
OFTEN = [replace(settings, compact_epochs=1) for settings in (SMALL, ALONE, THREE)]
"""Settings with a compaction after every epoch; each driver has another number of workers."""
SOME = ("chain", "timeless")


def some(names: list[str]) -> list[Any]:
    """The first few names as parameters; the others only run in longer test runs."""
    slow = pytest.mark.slow
    return [name if name in SOME else pytest.param(name, marks=slow) for name in names]


@pytest.mark.parametrize("name", some([*FLOWS, *LINEAR]))
def test_a_restart_with_other_workers(tmp_path: Path, name: str) -> None:
    """State, late rows, dead letters and the end of input do not depend on the number of workers."""
    with one_host_trial(name, str(tmp_path), *WORKERS.values()) as flow:
        for seed, gap_ms in enumerate((1000, 3000, 500)):
            flow.take(Turn(seed, gap_ms=gap_ms, partitions=1 + seed))
            flow.cluster.restart()
        flow.check()


@pytest.mark.slow
@pytest.mark.parametrize("workers", WORKERS.values(), ids=WORKERS)
@pytest.mark.parametrize("name", [*FLOWS, *LINEAR])
def test_without_a_fault(tmp_path: Path, name: str, workers: Settings) -> None:
    with one_host_trial(name, str(tmp_path), workers) as flow:
        for seed, gap_ms in enumerate((1000, 3000, 500)):
            flow.take(Turn(seed, gap_ms=gap_ms, partitions=1 + seed))
        flow.check()


def mishaps() -> list[Any]:
    """Parameters: a mishap, and whether it happens in a host's first epoch, with state from the store."""
    params = []
    for point in POINTS:
        for how in hows(point):
            for fresh in (True, False):
                now = fresh and how == hows(point)[-1]
                marks = [] if now else [pytest.mark.slow]
                name = f"{point}-{how}-{'fresh' if fresh else 'later'}"
                params.append(pytest.param(Mishap(point, how), fresh, id=name, marks=marks))
    return params


@pytest.mark.parametrize(("mishap", "fresh"), mishaps())
def test_a_fault_at_each_point(tmp_path: Path, mishap: Mishap, fresh: bool) -> None:
    """Only the death of the driver ends a query, and the next driver continues where it was."""
    point = mishap.point
    with one_host_trial("chain", str(tmp_path), *OFTEN) as flow:
        flow.take(Turn(1))
        flow.epoch(everything("chain"))
        if fresh:
            flow.cluster.restart()
        died = flow.cluster.deaths["driver"]
        flow.take(Turn(2, mishaps=(mishap,)))
        if fresh or point not in _COMING:
            assert flow.fired[point] == 1, "the point was not passed"
            # The first process to read the store fails, which may be the driver.
            ends = (0, 1) if point == "store.read" else (int(point.startswith("driver.")),)
            assert flow.cluster.deaths["driver"] - died in ends
        flow.check()


@pytest.mark.parametrize("name", some(["chain", "hot"]))
def test_three_faults_in_an_epoch(tmp_path: Path, name: str) -> None:
    """One task has all hosts, and the driver loses them one after the other: it must not give up before it
    has lost all."""
    three = (
        Mishap("host.applied", "die"),
        Mishap("host.sealed", "break", 2),
        Mishap("courier.closed", "linger", 2),
    )
    with one_host_trial(name, str(tmp_path), SMALL) as flow:
        for seed in range(3):
            flow.take(Turn(seed, partitions=2, mishaps=three, reads=2))
        assert not flow.cluster.deaths["driver"]
        assert sum(flow.fired.values()) >= 6
        flow.check()


class Alternating(MiniCluster):
    """A cluster whose drivers alternate between one host and two hosts per step."""

    drivers = 0

    def start_driver(self) -> None:
        one_host, self.drivers = self.drivers % 2 == 1, self.drivers + 1
        self.flow = replace(self.flow, one_host=one_host, ordered=self.drivers % 3 == 0)
        self.hosts = {step.id: 1 if one_host else 2 for step in self.flow.keyed}
        self.migration = Migration.parse("pause" if one_host else "lazy")
        self.settings = replace(SETTINGS, host_cores=1 + self.drivers % 3, chunk_rows=5)
        super().start_driver()


@pytest.mark.parametrize("name", some([*FLOWS, *LINEAR]))
def test_one_host_and_many_in_turn(tmp_path: Path, name: str) -> None:
    """Either layout continues the other's checkpoint."""
    plain = name in FLOWS
    on = Alternating(FLOWS[name][0] if plain else CASES[name].flow, str(tmp_path))
    try:
        flow = Trial(name, on, FLOWS[name][1]()) if plain else EventTrial(name, on, MOSTLY_IN_TIME)
        for seed in range(5):
            flow.take(Turn(seed, partitions=1 + seed % 3))
            on.restart()
    finally:
        on.close()


def test_an_epoch_of_no_partitions(tmp_path: Path) -> None:
    """Some sources have such epochs when there is no input."""
    on = OneHost(replace(FLOWS["chain"][0], one_host=True), str(tmp_path), settings=(SMALL,))
    try:
        on.run(everything("chain"))
        on.run([])
        assert on.sink[1] == []
        on.run(everything("chain"))
        assert on.output(2)
    finally:
        on.close()


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 40))]
)
def test_any_story(tmp_path: Path, seed: int) -> None:
    """Up to three faults in each epoch, killed hosts, and restarts between epochs."""
    pick = random.Random(seed)
    name = pick.choice([*FLOWS, *LINEAR, "chain", "hot", "groups"])
    workers = [replace(pick.choice(list(WORKERS.values())), compact_epochs=2) for _ in range(3)]
    with one_host_trial(name, str(tmp_path), *workers) as flow:
        for _ in range(8):
            flow.take(random_turn(pick, mishaps=pick.randint(0, 3), requests=pick.randint(0, 1)))
        flow.check()
