"""Planned removal of machines: nothing is lost, and no epoch runs twice."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.trials.live_cluster import LiveCluster
from tests.trials.live_trial import subject_trial
from tests.trials.one_host_trial import one_host_trial
from tests.trials.trial import MIGRATIONS, Request, Turn, trial


@pytest.mark.parametrize("migration", MIGRATIONS)
@pytest.mark.parametrize("hosts", [1, 2])
def test_all_hosts_leave_one_after_the_other(tmp_path: Path, migration: str, hosts: int) -> None:
    with trial("ledger", str(tmp_path), hosts=hosts, migration=migration) as flow:
        flow.take(Turn(0))
        for number in range(2 * hosts):
            was = list(flow.cluster.jobs.live)
            assert flow.take(Turn(number, requests=(Request("leave", 0, number),))) == 1
            flow.settle()
            assert set(flow.cluster.jobs.live) != set(was)
        assert not flow.cluster.deaths["driver"]
        flow.check()


def test_the_hosts_of_one_task_are_started_elsewhere_between_two_epochs(tmp_path: Path) -> None:
    with one_host_trial("chain", str(tmp_path)) as flow:
        for number in range(3):
            assert flow.take(Turn(number)) == 1
            assert flow.take(Turn(number, requests=(Request("leave"),))) == 1
        flow.check()


def has_changed(on: LiveCluster, before: set[str]) -> bool:
    return not before <= {*on.jobs.live, *on.crew.pids()}


@pytest.mark.parametrize("migration", ["lazy", "pause"])
def test_hosts_and_couriers_of_a_live_flow_leave(tmp_path: Path, migration: str) -> None:
    with subject_trial("tumbling", tmp_path, hosts=2, couriers=2, migration=migration) as story:
        on = story.cluster
        story.give()
        on.until(lambda: len(on.jobs.live) == len(on.crew.pids()) == 2, "all are there")
        for number in range(4):
            before = {*on.jobs.live, *on.crew.pids()}
            story.leave(number)
            on.until(partial(has_changed, on, before), "one has left")
            story.give(2)
            story.moved()
        assert not on.deaths["driver"]
        story.check()
