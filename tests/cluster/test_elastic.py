"""Executors that come and go, with scaling and with machines that are removed."""

from __future__ import annotations

import os
import signal

import pytest

from penstock.console.cluster.cluster import Cluster
from tests.cluster.flow_process import Start
from tests.cluster.flows import FlowProcess, await_condition, executor_of

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

DYNAMIC = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.executorIdleTimeout": "3s",
    "spark.executor.cores": "2",
}
LEAVES = {"spark.decommission.enabled": "true", "spark.executor.cores": "2"}


def test_executors_come_and_go_with_hosts(cluster: Cluster, flow: FlowProcess) -> None:
    """Each host has its own executor, besides those of couriers."""
    flow.start(Start(hosts=1, conf=DYNAMIC))
    flow.goes_on()
    before = {one.pid for one in cluster.executors()}
    flow.ask("query.scale('aggregate-1', 3)")
    flow.until("len(query.status.hosts) == 3 and query.status.pending_slots == 0")
    own = {executor_of(pid).pid for pid in flow.hosts().values()}
    assert len(own) == 3, "one host, one executor"
    assert len(own - before) == 2, "executors were started for the hosts that came"
    flow.ask("query.scale('aggregate-1', 1)")
    flow.until("len(query.status.hosts) == 1 and query.status.pending_slots == 0")
    (kept,) = {executor_of(pid).pid for pid in flow.hosts().values()}
    await_condition(lambda: not (own - {kept}) & {one.pid for one in cluster.executors()})
    flow.goes_on()
    assert flow.ask("max(p.runs for p in query.progress)") == 1
    flow.stop()
    flow.check()


def test_the_switch_has_executors_come_and_go(cluster: Cluster, flow: FlowProcess) -> None:
    """The load drives it: hosts of 1,000 rows per second get 400, then 1,800 for 40 s, then 400 again."""
    load = "burst(400, 4.5, 20s, 40s)"
    flow.start(Start(live=True, hosts=1, at_most=3, load=load, conf=DYNAMIC))
    flow.until("len(query.status.hosts) >= 2 and query.status.pending_slots == 0")
    own = {executor_of(pid).pid for pid in flow.hosts().values()}
    assert len(own) == len(flow.hosts()), "one host, one executor"
    flow.until("len(query.status.hosts) == 1 and query.status.pending_slots == 0")
    (kept,) = {executor_of(pid).pid for pid in flow.hosts().values()}
    await_condition(lambda: not (own - {kept}) & {one.pid for one in cluster.executors()})
    decided = flow.ask("[e.event for e in query.journal if e.event in ('began', 'done')]")
    assert len(decided) >= 2
    flow.stop()
    flow.check()


@pytest.mark.parametrize("what", ["executor", "worker"])
def test_a_machine_that_is_taken_away_gives_its_slots_away_first(
    cluster: Cluster, flow: FlowProcess, what: str
) -> None:
    flow.start(Start(hosts=2, conf=LEAVES))
    flow.goes_on()
    hosts = flow.hosts()
    executor = executor_of(hosts["aggregate-1/0"])
    leaves = {host for host, pid in hosts.items() if executor_of(pid) == executor}
    worker = next(w for w in cluster.workers if executor in w.executors())
    if what == "worker":
        leaves = {h for h, pid in hosts.items() if executor_of(pid) in worker.executors()}
    os.kill(executor.pid if what == "executor" else worker.pid, signal.SIGPWR)
    for host in leaves:
        flow.until(f"'{host}' not in query.status.hosts")
    executor.wait(120)
    flow.goes_on()
    assert flow.ask("max(p.runs for p in query.progress)") == 1, "no epoch has failed"
    flow.stop()
    flow.check()
    assert "is being decommissioned: aggregate-1/" in flow.log.read_text()
    if what == "worker":
        worker.kill()
        cluster.add_worker()


def test_hosts_and_couriers_of_a_live_flow_leave(cluster: Cluster, flow: FlowProcess) -> None:
    flow.start(Start(live=True, hosts=2, conf=LEAVES))
    flow.goes_on()
    executor = executor_of(flow.couriers()["courier/0"])
    os.kill(executor.pid, signal.SIGPWR)
    flow.until("'courier/0' not in query.status.couriers or not query.is_active")
    flow.stop()
    flow.check()
