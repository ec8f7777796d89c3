"""A flow on a standalone cluster through the death of an executor: this part of tests/cluster always runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.console.cluster.cluster import Cluster, Shape, running_cluster
from tests.cluster.flow_process import Start
from tests.cluster.flows import FlowProcess, executor_of


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A cluster with as few processes as possible: one worker with two executors."""
    with running_cluster(Shape(workers=1, cores=6, memory="1g")) as started:
        yield started


def test_a_flow_goes_on_when_an_executor_is_killed(cluster: Cluster, flow: FlowProcess) -> None:
    flow.start(Start(hosts=2, conf={"spark.executor.cores": "3"}))
    flow.goes_on(epochs=1)
    executor = executor_of(flow.hosts()["aggregate-1/0"])
    assert executor in cluster.executors()
    executor.kill()
    flow.goes_on(epochs=2)
    flow.stop()
    flow.check()
    assert "\tat " not in flow.log.read_text(), "stack traces of a failure that was survived"
