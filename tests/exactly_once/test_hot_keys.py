"""Hot keys over users' own aggregates and processors: couriers combine their rows, and nothing is lost."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from penstock.control.diagnose.hot_keys import HotKeys
from penstock.control.elastic import Elastic
from penstock.faults import Fault, armed
from penstock.operators.operator import StepPlan
from tests.exactly_once.test_live_stories import back_and_forth
from tests.trials.cluster import cluster
from tests.trials.control_trial import Obedient
from tests.trials.event_ledger import CASES
from tests.trials.event_trial import event_trial
from tests.trials.live_subjects import SUBJECTS
from tests.trials.live_trial import subject_trial
from tests.trials.trial import MIGRATIONS, Mishap, Request, Turn, hows

NAMES = ("own-changes", "own-tumbling", "own-session", "histogram", "batch-sums", "compiled-sums")
LIVE = ("own-changes", "own-session", "histogram", "merged-reminders")
POINTS = ("host.applied", "host.seal", "courier.sent", "courier.closed", "driver.written")
HOT = [
    [{"k": 7 if n % 4 else n, "g": 0, "v": n % 5, "ts": 5_000} for n in range(80 * part, 400)]
    for part in range(2)
]
"""Rows of two tasks, most of which have key 7."""


@pytest.fixture(autouse=True)
def two_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let control find that a key is hot, from the beginning."""
    monkeypatch.setattr(HotKeys, "two_stage", True)


@pytest.mark.parametrize("name", ["own-changes", "histogram", "batch-sums"])
def test_a_hot_key_costs_its_host_one_record_of_each_task(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    with cluster(case.flow, str(tmp_path), elastic=Elastic("static(2)")) as on:
        progress = on.run(HOT)
        assert sum(host.rows for host in progress.hosts) == sum(
            len({row["k"] for row in part}) for part in HOT
        )
        rows = [row for part in HOT for row in part]
        assert on.output(progress.epoch) == case.twin().epoch(rows, 0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("point", POINTS)
def test_a_fault_at_a_point_while_slots_move(tmp_path: Path, name: str, point: str) -> None:
    migration = MIGRATIONS[(len(point) + len(name)) % len(MIGRATIONS)]
    moves = (Request("move", number=1, slots=(0, 1, 2, 3)), Request("move", slots=(5, 6)))
    with event_trial(
        name, str(tmp_path), hosts=3, elastic=Elastic("static(3)"), migration=migration
    ) as flow:
        for number, how in enumerate(hows(point)):
            flow.settle()
            flow.take(Turn(number, rows=40))
            fault = Mishap(point, how)
            flow.take(Turn(9 + number, requests=moves, mishaps=(fault,), rows=40))
            assert flow.fired[point] == number + 1, "the point was not passed"
        flow.check()


@pytest.mark.parametrize("name", LIVE)
@pytest.mark.parametrize("point", ["", "host.applied", "courier.sent"])
def test_live_flows_with_a_hot_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, point: str
) -> None:
    stages: Counter[bool] = Counter()
    kind = type(SUBJECTS[name].flow.keyed[0].plan)
    sender = kind.sender

    def counted(plan: StepPlan, time: Any, two_stage: bool = False) -> Any:
        stages[two_stage] += 1
        return sender(plan, time, two_stage)

    monkeypatch.setattr(kind, "sender", counted)
    faults = [Fault(point, hits=(12,))] if point else []
    with subject_trial(name, tmp_path, 3, elastic=Elastic(Obedient())) as trial, armed(*faults):
        for _ in range(2):
            back_and_forth(trial)
        trial.check()
    assert stages[True] > 5
