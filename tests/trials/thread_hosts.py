"""Hosts as threads of one process, each behind a real Flight server, that can be killed or stopped."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Literal, cast

import pyarrow.flight as fl

from penstock.driver.registry import Registry
from penstock.errors import HostLostError
from penstock.host.main import HostOrder, HostTask, TaskOrder, keep_known
from penstock.host.server import HostServer
from penstock.plan.steps import KeyedStep
from penstock.state.store.store import Place, Store
from penstock.wire.access import Access
from penstock.wire.addresses import LOOPBACK
from penstock.wire.flight import Endpoint, in_own_thread

if TYPE_CHECKING:
    from tests.trials.cluster import MiniCluster
    from tests.trials.live_cluster import LiveCluster

Birth = Literal["dies", "waits"]
"""How a host does not come up: its job fails before it registers, or finds no core to run on."""


def open_store(place: Place | str) -> Store:
    """The store of the cluster; one that does not wait before it tries again."""
    return Store(place, pause=lambda _: None)


class MortalServer(HostServer):
    """A host that can die: from then on every call breaks, also those under way. While it is stopped,
    as by SIGSTOP, no call goes on."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.dead = False
        self.going = threading.Event()
        self.going.set()
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
        self.going.set()
        # it waits for the thread that works, and whoever dies may hold the lock that this one needs
        in_own_thread(lambda: self.end_run(HostLostError("this host is dead")), "dying")
        self.machine.needs = self._must_live  # type: ignore[method-assign, assignment]
        with self._lock:
            self.machine.residence.whole[:] = False
            self._lock.notify_all()

    def _must_live(self, *_: object) -> None:
        self.going.wait()
        if self.dead:
            raise fl.FlightUnavailableError("this host is dead")


class _OwnDriver:
    """A task's line to its driver, dead while the task is stopped."""

    def __init__(self, line: Endpoint, going: threading.Event) -> None:
        self._line, self._going = line, going

    def call(self, *args: Any, **kwargs: Any) -> Any:
        self._going.wait()
        return self._line.call(*args, **kwargs)


class ThreadHosts:
    """`HostJobs` on threads. Hosts of one task live and die together."""

    def __init__(
        self, cluster: MiniCluster | LiveCluster, registry: Registry, access: Access
    ) -> None:
        self._cluster, self._registry, self._access = cluster, registry, access
        self._servers: dict[str, MortalServer] = {}
        self._tasks: dict[str, HostTask] = {}
        self._starting: dict[str, Future[None]] = {}
        self._unborn: set[str] = set()
        self.fenced: list[str] = []
        """Hosts that ended because nobody counted on them any more."""
        self._given_up: list[HostTask] = []
        """Hosts that were stopped when they were given up: nobody can reach, or kill them."""
        self._going: dict[str, HostTask] = {}
        """Hosts whose machine is being taken away, with the task that runs there."""
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
        return TaskOrder(hosts, cluster.flow, store, driver, self._access, True, cluster.settings)

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

    def leave(self, host: str) -> None:
        """The machine of a host is being taken away, in good order; those of its task are on it, too."""
        with self._lock:
            task = self._tasks.get(host)
            self._going |= {} if task is None else dict.fromkeys(task.hosts, task)

    def leaving(self, names: Iterable[str]) -> list[str]:
        with self._lock:
            return [n for n in names if n in self._going and self._going[n] is self._tasks.get(n)]

    def give_up(self, host: str, pid: int) -> None:
        """End a host. One that is stopped stays as it is: its machine cannot be reached."""
        with self._lock:
            server = self._servers.get(host)
        if server is None or server.going.is_set():
            self.kill(host)
            return
        task, _ = self._taken(host)
        if task is not None:
            self._given_up.append(task)

    def server(self, host: str) -> MortalServer:
        with self._lock:
            return self._servers[host]

    def stop(self, host: str) -> None:
        """Let nothing go on in a host and those that share its task, until it is killed or resumed."""
        with self._lock:
            servers = [self._servers[one] for one in self._tasks[host].hosts]
        for server in servers:
            server.going.clear()

    def resume_given_up(self) -> None:
        """Let all hosts go on that were stopped when they were given up."""
        for task in self._given_up:
            for server in _servers(task):
                server.going.set()

    def _taken(self, host: str) -> tuple[HostTask | None, list[MortalServer]]:
        with self._lock:
            self._unborn.discard(host)
            task = self._tasks.get(host)
            together = [] if task is None else task.hosts
            servers = [self._servers.pop(one) for one in together if one in self._servers]
            for one in together:
                self._tasks.pop(one, None)
        return task, servers

    def kill(self, host: str) -> None:
        """End a host, and those that share its task, as SIGKILL would."""
        task, servers = self._taken(host)
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
        for task in self._given_up:
            self._end(task)

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
        task = HostTask(order, LOOPBACK, lambda: None, limit, MortalServer, open_store)
        with self._lock:
            for name, server in zip(task.hosts, task.servers, strict=True):
                assert isinstance(server, MortalServer)
                self._servers[name], self._tasks[name] = server, task
        known = task.register(self._cluster.settings.rpc_timeout_ms)
        threading.Thread(target=self._beat, args=(task, known), daemon=True).start()

    def _beat(self, task: HostTask, known: list[tuple[str, str]]) -> None:
        """The heartbeats of a task, until it is dead or nobody counts on it any more."""
        first = _servers(task)[0]
        driver = cast(Endpoint, _OwnDriver(task.driver, first.going))
        settings, ended = self._cluster.settings, first._ended
        if keep_known(driver, settings, known, ended, task.open_tasks) and self._end(task):
            self.fenced += task.hosts

    def _end(self, task: HostTask) -> bool:
        """End a task that nobody counts on any more; false if it has ended."""
        with self._lock:
            servers = [server for server in _servers(task) if not server.dead]
            for server in servers:
                server.dead = True
        for server in servers:
            server.die()
        if servers:
            self._cluster.bury(task)
        return bool(servers)


def _servers(task: HostTask) -> list[MortalServer]:
    return cast("list[MortalServer]", task.servers)
