"""Hosts as threads of one process, each behind a real Flight server, that can be killed or stopped."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Literal, Protocol, cast

import pyarrow.flight as fl

from penstock.driver.registry import Registry
from penstock.errors import HostLostError
from penstock.faults import InjectedFault
from penstock.host.main import HostOrder, HostTask, TaskOrder, keep_known
from penstock.host.server import HostServer
from penstock.plan.steps import FlowPlan, KeyedStep
from penstock.settings import Settings
from penstock.state.store.store import Place, Store
from penstock.wire.access import Access
from penstock.wire.addresses import LOOPBACK
from penstock.wire.flight import Endpoint, in_own_thread

StartFault = Literal["dies", "waits"]
"""Kind of failure of a host's start. "dies": its job fails before it registers. "waits": it gets no core."""


def open_store(place: Place | str) -> Store:
    """A store that does not pause before it retries a read or a write."""
    return Store(place, pause=lambda _: None)


class ThreadHost(HostServer):
    """A host that can be killed: every call fails from then on, including those that are running.

    While it is stopped, as by SIGSTOP, no call continues.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.dead = False
        self.running = threading.Event()
        """Cleared while the host is stopped."""
        self.running.set()
        super().__init__(*args, **kwargs)

    def do_exchange(self, *args: Any) -> None:
        with self._mortal():
            super().do_exchange(*args)

    def do_action(self, *args: Any) -> Any:
        with self._mortal():
            return super().do_action(*args)

    def do_get(self, *args: Any) -> Any:
        with self._mortal():
            return super().do_get(*args)

    def die(self) -> None:
        """Fail every call, including those that wait for slots to arrive."""
        self.dead = True
        self.running.set()
        # end_run waits for the worker thread, and the caller may hold the lock that this thread needs.
        in_own_thread(lambda: self.end_run(HostLostError("this host is dead")), "dying")
        self.machine.needs = self._must_live  # type: ignore[method-assign, assignment]
        with self._lock:
            self.machine.residence.whole[:] = False
            self._lock.notify_all()

    def end(self) -> None:
        """Stop serving. Returns when all files are written."""
        super().end()
        self._sealer.shutdown()
        self._soft_writer.shutdown()

    def keep_known(self, task: HostTask, known: list[tuple[str, str]], settings: Settings) -> bool:
        """Send the heartbeats of its task until the task ends; see `host.main.keep_known`."""
        driver = cast(Endpoint, _PausedEndpoint(task.driver, self.running))
        return keep_known(driver, settings, known, self._ended, task.open_tasks)

    @contextmanager
    def _mortal(self) -> Iterator[None]:
        """The context of a call. The call fails if the host is dead before or after it, or on a fault."""
        self._must_live()
        try:
            yield
        except InjectedFault as fault:  # without its traceback, which Flight would print
            raise fl.FlightUnavailableError(str(fault)) from None
        self._must_live()

    def _must_live(self, *_: object) -> None:
        self.running.wait()
        if self.dead:
            raise fl.FlightUnavailableError("this host is dead")


class _PausedEndpoint:
    """A task's connection to its driver, which waits while the task is stopped."""

    def __init__(self, endpoint: Endpoint, running: threading.Event) -> None:
        self._endpoint, self._running = endpoint, running

    def call(self, *args: Any, **kwargs: Any) -> Any:
        self._running.wait()
        return self._endpoint.call(*args, **kwargs)


class Ending(Protocol):
    """One server or several. `end` returns when the last call has ended."""

    def end(self) -> None: ...


class Reaper:
    """Ends servers of dead hosts in the background, since a server ends only after its last call has."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(8, thread_name_prefix="reaper")

    def end(self, ending: Ending) -> None:
        """End a server in the background, or, after `close`, in the caller's thread."""
        try:
            self._threads.submit(ending.end)
        except RuntimeError:
            ending.end()

    def close(self) -> None:
        """Wait until all servers have ended."""
        self._threads.shutdown()


class HostOwner(Protocol):
    """The cluster that hosts belong to."""

    flow: FlowPlan
    settings: Settings
    place: Place
    """The store's folder."""
    memory_limit: int | None
    """Maximum bytes of state in a host between epochs, for hosts that start from now on."""
    start_faults: dict[str, StartFault]
    """Start faults by host. All other hosts come up."""
    deaths: Counter[str]
    """Number of times that each host was killed."""
    reaper: Reaper


