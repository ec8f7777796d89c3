"""All hosts of a flow: started, given slots, sealed together, rolled back, started again, stopped."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from penstock import codec
from penstock.driver.registry import HostRecord, Registry
from penstock.errors import HostLostError, PenstockError
from penstock.host.vitals import HostVitals
from penstock.model import HostId
from penstock.plan.assignment import Assignment, Incoming
from penstock.plan.epoch import EpochPlan
from penstock.plan.steps import KeyedStep
from penstock.settings import Settings
from penstock.state.store.store import DeltaRef
from penstock.wire.flight import Endpoints

T = TypeVar("T")

_WORKERS = 64
"""Calls to hosts at a time. They wait for answers, so there may be many."""
_AT_ONCE_MS = 5_000
"""Milliseconds for an answer that takes a host no work."""


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


@dataclass(frozen=True)
class _Told:
    """What an incarnation of a host was last told."""

    record: HostRecord
    owned: frozenset[int]
    pace: tuple[bool, float]
    """Whether slots come whole, and how fast the rest of them is brought in the background."""


class Fleet:
    """The hosts of all keyed steps of one started flow. Used by one thread, the epoch's; only `add`,
    `ask`, `owned`, `owned_by_step`, `memory` and `pids` may be called by others."""

    def __init__(self, jobs: HostJobs, registry: Registry, token: str, settings: Settings) -> None:
        self._jobs, self._registry, self._settings = jobs, registry, settings
        self._steps: dict[HostId, KeyedStep] = {}
        self._told: dict[HostId, _Told] = {}
        self._restarts: dict[HostId, int] = {}
        self._endpoints = Endpoints(token)
        self._calls = ThreadPoolExecutor(_WORKERS, thread_name_prefix="fleet")

    # -- which hosts there are

    def add(self, host: HostId, step: KeyedStep) -> None:
        """Start a host. It can be given slots once it is `ready`."""
        self._steps[host] = step
        self._restarts.pop(host, None)  # one of this name may have been there before
        self._jobs.start(host, step)

    def remove(self, host: HostId) -> None:
        """End a host that owns nothing, in the background."""
        self._told.pop(host, None)

        def end() -> None:
            self._end(host)
            self._steps.pop(host, None)

        self._calls.submit(end)

    def knows(self, host: HostId) -> bool:
        """Whether there is such a host, be it that it is just ending."""
        return host in self._steps

    def ready(self, hosts: Iterable[HostId]) -> list[HostId]:
        """The hosts among these that have registered."""
        return [host for host in hosts if self._registry.host(host) is not None]

    def lost(self) -> list[HostId]:
        """Hosts that were told of their slots and are gone, or there again as another incarnation."""
        gone = [h for h, told in self._told.items() if self._registry.host(h) != told.record]
        for host in gone:
            del self._told[host]
        return gone

    def revive(self, hosts: Iterable[HostId]) -> None:
        """Start the jobs of hosts again that have ended, without waiting for them."""
        for host in hosts:
            if self._registry.host(host) is not None:
                self._restarts.pop(host, None)
            elif not self._jobs.running(host):
                tries = self._restarts.get(host, 0)
                if tries < self._settings.epoch_runs:
                    self._restarts[host] = tries + 1
                    self._jobs.start(host, self._steps[host])

    def wait_for(self, hosts: Sequence[HostId], enough: int) -> None:
        """Wait until `enough` of these hosts are ready; jobs that end meanwhile are started again."""
        deadline = time.monotonic() + self._settings.host_start_ms / 1000
        while len(self.ready(hosts)) < enough:
            self._registry.must_be_served()
            self.revive(hosts)
            missing = [host for host in hosts if self._registry.host(host) is None]
            hopeless = [h for h in missing if not self._jobs.running(h)]
            if len(hosts) - len(hopeless) < enough:
                raise HostLostError(
                    f"host {hopeless[0]} does not stay up: {self._jobs.failure(hopeless[0])}",
                    hint="see the executor's log of the host's Spark job",
                )
            if time.monotonic() > deadline:
                raise HostLostError(
                    f"host {missing[0]} did not come up within {self._settings.host_start_ms} ms",
                    hint="give the session more cores (hosts hold one each), or raise "
                    "Settings.host_start_ms if executors start slowly",
                )
            with self._registry.changed:
                self._registry.changed.wait(0.1)

    def wait_shortly(self, hosts: Sequence[HostId], most_ms: float) -> None:
        """Wait until these hosts are ready, or so long; whoever is missing then comes later."""
        deadline = time.monotonic() + most_ms / 1000
        with self._registry.changed:
            while len(self.ready(hosts)) < len(hosts):
                left = deadline - time.monotonic()
                if left <= 0 or not self._registry.changed.wait(left):
                    return

    def endpoints(self, hosts: tuple[HostId, ...]) -> tuple[str, ...]:
        return tuple(self._told[host].record.location for host in hosts)

    def pids(self) -> dict[str, int]:
        return {host: told.record.pid for host, told in dict(self._told).items()}

    # -- slots

    def owned(self, host: HostId) -> frozenset[int]:
        """The slots that a host was last told it owns."""
        told = self._told.get(host)
        return frozenset() if told is None else told.owned

    def owned_by_step(self, step: str) -> dict[HostId, frozenset[int]]:
        """The slots of each host of a step that owns any."""
        told = dict(self._told).items()
        steps = dict(self._steps)
        return {h: t.owned for h, t in told if t.owned and h in steps and steps[h].id == step}

    def was_told(self, host: HostId, order: Assignment) -> bool:
        """Whether a host was told just this."""
        told = self._told.get(host)
        pace = (order.whole, order.trickle_mb_s)
        return told is not None and (told.owned, told.pace) == (frozenset(order.owned), pace)

    def assign(
        self,
        orders: dict[HostId, Assignment],
        sources: dict[HostId, dict[int, HostId | None]],
        wait: bool,
    ) -> None:
        """Tell hosts which slots they own from now on, and whom to ask for the new ones.

        First everybody stops to own what goes, so that its copy is frozen before it is asked for.
        """
        leaving = {
            host: replace(order, owned=tuple(sorted(self.owned(host) & set(order.owned))))
            for host, order in orders.items()
            if self.owned(host) - set(order.owned)
        }
        self._each(list(leaving), lambda host: self._tell(host, leaving[host], wait=False))

        def arrive(host: HostId) -> None:
            order = orders[host]
            groups: dict[HostId | None, list[int]] = {}
            for slot in set(order.owned) - self.owned(host):
                groups.setdefault(sources.get(host, {}).get(slot), []).append(slot)
            incoming = tuple(
                Incoming(tuple(sorted(slots)), self._location(source))
                for source, slots in groups.items()
            )
            self._tell(host, replace(order, incoming=incoming), wait)

        self._each(list(orders), arrive)

    def release(self, hosts: Iterable[HostId]) -> None:
        """The copies of slots that these hosts gave away are not needed any more."""
        self._each([h for h in hosts if h in self._told], self._release)

    def _release(self, host: HostId) -> None:
        try:
            self._order(host, "release")
        except PenstockError:
            self._registry.forget(self._told[host].record)

    def _tell(self, host: HostId, order: Assignment, wait: bool) -> None:
        record = self._registry.host(host)
        if record is None:
            raise HostLostError(f"host {host} is gone")
        try:
            self._call(record, "assign", assignment=order, wait=wait)
        except PenstockError:
            self._registry.forget(record)
            raise
        pace = (order.whole, order.trickle_mb_s)
        self._told[host] = _Told(record, frozenset(order.owned), pace)

    def _location(self, host: HostId | None) -> str | None:
        told = None if host is None else self._told.get(host)
        return None if told is None else told.record.location

    # -- epochs

    def seal(self, plan: EpochPlan) -> list[SealedHost]:
        """Make the epoch durable on every host. A lost host raises; what others sealed can go back."""

        def one(host: HostId) -> SealedHost:
            facts = self._order(
                host, "seal", epoch=plan.epoch, run=plan.run, partitions=plan.partitions
            )
            return codec.from_plain(facts | {"host": host}, SealedHost)

        return self._each([host for step in plan.steps for host in step.routes.hosts], one)

    def roll_back(self, version: int, run: int) -> bool:
        """Take every host that owns slots back to `version`: the run after it is given up.

        Those that cannot are taken for lost; returns whether any is.
        """

        def one(host: HostId) -> bool:
            record = self._told[host].record
            if self._registry.host(host) != record:
                return True
            try:
                self._call(record, "rollback", version=version, run=run)
            except PenstockError:
                self._registry.forget(record)
                return True
            return False

        return any(self._each([host for host, told in self._told.items() if told.owned], one))

    def ask(self, host: HostId, action: str, **arguments: Any) -> Any:
        """Ask a host for what it answers at once."""
        told = self._told.get(host)
        if told is None:
            raise HostLostError(f"host {host} is gone")
        endpoint = self._endpoints.at(told.record.location)
        return endpoint.call(action, min(_AT_ONCE_MS, self._settings.rpc_timeout_ms), **arguments)

    def memory(self) -> dict[str, int]:
        """Resident bytes of each host's process."""
        return {host: int(self._order(host, "memory")["rss"]) for host in list(self._told)}

    def stop(self) -> None:
        """End every host and its Spark job. Nothing is left running."""
        self._each(list(self._steps), self._end)
        self._calls.shutdown()
        self._endpoints.close()

    def _end(self, host: HostId) -> None:
        record = self._registry.host(host)
        if record is not None:
            with suppress(PenstockError):
                self._call(record, "stop")
            self._registry.forget(record)
        self._jobs.cancel(host)

    # -- calls

    def _order(self, host: HostId, action: str, **arguments: Any) -> Any:
        told = self._told.get(host)
        if told is None:
            raise HostLostError(f"host {host} is gone")
        return self._call(told.record, action, **arguments)

    def _call(self, record: HostRecord, action: str, **arguments: Any) -> Any:
        endpoint = self._endpoints.at(record.location)
        return endpoint.call(action, self._settings.rpc_timeout_ms, **arguments)

    def _each(self, hosts: list[HostId], work: Callable[[HostId], T]) -> list[T]:
        """Do it for all at once; the first error is raised when all are done."""
        futures = [self._calls.submit(work, host) for host in hosts]
        outcomes = [(future.exception(), future) for future in futures]
        for error, _ in outcomes:
            if error is not None:
                raise error
        return [future.result() for _, future in outcomes]
