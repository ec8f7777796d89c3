"""All hosts of a flow: started, given their slots, sealed together, rolled back, replaced, stopped."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from penstock.config import Settings
from penstock.driver.registry import HostRecord, Registry
from penstock.errors import HostLostError, PenstockError
from penstock.host.machine import HostVitals
from penstock.model import HostId
from penstock.plan.epoch import EpochPlan, RouteTable
from penstock.plan.steps import KeyedStep
from penstock.state.store import DeltaRef
from penstock.wire.flight import Endpoint

T = TypeVar("T")


class HostJobs(Protocol):
    """Where hosts run. The one implementation that matters starts Spark jobs."""

    def start(self, host: str, step: KeyedStep) -> None:
        """Begin a host; it registers by itself."""
        ...

    def running(self, host: str) -> bool:
        """Whether the host's job is still there (it may be waiting, or be tried again by Spark)."""
        ...

    def failure(self, host: str) -> str:
        """Why the host's job ended, as far as is known."""
        ...

    def cancel(self, host: str) -> None:
        """End the job, by force if need be, and wait until it is gone."""
        ...


@dataclass(frozen=True)
class SealedHost:
    """One host's part of a sealed epoch."""

    host: str
    delta: DeltaRef
    vitals: HostVitals


class Fleet:
    """The hosts of all keyed steps of one started flow. Used by one thread, the epoch's."""

    def __init__(
        self,
        steps: tuple[KeyedStep, ...],
        hosts: dict[str, int],
        jobs: HostJobs,
        registry: Registry,
        token: str,
        settings: Settings,
    ) -> None:
        self._jobs, self._registry, self._settings, self._token = jobs, registry, settings, token
        self._steps = {
            HostId(f"{step.id}/{number}"): step
            for step in steps
            for number in range(hosts[step.id])
        }
        self._restored: dict[HostId, HostRecord] = {}
        self._endpoints: dict[str, Endpoint] = {}
        self._calls = ThreadPoolExecutor(max(1, len(self._steps)), thread_name_prefix="fleet")

    @property
    def hosts(self) -> list[HostId]:
        return list(self._steps)

    def of_step(self, step: KeyedStep) -> list[HostId]:
        return [host for host, its in self._steps.items() if its.id == step.id]

    def start(self) -> None:
        for host, step in self._steps.items():
            self._jobs.start(host, step)

    def endpoints(self, hosts: tuple[HostId, ...]) -> tuple[str, ...]:
        return tuple(self._restored[host].location for host in hosts)

    def pids(self) -> dict[str, int]:
        return {host: record.pid for host, record in self._restored.items()}

    def make_ready(self, version: int, routes: dict[str, RouteTable]) -> None:
        """Bring every host to `version`: wait for the missing, restore the new."""
        fresh = {}
        for host in self._steps:
            record = self._await(host)
            if self._restored.get(host) != record:
                fresh[host] = record

        def restore(host: HostId) -> None:
            table = routes[self._steps[host].id]
            slots = table.slots_of(table.hosts.index(host)).tolist()
            self._call(fresh[host], "restore", version=version, slots=slots)

        self._each(list(fresh), restore)
        self._restored.update(fresh)

    def seal(self, plan: EpochPlan) -> list[SealedHost]:
        """Make the epoch durable on every host. A lost host raises; what others sealed can go back."""

        def one(host: HostId) -> SealedHost:
            facts = self._call(
                self._restored[host],
                "seal",
                epoch=plan.epoch,
                run=plan.run,
                partitions=plan.partitions,
            )
            return SealedHost(host, DeltaRef(**facts["delta"]), HostVitals(**facts["vitals"]))

        return self._each(self.hosts, one)

    def roll_back(self, version: int) -> list[HostId]:
        """Take every host that still answers back to `version`; forget the others and name them."""
        lost: list[HostId] = []

        def one(host: HostId) -> None:
            record = self._restored[host]
            if self._registry.host(host) != record:
                lost.append(host)
                return
            try:
                self._call(record, "rollback", version=version)
            except PenstockError:
                lost.append(host)
                self._registry.forget(record)

        self._each(list(self._restored), one)
        for host in lost:
            self._restored.pop(host, None)
        return lost

    def memory(self) -> dict[str, int]:
        """Resident bytes of each host's process."""
        return {
            host: int(self._call(record, "memory")["rss"])
            for host, record in self._restored.items()
        }

    def stop(self) -> None:
        """End every host and its Spark job. Nothing is left running."""

        def one(host: HostId) -> None:
            record = self._registry.host(host)
            if record is not None:
                try:
                    self._call(record, "stop")
                except PenstockError:
                    self._registry.forget(record)
            self._jobs.cancel(host)

        self._each(self.hosts, one)
        self._calls.shutdown()
        for endpoint in self._endpoints.values():
            endpoint.close()

    def _await(self, host: HostId) -> HostRecord:
        """The host's registration, once it has come; its job is started again if it ended."""
        deadline = time.monotonic() + self._settings.host_start_ms / 1000
        restarts = 0
        while True:
            record = self._registry.host(host)
            if record is not None:
                return record
            if not self._jobs.running(host):
                if restarts >= self._settings.epoch_runs:
                    raise HostLostError(
                        f"host {host} does not stay up: {self._jobs.failure(host)}",
                        hint="see the executor's log of the host's Spark job",
                    )
                restarts += 1
                self._jobs.start(host, self._steps[host])
            if time.monotonic() > deadline:
                raise HostLostError(
                    f"host {host} did not come up within {self._settings.host_start_ms} ms",
                    hint="give the session more cores (hosts hold one each), or raise "
                    "Settings.host_start_ms if executors start slowly",
                )
            with self._registry.changed:
                self._registry.changed.wait(0.1)

    def _call(self, record: HostRecord, action: str, **arguments: Any) -> Any:
        endpoint = self._endpoints.get(record.location)
        if endpoint is None:
            endpoint = self._endpoints[record.location] = Endpoint(record.location, self._token)
        return endpoint.call(action, self._settings.rpc_timeout_ms, **arguments)

    def _each(self, hosts: list[HostId], work: Callable[[HostId], T]) -> list[T]:
        """Do it for all at once; the first error is raised when all are done."""
        futures = [self._calls.submit(work, host) for host in hosts]
        outcomes = [(future.exception(), future) for future in futures]
        for error, _ in outcomes:
            if error is not None:
                raise error
        return [future.result() for _, future in outcomes]
