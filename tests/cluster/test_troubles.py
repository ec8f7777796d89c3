"""Flows on a cluster in which every part fails: state and output stay exact."""

from __future__ import annotations

import random

import pytest

from penstock.console.cluster.cluster import Cluster
from tests.cluster.flow_process import Start
from tests.cluster.flows import FlowProcess
from tests.cluster.troubles import TREATMENTS, TROUBLES, Scene

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]
MODES = pytest.mark.parametrize("live", [False, True], ids=["micro-batches", "live"])


@MODES
def test_one_trouble_after_the_other(cluster: Cluster, flow: FlowProcess, live: bool) -> None:
    started = Start(live=live)
    flow.start(started)
    scene = Scene(cluster, flow, started, random.Random(1))
    flow.goes_on()
    for trouble in TROUBLES:
        print(trouble.__name__, flush=True)
        trouble(scene)
        flow.goes_on()
    flow.stop()
    flow.check()


@pytest.mark.slow
@MODES
@pytest.mark.parametrize("seed", range(3))
def test_troubles_at_any_time(cluster: Cluster, flow: FlowProcess, live: bool, seed: int) -> None:
    """Failures overlap, and happen while slots move."""
    chance = random.Random(seed)
    started = Start(live=live)
    flow.start(started)
    scene = Scene(cluster, flow, started, chance)
    flow.goes_on()
    for _ in range(12):
        trouble = chance.choice([*TROUBLES, *TREATMENTS * 4])
        print(trouble.__name__, flush=True)
        trouble(scene)
        if chance.random() < 0.5:
            flow.goes_on(chance.randrange(1, 4), hosts=1)
    flow.goes_on(hosts=1)
    flow.stop()
    flow.check()


@MODES
def test_a_machine_that_hangs_is_done_without(
    cluster: Cluster, flow: FlowProcess, live: bool
) -> None:
    """A machine with a host stops, and others do its work. Spark learns earlier than after its two minutes
    that the executor is lost, so that it sends no more tasks there."""
    started = Start(live=live)
    flow.start(started)
    flow.goes_on()
    stopped = Scene(cluster, flow, started, random.Random(1)).worker()
    stopped.stop()
    try:
        flow.goes_on(10)
    finally:
        stopped.go_on()
    flow.goes_on(5)
    flow.stop()
    flow.check()
