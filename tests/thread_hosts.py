"""Hosts as threads of one process, each behind a real Flight server, that can be killed."""

from __future__ import annotations

import secrets
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Literal

import pyarrow.flight as fl

from penstock.driver.registry import Registry
from penstock.host.machine import HostMachine
from penstock.host.server import HostServer
from penstock.plan.steps import KeyedStep
from penstock.state.store import Store
from penstock.wire.flight import Endpoint

if TYPE_CHECKING:
    from tests.cluster import MiniCluster

ADDRESS = "127.0.0.1"

Birth = Literal["dies", "waits"]
"""How a host does not come up: its job fails before it registers, or finds no core to run on."""


def open_store(uri: str) -> Store:
    """The store of the cluster; one that does not wait before it tries again."""
    return Store(uri, pause=lambda _: None)


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
        self._machine.needs = self._must_live  # type: ignore[method-assign, assignment]
        with self._lock:
            self._machine.residence.whole[:] = False
            self._lock.notify_all()

    def _must_live(self, *_: object) -> None:
        if self.dead:
            raise fl.FlightUnavailableError("this host is dead")


class ThreadHosts:
    """`HostJobs` on threads."""

    def __init__(self, cluster: MiniCluster, registry: Registry, token: str) -> None:
        self._cluster, self._registry, self._token = cluster, registry, token
        self._servers: dict[str, MortalServer] = {}
        self._starting: dict[str, Future[None]] = {}
        self._unborn: set[str] = set()
        self._starter = ThreadPoolExecutor(4, thread_name_prefix="starter")
        self._lock = threading.Lock()

    @property
    def live(self) -> list[str]:
        with self._lock:
            return [host for host, server in self._servers.items() if not server.dead]

    def start(self, host: str, step: KeyedStep) -> None:
        self.kill(host)
        self._starting[host] = self._starter.submit(self._start, host, step)

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
        """End a host as SIGKILL would."""
        with self._lock:
            self._unborn.discard(host)
            server = self._servers.pop(host, None)
        if server is None:
            return
        server.die()
        self._cluster.deaths[host] += 1
        self._cluster.bury(server)

    def kill_all(self) -> None:
        for host in self.live:
            self.kill(host)

    def close(self) -> None:
        self._starter.shutdown()
        self.kill_all()

    def _start(self, host: str, step: KeyedStep) -> None:
        birth = self._cluster.births.get(host)
        if birth == "dies":
            raise RuntimeError(f"the executor of {host} was lost")
        if birth == "waits":
            with self._lock:
                self._unborn.add(host)
            return
        server = MortalServer(
            HostMachine(step.operator(), memory_limit=self._cluster.memory_limit),
            open_store(self._cluster.store),
            step=step.id,
            host=host,
            address=ADDRESS,
            token=self._token,
            tag=secrets.token_hex(3),
            timeout_ms=self._cluster.settings.rpc_timeout_ms,
            on_stop=lambda: None,
        )
        with self._lock:
            self._servers[host] = server
        driver = Endpoint(self._registry.location, self._token)
        facts = {"incarnation": f"{host}@{server.port}", "location": server.location, "pid": 0}
        driver.call("register", self._cluster.settings.rpc_timeout_ms, host=host, **facts)
        driver.close()
