"""Cuts of the network between machines, one way or both, and slow or lossy links: the flow continues, and its
results are exact. Three workers are on their own machines; driver and master on a fourth."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path

import psutil
import pytest

from penstock_bench.network import Network, not_allowed
from tests.cluster.flow_process import Start
from tests.cluster.flows import WAIT_S, await_condition
from tests.cluster.machines import HEAD, WORKERS, FlowOnMachines, running_machines

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(bool(not_allowed()), reason=not_allowed() or "it can"),
]

STEP, SLOTS = "aggregate-1", list(range(16))
LOST_S, DRIVER_LOST_S, SPARK_LOST_S = 3.0, 10.0, 20.0
CONNECTION_S = 5.0
"""Seconds after which a connection without packets is closed (`wire.flight`)."""
BUSY_S = 60.0
"""Seconds that processes may need to start and epochs to run on a busy machine."""
GOES_ON_S = 3 * (LOST_S + CONNECTION_S) + BUSY_S
"""Seconds for a cut between couriers and hosts: two runs complain, and the third avoids the host. It includes
time for further runs with complaints about other hosts, on a busy machine."""
DRIVER_CUT_S = SPARK_LOST_S + 2 * LOST_S + CONNECTION_S + BUSY_S
"""Seconds for a cut between the driver and an executor: Spark has to give up the tasks there."""


@pytest.fixture(scope="module")
def machines() -> Iterator[tuple[str, Network]]:
    with running_machines() as started:
        yield started


@pytest.fixture
def network(machines: tuple[str, Network]) -> Network:
    return machines[1]


@pytest.fixture
def flow(machines: tuple[str, Network], tmp_path: Path) -> Iterator[FlowOnMachines]:
    process = FlowOnMachines(*machines, tmp_path)
    yield process
    process.end()


def start(flow: FlowOnMachines, network: Network, live: bool = False) -> None:
    """Start a flow with hosts on several machines."""
    flow.start(
        Start(
            live=live,
            hosts=4,
            host_lost_ms=int(LOST_S * 1000),
            driver_lost_ms=int(DRIVER_LOST_S * 1000),
            conf={
                "spark.driver.host": network.address(HEAD),
                "spark.cores.max": "12",
                "spark.executor.cores": "4",
                "spark.scheduler.minRegisteredResourcesRatio": "1.0",
                "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
                "spark.network.timeout": f"{SPARK_LOST_S:.0f}s",
                "spark.network.timeoutInterval": "2s",
                "spark.executor.heartbeatInterval": "2s",
            },
        )
    )
    flow.goes_on(epochs=2)
    while len(set(flow.where().values())) < 2:
        psutil.Process(next(iter(flow.hosts().values()))).kill()
        flow.goes_on(epochs=2)


def await_epochs(flow: FlowOnMachines, within_s: float, count: int = 3) -> None:
    """Wait for this number of further epochs, but not longer than `within_s` seconds."""
    first, ends = flow.epoch(), time.monotonic() + within_s
    while flow.epoch() < first + count:
        assert flow.ask("query.exception() is None"), flow.ask("repr(query.exception())")
        assert flow.ask("query.is_active"), "the input has ended too early"
        assert time.monotonic() < ends, f"{flow.ask('query.status')}\n{flow.told()}"
        time.sleep(0.1)


def finish(flow: FlowOnMachines) -> None:
    """Stop the flow, and check that every row was counted once."""
    flow.stop()
    flow.check()


@pytest.mark.parametrize("live", [False, True], ids=["micro-batches", "live"])
@pytest.mark.parametrize("ways", ["both", "one"])
def test_machines_do_not_reach_each_other_while_state_moves(
    flow: FlowOnMachines, network: Network, live: bool, ways: str
) -> None:
    """The driver reaches all machines. New owners cannot fetch and couriers cannot send; the flow continues
    during the cut, since all reach a third machine."""
    start(flow, network, live)
    where = flow.where()
    source, target = next(p for p in permutations(where, 2) if where[p[0]] != where[p[1]])
    cut = network.cut if ways == "both" else network.cut_one_way
    with cut(where[source], where[target]):
        flow.ask(f"query.move({STEP!r}, {SLOTS}, {target!r})")
        await_epochs(flow, GOES_ON_S)
        flow.ask(f"query.move({STEP!r}, {SLOTS[:8]}, {source!r})")
        await_epochs(flow, GOES_ON_S, count=6)
    await_epochs(flow, GOES_ON_S)
    finish(flow)


@pytest.mark.parametrize("live", [False, True], ids=["micro-batches", "live"])
def test_the_driver_does_not_reach_a_machine(
    flow: FlowOnMachines, network: Network, live: bool
) -> None:
    """In a short cut, no host is lost. In a long one, others continue without it; its hosts end, and do no
    harm when the cut heals."""
    start(flow, network, live)
    hosts, where = flow.hosts(), flow.where()
    away = next(iter(where.values()))
    with network.cut(HEAD, away):
        time.sleep(LOST_S / 3)  # The length of the cut.
    await_epochs(flow, GOES_ON_S)
    assert flow.hosts() == hosts
    cut_off = [psutil.Process(pid) for host, pid in hosts.items() if where[host] == away]
    with network.cut(HEAD, away):
        await_epochs(flow, DRIVER_CUT_S)
        await_condition(lambda: not any(map(alive, cut_off)), DRIVER_LOST_S + BUSY_S)
    await_epochs(flow, DRIVER_CUT_S)
    finish(flow)


@pytest.mark.parametrize("live", [False, True], ids=["micro-batches", "live"])
def test_a_zombie_does_no_harm(flow: FlowOnMachines, network: Network, live: bool) -> None:
    """The cut heals after a host was given up and before it ends: the host learns of it, and its writes do
    not count."""
    start(flow, network, live)
    hosts, where = flow.hosts(), flow.where()
    away = next(iter(where.values()))
    cut_off = {h: psutil.Process(pid) for h, pid in hosts.items() if where[h] == away}
    with network.cut_one_way(away, HEAD):
        gone = [f"{host!r} not in query.status.hosts" for host in cut_off]
        ends = time.monotonic() + LOST_S + BUSY_S
        while not all(flow.ask(one) for one in gone):
            if {h: p.pid for h, p in cut_off.items()}.items() - flow.hosts().items():
                break  # It was given up, and a new one has its name.
            assert time.monotonic() < ends, flow.ask("query.status")
    await_condition(lambda: not any(map(alive, cut_off.values())), DRIVER_LOST_S + BUSY_S)
    await_epochs(flow, DRIVER_CUT_S)
    finish(flow)


@pytest.mark.parametrize("live", [False, True], ids=["micro-batches", "live"])
def test_links_are_slow_and_lossy(flow: FlowOnMachines, network: Network, live: bool) -> None:
    start(flow, network, live)
    one, two, three = WORKERS
    with network.slow(one, two, 200), network.slow(HEAD, three, 200):
        await_epochs(flow, GOES_ON_S)
    for share in (0.05, 0.2):
        with network.lossy(one, two, share), network.lossy(HEAD, one, share):
            await_epochs(flow, WAIT_S)
    finish(flow)


def alive(process: psutil.Process) -> bool:
    return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
