"""Live flows that send some rows to burst workers: whatever workers do and whichever process dies, the
output is that of a batch computation."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock import codec
from penstock.control.elastic import Elastic
from penstock.control.instructions import Tell
from penstock.faults import Fault, armed
from penstock.live.sources.rate import rate
from penstock.model import SLA
from penstock.offload.backends.backend import keep_invoker, remove_invoker
from penstock.offload.backends.local.backend import LocalFunctions
from penstock.offload.keeper import WorkerKeeper
from penstock.offload.plan.segments import live_segment, segments
from penstock.offload.policy.flow import machine_of
from penstock.operators.aggregate.aggregates import AggregatePlan, count
from penstock.plan.steps import FlowPlan, KeyedStep, SourcePlan
from penstock.sim.shapes import shape
from penstock.testing import Pace
from penstock.wire.report import Seen
from tests.exactly_once.test_live_stories import NEEDS, back_and_forth, die_at
from tests.offload.in_process import ANYHOW, WELL, Chances, Helped, StandIn, helped
from tests.offload.in_process import Kept as InProcess
from tests.trials.live_cluster import SETTINGS, live_cluster
from tests.trials.live_stories import BURST_POINTS, POINTS, tell
from tests.trials.live_subjects import SUBJECTS
from tests.trials.live_trial import SubjectTrial, subject_trial
from tests.trials.stories import many_faults
from tests.trials.trial import MIGRATIONS

SOON_MS = 60
"""Milliseconds after which hanging burst workers are given up."""
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
"""Flows that every run of the tests tries; the others only run in longer test runs."""


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
    """Slots move back and forth meanwhile."""
    migration = MIGRATIONS[NAMES.index(name) % len(MIGRATIONS)]
    with helped_trial(name, tmp_path, migration=migration) as (trial, by):
        did = by.workers.did
        for _ in range(20):  # How many chunks become requests depends on how busy the machine is.
            back_and_forth(trial)
            if did["answer"] > 5 and len(did) > 3:
                break
        trial.check()
        assert did["answer"] > 5
        assert len(did) > 3
        assert all(one.runs == 1 for one in trial.cluster.progress)


def test_slow_burst_workers_keep_no_checkpoint_for_longer_than_the_deadline(
    tmp_path: Path,
) -> None:
    with helped_trial("sums", tmp_path, {"hang": 1}) as (trial, by):
        for _ in range(20):
            trial.give()
            trial.cluster.pass_epochs(1)
            if by.workers.did["hang"] > 5:
                break
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
        die_at(trial, point)


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


@pytest.mark.parametrize("point", ["driver.committed", "courier.flushed"])
def test_no_row_is_with_burst_workers_when_its_epoch_is_durable(tmp_path: Path, point: str) -> None:
    """A death at that moment would lose it."""
    with helped(SUBJECTS["sums"].flow, {"hang": 1}, 1, deadline_ms=150) as by:
        by.chance = 1.0
        with subject_trial("sums", tmp_path, helped=by, checkpoint_ms=20) as trial:
            trial.cluster.pass_epochs(1)
            with armed(Fault(point, hits=(2, 5, 8))) as faults:
                for _ in range(40):
                    trial.give(batches=1)
                    time.sleep(0.02)  # A few batches per checkpoint.
                    if len(faults.fired) == 3:
                        break
                trial.check()
            assert faults.fired


def run_story(name: str, seed: int, store: Path, mishaps: int, did: Counter[str]) -> Counter[str]:
    with helped(SUBJECTS[name].flow, ANYHOW, seed, SOON_MS) as by:
        fired = tell(name, seed, store, mishaps, helped=by)
    did.update(by.workers.did)
    return fired


@pytest.mark.parametrize("seed", range(4))
def test_a_story(tmp_path: Path, seed: int) -> None:
    did = Counter[str]()
    run_story(NAMES[(5 * seed) % len(NAMES)], seed, tmp_path, 3, did)
    assert did


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_hundreds_of_faults(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    did = Counter[str]()

    def one(story: int, pick: random.Random) -> Counter[str]:
        name, seed = NAMES[story % len(NAMES)], 2_000 + story
        return run_story(name, seed, tmp_path / str(story), pick.randint(1, 5), did)

    assert set(BURST_POINTS) <= set(many_faults(300, one, capsys))
    assert set(did) == set(ANYHOW)


def test_nothing_is_done_twice_when_all_is_well(tmp_path: Path) -> None:
    """Hosts reject no answer of burst workers, and no latency is reported twice. The last latencies may come
    after the last report."""
    with helped(SUBJECTS["sums"].flow, WELL, 1, 10_000) as by:
        by.chance = 1.0
        with subject_trial("sums", tmp_path, helped=by) as trial:
            seen = list[Seen]()
            take = trial.cluster.registry.actions["passed"]

            def passed(facts: dict[str, Any]) -> Any:
                seen.append(codec.from_plain(facts["seen"], Seen))
                return take(facts)

            trial.cluster.registry.actions["passed"] = passed
            for _ in range(4):
                trial.give()
                trial.cluster.pass_epochs(1)
            trial.check()
            rows = len(trial.rows)
    reports = [one for report in seen for one in report.offloaded]
    assert reports
    assert all(not one.failures and not one.returned for one in reports)
    assert 0 < sum(sum(report.latency_counts) for report in seen) <= rows


class Kept:
    """Burst workers of a controlled flow, in this process."""

    def __init__(self, flow: FlowPlan, chances: Chances) -> None:
        self.workers = StandIn(flow, chances)
        self.text = f"kept {id(self)}"

    @contextmanager
    def keeper(self) -> Iterator[WorkerKeeper]:
        keep_invoker(self.text, self.workers)
        made = WorkerKeeper(lambda: InProcess(self.text, self.workers))
        made.start()
        try:
            yield made
        finally:
            made.stop()
            remove_invoker(self.text)


@pytest.mark.parametrize("chances", [WELL, ANYHOW])
def test_control_lets_burst_workers_help_and_every_row_counts_once(
    tmp_path: Path, chances: Chances
) -> None:
    """One host of 1,000 rows per second gets 3,000 for a while. Couriers die meanwhile."""
    rows = 9_000
    source = rate(shape("burst(500, 6, 3s, 2s)"), rows=rows, keys=40, partitions=2)
    plan = AggregatePlan(source.schema, ["key"], {"n": count()})
    step = KeyedStep("count", 16, plan)
    flow = FlowPlan((SourcePlan(source.schema, arrival="arrival"),), (step,))
    kept = Kept(flow, chances)
    elastic = Elastic(at_most=1, functions=LocalFunctions(at_most=8))
    paced = Fault("host.work", Pace(1_000.0), hits=())
    with kept.keeper() as keeper, armed(paced, Fault("courier.offloaded", hits=(20,))) as faults:
        with live_cluster(
            flow, [source], str(tmp_path), hosts=1, elastic=elastic, sla=SLA(200, 1_000),
            warm_slots=5, checkpoint_ms=200, keeper=keeper,
        ) as on:  # fmt: skip
            on.until(lambda: on.outcome is not None, "all rows are through")
            assert on.outcome == "finished"
            newest = {row["key"]: row["n"] for row in on.sink.all_rows()}
            assert sum(newest.values()) == rows
            assert kept.workers.did["answer"] > 20, "by reflex, or by decision"
            assert "courier.offloaded" in {one.point for one in faults.fired}
        opening, *events = on.recorded
        again = machine_of(opening, elastic)
        said = [one for event in events for one in again.handle(event)]
        assert [one.entry for one in said if isinstance(one, Tell)] == on.journal
