"""A flow on a standalone cluster through the death of an executor: what always runs of tests/cluster."""

from __future__ import annotations

from penstock.console.cluster.cluster import Cluster
from tests.cluster.flow_process import Start
from tests.cluster.flows import FlowProcess, executor_of


def test_a_flow_goes_on_when_an_executor_is_killed(cluster: Cluster, flow: FlowProcess) -> None:
    flow.start(Start(hosts=2))
    flow.goes_on(epochs=2)
    executor = executor_of(flow.hosts()["aggregate-1/0"])
    assert executor in cluster.executors()
    executor.kill()
    flow.goes_on(epochs=3)
    flow.stop()
    flow.check()
    assert "\tat " not in flow.log.read_text(), "stack traces of a failure that was survived"
