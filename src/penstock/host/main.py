"""The function that a host's Spark task runs: start the host, send heartbeats, end on the driver's order."""

from __future__ import annotations

import os
import resource
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyarrow as pa

from penstock.errors import HostLostError, PenstockError, SettingError, StoreError, to_wire
from penstock.faults import arm
from penstock.host.chain import StepChain
from penstock.host.load import SpareCores
from penstock.host.machine import HostMachine
from penstock.host.parted import PartedOperator
from penstock.host.server import HostServer
from penstock.logs import LogStyle, take_on
from penstock.plan.steps import FlowPlan, KeyedStep
from penstock.runtime.cores import WorkersByLoad
from penstock.settings import AUTO, Settings
from penstock.state.store.store import Place, Store
from penstock.wire.access import Access
from penstock.wire.addresses import Listen, task_listens
from penstock.wire.cpu import CpuMeter, cores_allowed
from penstock.wire.flight import Endpoint, counted_on
from penstock.wire.silence import Silences


@dataclass(frozen=True)
class HostOrder:
    """An order to start a host. The step that it serves contains the user's code."""

    host: str
    step: KeyedStep


@dataclass(frozen=True)
class TaskOrder:
    """Everything that a task needs to start, as Spark ships it: one host, or one host of each step."""

    hosts: tuple[HostOrder, ...]
    flow: FlowPlan
    store: Place | str
    driver: str
    access: Access
    local: bool
    settings: Settings
    avoids: frozenset[str] = frozenset()
    """Addresses of machines on which couriers could not reach these hosts."""
    log: LogStyle | None = None
    """Level and format of log lines; None: Python's defaults."""


class HostTask:
    """The hosts of one task, each behind its server."""

    def __init__(
        self,
        order: TaskOrder,
        listen: Listen,
        on_stop: Callable[[], None],
        memory_limit: int | None,
        make: type[HostServer] = HostServer,
        open_store: Callable[[Place | str], Store] = Store,
    ) -> None:
        """Start the servers; raise StoreError if this machine does not see the driver's store."""
        self.hosts = [host.host for host in order.hosts]
        stores = [open_store(order.store) for _ in order.hosts]
        stores[0].must_see(self.hosts[0])
        one_host, settings = order.flow.one_host, order.settings
        # A chain never fetches evicted entries again, so it must keep them all, and fails beyond the limit.
        limit = None if one_host else memory_limit
        by_load = _by_load(settings)
        self._operators = [parted(host.step, order, by_load) for host in order.hosts]
        machines = [
            HostMachine(operator, memory_limit=limit, arrival=order.flow.arrival_of(host.step.id))
            for operator, host in zip(self._operators, order.hosts, strict=True)
        ]
        self._chain = None
        if one_host:
            self._chain = StepChain(order.flow, machines, settings, memory_limit, by_load)
        self.driver = Endpoint(order.driver, order.access)
        ask_ms = settings.heartbeat_timeout_ms
        lock = threading.Condition() if one_host else None
        self.servers: list[HostServer] = []
        every = zip(order.hosts, machines, stores, strict=True)
        for host, machine, store in reversed(list(every)):
            leads = self._chain is not None and machine is machines[0]
            server = make(
                machine,
                store,
                step=host.step.id,
                host=host.host,
                listen=listen,
                access=order.access,
                tag=store.new_tag(),
                timeout_ms=settings.rpc_timeout_ms,
                lost_ms=settings.host_lost_ms,
                counted_on=lambda at: counted_on(self.driver, ask_ms, locations=[at]),
                on_stop=on_stop,
                staged_bytes=staged_bytes(settings),
                in_turn=order.flow.in_order,
                piece_ms=settings.piece_ms,
                make=None if one_host else lambda step=host.step: parted(step, order),  # type: ignore[misc]
                lock=lock,
                chain=self._chain if leads else None,
                followers=tuple(self.servers) if leads else (),
            )
            self.servers.insert(0, server)

    def register(self, timeout_ms: int) -> list[tuple[str, str]]:
        """Register all hosts with the driver, and return their (host, incarnation) pairs."""
        known = []
        for host, server in zip(self.hosts, self.servers, strict=True):
            incarnation = f"{host}@{server.location}-{secrets.token_hex(3)}"
            facts = {"host": host, "incarnation": incarnation, "location": server.location}
            self.driver.call("register", timeout_ms, pid=os.getpid(), **facts)
            known.append((host, incarnation))
        return known

    def open_tasks(self) -> list[tuple[int, int, int]]:
        """Return (epoch, run, task) of each courier that has an open channel to any of the hosts."""
        return sorted(set().union(*(server.open_tasks() for server in self.servers)))

    def end(self) -> None:
        """Stop serving, and end all workers."""
        self.driver.close()
        for server in self.servers:
            server.end()
        for operator in self._operators:
            operator.end()
        if self._chain is not None:
            self._chain.end()

    def shutdown(self) -> None:
        """Let user code close its resources: the task ends in good order."""
        with ExitStack() as stack:
            for operator in reversed(self._operators):
                stack.callback(operator.shutdown)
            for server in self.servers:
                stack.callback(server.shutdown_helper)