class ThreadHosts:
    """`HostJobs` on threads. Hosts of one task live and die together."""

    def __init__(self, owner: HostOwner, registry: Registry, access: Access) -> None:
        self._owner, self._registry, self._access = owner, registry, access
        self._servers: dict[str, ThreadHost] = {}
        self._tasks: dict[str, HostTask] = {}
        self._starting: dict[str, Future[None]] = {}
        self._unborn: set[str] = set()
        """Hosts that wait for a core."""
        self.fenced: list[str] = []
        """Hosts that ended themselves because the driver had given them up."""
        self._given_up: list[HostTask] = []
        """Tasks of hosts that were stopped when the driver gave them up, so that nobody can kill them."""
        self._leaving: dict[str, HostTask] = {}
        """Hosts whose machine is being decommissioned, with the task that runs there."""
        self._starter = ThreadPoolExecutor(4, thread_name_prefix="starter")
        self._lock = threading.Lock()

    @property
    def live(self) -> list[str]:
        """Hosts that are up."""
        with self._lock:
            return [host for host, server in self._servers.items() if not server.dead]

    def start(self, host: str, step: KeyedStep) -> None:
        order = self._order(host, step)
        together = [each.host for each in order.hosts]
        if len(together) > 1 and self.running(host):
            return
        for name in together:
            self.kill(name)
        started = self._starter.submit(self._start, order)
        self._starting |= dict.fromkeys(together, started)

    def _order(self, host: str, step: KeyedStep) -> TaskOrder:
        """The order for a host's task: to run the host alone, or one host of each step."""
        owner = self._owner
        steps = owner.flow.keyed if owner.flow.one_host else (step,)
        hosts = tuple(HostOrder(f"{s.id}/{host.rsplit('/', 1)[1]}", s) for s in steps)
        driver = self._registry.location
        return TaskOrder(hosts, owner.flow, owner.place, driver, self._access, True, owner.settings)

    def running(self, host: str) -> bool:
        starting = self._starting.get(host)
        if starting is None or not starting.done() or host in self._unborn:
            return starting is not None
        if host in self.live and self._registry.host(host) is None:
            self.kill(host)  # its next heartbeat would end it, since the driver has given it up
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
        """Decommission the machine of a host, with all hosts of its task."""
        with self._lock:
            task = self._tasks.get(host)
            self._leaving |= {} if task is None else dict.fromkeys(task.hosts, task)

    def leaving(self, names: Iterable[str]) -> list[str]:
        with self._lock:
            current = self._tasks
            return [n for n in names if n in self._leaving and self._leaving[n] is current.get(n)]

    def give_up(self, host: str, pid: int) -> None:
        """End a host. A stopped host stays as it is, as if its machine could not be reached."""
        with self._lock:
            server = self._servers.get(host)
        if server is None or server.running.is_set():
            self.kill(host)
            return
        task, _ = self._taken(host)
        if task is not None:
            self._given_up.append(task)

    def server(self, host: str) -> ThreadHost:
        """The server of a host that is up."""
        with self._lock:
            return self._servers[host]

    def stop(self, host: str) -> None:
        """Stop a host and those of its task, as SIGSTOP would, until it is killed or resumed."""
        with self._lock:
            servers = [self._servers[name] for name in self._tasks[host].hosts]
        for server in servers:
            server.running.clear()

    def resume_given_up(self) -> None:
        """Resume all hosts that were stopped when the driver gave them up."""
        for task in self._given_up:
            for server in _servers(task):
                server.running.set()

    def _taken(self, host: str) -> tuple[HostTask | None, list[ThreadHost]]:
        with self._lock:
            self._unborn.discard(host)
            task = self._tasks.get(host)
            together = [] if task is None else task.hosts
            servers = [self._servers.pop(name) for name in together if name in self._servers]
            for name in together:
                self._tasks.pop(name, None)
        return task, servers

    def kill(self, host: str) -> None:
        """Kill a host and those of its task, as SIGKILL would."""
        task, servers = self._taken(host)
        if task is None or not servers:
            return
        for server in servers:
            server.die()
        self._owner.deaths[host] += 1
        self._owner.reaper.end(task)

    def kill_all(self) -> None:
        for host in self.live:
            self.kill(host)

    def close(self) -> None:
        """Kill all hosts. No more can start."""
        self._starter.shutdown()
        self.kill_all()
        for task in self._given_up:
            self._end(task)

    def _start(self, order: TaskOrder) -> None:
        owner = self._owner
        for host in order.hosts:
            fault = owner.start_faults.get(host.host)
            if fault == "dies":
                raise RuntimeError(f"the executor of {host.host} was lost")
            if fault == "waits":
                with self._lock:
                    self._unborn.add(host.host)
                return
        task = HostTask(order, LOOPBACK, lambda: None, owner.memory_limit, ThreadHost, open_store)
        with self._lock:
            for name, server in zip(task.hosts, _servers(task), strict=True):
                self._servers[name], self._tasks[name] = server, task
        known = task.register(owner.settings.rpc_timeout_ms)
        threading.Thread(target=self._beat, args=(task, known), daemon=True).start()

    def _beat(self, task: HostTask, known: list[tuple[str, str]]) -> None:
        """Send a task's heartbeats until it is dead, or the driver has given it up."""
        first, settings = _servers(task)[0], self._owner.settings
        if first.keep_known(task, known, settings) and self._end(task):
            self.fenced += task.hosts

    def _end(self, task: HostTask) -> bool:
        """End a task that the driver has given up. Returns False if it has ended before."""
        with self._lock:
            servers = [server for server in _servers(task) if not server.dead]
            for server in servers:
                server.dead = True
        for server in servers:
            server.die()
        if servers:
            self._owner.reaper.end(task)
        return bool(servers)


def _servers(task: HostTask) -> list[ThreadHost]:
    return cast("list[ThreadHost]", task.servers)
