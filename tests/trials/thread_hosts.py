"""Hosts as threads of one process, each behind a real Flight server, that can be killed."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Literal

import pyarrow.flight as fl

from penstock.driver.registry import Registry
from penstock.host.main import HostOrder, HostTask, TaskOrder
from penstock.host.server import HostServer
from penstock.plan.steps import KeyedStep
from penstock.state.store.store import Place, Store
from penstock.wire.flight import Endpoint

if TYPE_CHECKING:
    from tests.trials.cluster import MiniCluster

ADDRESS = "127.0.0.1"

Birth = Literal["dies", "waits"]
"""How a host does not come up: its job fails before it registers, or finds no core to run on."""


def open_store(place: Place | str) -> Store:
    """The store of the cluster; one that does not wait before it tries again."""
    return Store(place, pause=lambda _: None)


class MortalServer(HostServer):
    """A host that can die: from then on every call breaks, also those under way."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.dead = False
        super().__init__(*args, **kwargs)

    def do_exchange(self, *args: Any) -> None:
        self._must_live()
        super().do_exchange(*args)
        self._must_live()

    def do_action(self, *args: Any) -> Any:
        self._must_live()
        result = super().do_action(*args)
        self._must_live()
        return result

    def do_get(self, *args: Any) -> Any:
        self._must_live()
        return super().do_get(*args)

    def die(self) -> None:
        """Break every call, also those that wait for slots to arrive."""
        self.dead = True
        self.machine.needs = self._must_live  # type: ignore[method-assign, assignment]
        with self._lock:
            self.machine.residence.whole[:] = False
            self._lock.notify_all()

    def _must_live(self, *_: object) -> None:
        if self.dead:
            raise fl.FlightUnavailableError("this host is dead")


class ThreadHosts:
    """`HostJobs` on threads. Hosts of one task live and die together."""

    def __init__(self, cluster: MiniCluster, registry: Registry, token: str) -> None:
        self._cluster, self._registry, self._token = cluster, registry, token
        self._servers: dict[str, MortalServer] = {}
        self._tasks: dict[str, HostTask] = {}
        self._starting: dict[str, Future[None]] = {}
        self._unborn: set[str] = set()
        self._starter = ThreadPoolExecutor(4, thread_name_prefix="starter")
        self._lock = threading.Lock()

    @property
    def live(self) -> list[str]:
        with self._lock:
            return [host for host, server in self._servers.items() if not server.dead]

    def start(self, host: str, step: KeyedStep) -> None:
        order = self._order(host, step)
        together = [one.host for one in order.hosts]
        if len(together) > 1 and self.running(host):
            return
        for one in together:
            self.kill(one)
        started = self._starter.submit(self._start, order)
        self._starting |= dict.fromkeys(together, started)

    def _order(self, host: str, step: KeyedStep) -> TaskOrder:
        """What the task of a host runs: it alone, or those of all steps."""
        cluster = self._cluster
        steps = cluster.flow.keyed if cluster.flow.one_host else (step,)
        hosts = tuple(HostOrder(f"{s.id}/{host.rsplit('/', 1)[1]}", s) for s in steps)
        store, driver = cluster.place, self._registry.location
        return TaskOrder(hosts, cluster.flow, store, driver, self._token, True, cluster.settings)

    def running(self, host: str) -> bool:
        starting = self._starting.get(host)
        if starting is None or not starting.done() or host in self._unborn:
            return starting is not None
        if host in self.live and self._registry.host(host) is None:
            self.kill(host)  # its next heartbeat would tell it that nobody counts on it
        return host in self.live

    def failure(self, host: str) -> str:
        starting = self._starting.get(host)
        if starting is None:
            return "it was never started"
        return str(starting.exception()) if starting.done() else "it is starting"

    def cancel(self, host: str) -> None:
        starting = self._starting.get(host)
        if starting is not None:
            starting.exception()
        self.kill(host)

    def kill(self, host: str) -> None:
        """End a host, and those that share its task, as SIGKILL would."""
        with self._lock:
            self._unborn.discard(host)
            task = self._tasks.get(host)
            together = [] if task is None else task.hosts
            servers = [self._servers.pop(one) for one in together if one in self._servers]
            for one in together:
                self._tasks.pop(one, None)
        if task is None or not servers:
            return
        for server in servers:
            server.die()
        self._cluster.deaths[host] += 1
        self._cluster.bury(task)

    def kill_all(self) -> None:
        for host in self.live:
            self.kill(host)

    def close(self) -> None:
        self._starter.shutdown()
        self.kill_all()

    def _start(self, order: TaskOrder) -> None:
        for host in order.hosts:
            birth = self._cluster.births.get(host.host)
            if birth == "dies":
                raise RuntimeError(f"the executor of {host.host} was lost")
            if birth == "waits":
                with self._lock:
                    self._unborn.add(host.host)
                return
        limit = self._cluster.memory_limit
        task = HostTask(order, ADDRESS, lambda: None, limit, MortalServer, open_store)
        with self._lock:
            for name, server in zip(task.hosts, task.servers, strict=True):
                assert isinstance(server, MortalServer)
                self._servers[name], self._tasks[name] = server, task
        driver = Endpoint(self._registry.location, self._token)
        task.register(driver, self._cluster.settings.rpc_timeout_ms)
        driver.close()
