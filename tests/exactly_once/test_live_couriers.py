"""Couriers of live flows come, go, change their partitions and die: every row counts once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from penstock.control.crew_size import CrewLimits
from penstock.faults import Fault, armed
from penstock.live.sources.rate import rate
from penstock.plan.steps import FlowPlan, KeyedStep, SourcePlan
from tests.trials.ledger import SLOTS, aggregated
from tests.trials.live_cluster import live_cluster
from tests.trials.live_stories import mishap
from tests.trials.live_subjects import SUBJECTS, newest
from tests.trials.live_trial import SubjectTrial, subject_trial

NAMES = list(SUBJECTS)


def crew_of(trial: SubjectTrial, couriers: int) -> None:
    """Wait until a run has this number of couriers."""
    crew = trial.cluster.crew
    trial.cluster.until(lambda: len(crew._run) == couriers and not crew.idle, f"{couriers}")


@pytest.mark.parametrize(("number", "name"), list(enumerate(NAMES)))
def test_couriers_come_and_go_while_rows_flow(tmp_path: Path, number: int, name: str) -> None:
    with subject_trial(name, tmp_path, couriers=1, transactional=number % 2 == 0) as trial:
        trial.give()
        for couriers in (3, 2, 2, 1, 2):
            trial.have_couriers(couriers)
            trial.give(2)
            crew_of(trial, couriers)
            trial.give(1)
        trial.check()
        on = trial.cluster
        assert len(on.journal) == 5
        assert max(p.runs for p in on.progress) == 1, "no run was broken off"


RENEWAL = (
    "driver.message", "driver.told", "courier.message", "courier.messaged", "courier.flushed",
    "host.seal", "host.sealed", "driver.sealed", "driver.committed", "courier.release",
    "courier.released", "driver.begin", "courier.polled", "courier.sent", "host.round",
)  # fmt: skip
"""Points of a renewal of couriers, from its last checkpoint to the first rows of the next run."""


@pytest.mark.parametrize(("number", "point"), list(enumerate(RENEWAL)))
def test_a_death_at_each_point_of_a_renewal(tmp_path: Path, number: int, point: str) -> None:
    """The process that passes the point dies, first when a courier is added and then when one is removed."""
    name = NAMES[(3 * number) % len(NAMES)]
    with subject_trial(name, tmp_path, transactional="releas" in point or number % 2 == 0) as trial:
        trial.give()
        trial.cluster.pass_epochs(1)
        fired = 0
        for couriers in (3, 1):
            trial.have_couriers(couriers)
            with armed(mishap(trial.cluster, point, 1 if point == "driver.begin" else 2)) as faults:
                for _ in range(20):
                    trial.give(2)
                    trial.cluster.pass_epochs(1)
                    if faults.fired:
                        break
            fired += len(faults.fired)
        trial.check()
        assert fired == 2


@pytest.mark.parametrize(
    "point", ["driver.told", "driver.sealed", "driver.committed", "driver.begin"]
)
@pytest.mark.parametrize(
    ("before", "after", "who"),
    [(1, 2, "comes"), (2, 1, "goes"), (2, 1, "stays"), (1, 2, "stays"), (2, 2, "stays")],
)
def test_a_courier_dies_during_a_renewal(
    tmp_path: Path, before: int, after: int, who: str, point: str
) -> None:
    dies = "courier/0" if who == "stays" else "courier/1"
    with subject_trial("mixed", tmp_path, couriers=before, transactional=after == 2) as trial:
        on = trial.cluster
        trial.give()
        on.pass_epochs(1)

        def renews() -> bool:
            there = on.crew.ready(on.crew.names)
            return len(on.crew.names) == after and len(there) == after and on.scaling.asked.empty()

        def kill(where: Mapping[str, object]) -> None:
            if renews() and not on.deaths[dies]:
                on.courier_jobs.kill(dies)

        trial.have_couriers(after)
        with armed(Fault(point, do=kill, hits=tuple(range(1, 1_000)))):
            on.until(lambda: trial.give(1) or on.deaths[dies], f"{dies} dies")
            trial.give(2)
            crew_of(trial, after)
        trial.give()
        trial.check()
        assert on.deaths["driver"] == 0


def test_couriers_follow_the_load(tmp_path: Path) -> None:
    """One courier becomes several under load, by the busy time of their threads; a quiet flow has one
    again. Every row counts once."""
    rows = 120_000
    source = rate(20_000, rows=rows, partitions=4, keys=50)
    step = KeyedStep("sums", SLOTS, aggregated(source.schema, "key", "value"))
    flow = FlowPlan((SourcePlan(source.schema, arrival="arrival"),), (step,))
    limits = CrewLimits(at_most=3, high=0.02, target=0.015, low=0.01, calm_ms=600.0)
    with live_cluster(flow, (source,), str(tmp_path), couriers=1, limits=limits) as on:
        on.until(lambda: len(on.crew._run) == 3, "three couriers")
        on.until(lambda: on.outcome is not None or len(on.crew._run) == 1, "one again")
        on.until(lambda: on.outcome == "finished", "the end")
        last = newest(on.sink.all_rows(), "key")
        assert sum(row[2] for row in last.values()) == rows
        assert on.journal[0].facts["now"] > 1
        assert all(entry.text.count("courier") for entry in on.journal)
