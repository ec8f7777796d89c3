"""Executors and workers that fail in the middle of epochs, and while slots move."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass

import pytest

from penstock.console.cluster.cluster import Cluster
from tests.cluster.flow_process import Start, Trap
from tests.cluster.flows import FlowProcess, await_condition
from tests.cluster.strikes import Whom
from tests.cluster.troubles import STEP

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
KILL, TERM, STOP = signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP


@dataclass(frozen=True)
class Moment:
    """A process, a signal, and a fault point."""

    live: bool
    point: str
    whom: Whom
    number: signal.Signals
    hits: tuple[int, ...] = (3,)
    """Points that are passed in every epoch."""

    def __str__(self) -> str:
        mode = "live" if self.live else "micro"
        return f"{mode}-{self.point}-{self.whom}-{self.number.name}"


IN_EPOCHS = [
    Moment(False, "host.applied", "executor", KILL),
    Moment(False, "courier.sent", "executor", KILL),
    Moment(False, "host.sealed", "worker", KILL),
    Moment(False, "courier.closed", "worker", TERM),
    Moment(False, "host.seal", "worker", STOP),
    Moment(True, "host.round", "executor", KILL),
    Moment(True, "courier.polled", "executor", KILL),
    Moment(True, "courier.flushed", "worker", KILL),
    Moment(True, "host.sealed", "worker", TERM),
    Moment(True, "host.round", "worker", STOP),
]
IN_TREATMENTS = [
    Moment(False, "host.serve", "executor", KILL, ()),
    Moment(False, "host.fetched", "worker", KILL, ()),
    Moment(False, "host.trickle", "worker", STOP, ()),
    Moment(True, "host.serve", "worker", TERM, ()),
    Moment(True, "host.fetch", "executor", KILL, ()),
    Moment(True, "courier.messaged", "worker", KILL, (4,)),
]


@pytest.mark.parametrize("moment", IN_EPOCHS, ids=str)
def test_a_failure_in_the_middle_of_an_epoch(
    cluster: Cluster, flow: FlowProcess, moment: Moment
) -> None:
    started = _started(moment)
    flow.start(started)
    _recovers(cluster, flow, started, moment)


@pytest.mark.parametrize("moment", IN_TREATMENTS, ids=str)
def test_a_failure_while_slots_move(cluster: Cluster, flow: FlowProcess, moment: Moment) -> None:
    started = _started(moment)
    flow.start(started)
    flow.goes_on()
    flow.ask(f"query.scale({STEP!r}, 3)")
    _recovers(cluster, flow, started, moment)


def test_an_epoch_outlives_many_executors_of_its_couriers(
    cluster: Cluster, flow: FlowProcess
) -> None:
    """Spark tries a task four times, and then fails its job. No host is affected: each has its own
    executor."""
    deaths = 4
    where = {"epoch": 3, "partition": 0}
    trap = Trap("courier.sent", where=where, hits=(), times=deaths)
    flow.start(Start(hosts=1, traps=(trap,), conf={"spark.executor.cores": "1"}))
    await_condition((flow.folder / f"struck-{deaths - 1}").exists)
    flow.goes_on(5)
    flow.stop()
    flow.check()


def _started(moment: Moment) -> Start:
    trap = Trap(moment.point, moment.whom, moment.number, hits=moment.hits)
    # With nothing in the background, rows have to fetch the entries that they need.
    migration = "lazy" if moment.point == "host.trickle" else "lazy(0)"
    return Start(live=moment.live, traps=(trap,), migration=migration)


def _recovers(cluster: Cluster, flow: FlowProcess, started: Start, moment: Moment) -> None:
    await_condition((flow.folder / "struck-0").exists)
    if moment.number == STOP:
        time.sleep(started.host_lost_ms / 1000 + 2)  # The length of the silence is what is tested.
        for worker in cluster.workers:
            worker.go_on()
    elif moment.whom == "worker":
        cluster.start_worker()
    flow.goes_on(5)
    flow.stop()
    flow.check()