def run_hosts(order: TaskOrder) -> None:
    """Serve until the driver says stop or is gone. Blocks as long as the hosts live."""
    settings = order.settings
    take_on(order.log)
    pa.set_cpu_count(settings.most_workers(cores_allowed()))
    arm(settings.faults)
    ended = threading.Event()
    driver = Endpoint(order.driver, order.access)
    try:
        listen = task_listens(os.environ, order.driver, order.local, settings)
        if listen.address in order.avoids:
            # Spark tries the task again, on any executor.
            raise HostLostError(
                f"host {order.hosts[0].host} must not run on {listen.address}: "
                "couriers could not reach it there"
            )
        task = HostTask(order, listen, ended.set, _limit(settings))
    except (SettingError, StoreError) as refused:
        # A restart would not help: the query must end, and say why.
        driver.call("refuse", settings.driver_lost_ms, error=to_wire(refused))
        raise
    try:
        known = task.register(settings.driver_lost_ms)
        if not keep_known(driver, settings, known, ended, task.open_tasks):
            # The driver is gone. Spark may still wait for this task's result in a JVM that is itself
            # half dead, so leave without asking anybody.
            os._exit(0)
    finally:
        driver.close()
        task.end()
        task.shutdown()


def parted(
    step: KeyedStep, order: TaskOrder, by_load: WorkersByLoad | None = None
) -> PartedOperator:
    """A step's operator, cut into parts that the host's workers share. `by_load` chooses their number."""
    settings = order.settings
    workers = settings.workers if by_load is None else by_load.most
    return PartedOperator(
        lambda: step.operator(order.flow.in_order),
        settings.parts(step.slots, workers),
        workers=workers,
        chunk_rows=settings.chunk_rows,
        schedule=settings.schedule,
        # In a chain, the workers of a step only open and close its epochs. The chain measures the load.
        by_load=None if order.flow.one_host else by_load,
    )


def _by_load(settings: Settings) -> WorkersByLoad | None:
    if settings.host_cores != AUTO:
        return None
    return WorkersByLoad(settings.most_workers(cores_allowed()), SpareCores())


def _limit(settings: Settings) -> int | None:
    return None if settings.host_memory_mb is None else settings.host_memory_mb << 20


def staged_bytes(settings: Settings) -> int:
    """Return the bytes of input that a host may hold before it is applied."""
    if settings.host_staged_mb is not None:
        return int(settings.host_staged_mb * (1 << 20))
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    limits = [psutil.virtual_memory().total, *([limit] if limit > 0 else [])]
    for file in ("memory.max", "memory/memory.limit_in_bytes"):  # cgroup v2, v1
        with suppress(OSError, ValueError):
            limits.append(int(Path("/sys/fs/cgroup", file).read_text()))
    return min(limits) // 4


def keep_known(
    driver: Endpoint,
    settings: Settings,
    hosts: list[tuple[str, str]],
    ended: threading.Event,
    open_tasks: Callable[[], list[tuple[int, int, int]]] = list,
) -> bool:
    """Send heartbeats for these (host, incarnation)s, with the couriers they wait for, until they must end.

    Returns True if the driver ended them, False if the driver was silent for too long. This thread does
    nothing else, so that a busy host still sends its heartbeats.
    """
    turn_ms = settings.heartbeat_ms + settings.heartbeat_timeout_ms
    silences, answers = Silences[str](turn_ms), 0
    meter = CpuMeter(settings.most_workers(cores_allowed()))
    while not ended.wait(settings.heartbeat_ms / 1000):
        # hosts that share a process cannot be told apart
        measured = {"cpu": meter.load()} if len(hosts) == 1 else {}
        try:
            for host, incarnation in hosts:
                known = driver.call(
                    "heartbeat",
                    settings.heartbeat_timeout_ms,
                    host=host,
                    incarnation=incarnation,
                    open=open_tasks(),
                    **measured,
                )
                if not known:
                    return True
            answers += 1
        except HostLostError:
            pass
        except PenstockError:
            return True
        silent = silences.tick(time.monotonic() * 1000, {"driver": answers})
        if silent["driver"] > settings.driver_lost_ms:
            return False
    return True
