"""All hosts of a flow: started, given slots, sealed together, rolled back, started again, stopped."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor
from concurrent.futures import wait as wait_for_any
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from penstock import codec
from penstock.driver.complaints import Complaint, Complaints
from penstock.driver.registry import HostRecord, Registry
from penstock.errors import HostLostError, PenstockError, StaleRunError
from penstock.host.vitals import HostVitals
from penstock.model import HostId
from penstock.plan.assignment import Assignment, Incoming
from penstock.plan.epoch import EpochPlan
from penstock.plan.steps import KeyedStep
from penstock.settings import Settings
from penstock.state.store.store import DeltaRef
from penstock.wire.flight import Endpoints, in_own_thread
from penstock.wire.silence import Silences

_log = logging.getLogger("penstock.hosts")

T = TypeVar("T")

_WORKERS = 64
"""Calls to hosts at a time. They wait for answers, so there may be many."""
_WORTH_TELLING_MS = 1_500
"""Milliseconds of a host's silence that a user should hear of."""
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

    def give_up(self, host: str, pid: int) -> None:
        """End the job by force and at once: the host's process does not answer, and may hang."""
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
    `ask`, `owned`, `owned_by_step`, `memory`, `pids` and `waiting` may be called by others.

    A watch of its own counts how long each host has been silent, from the first one on. A host that is
    silent for `Settings.host_lost_ms` is given up, whatever it was asked for: no call waits for it any
    longer, the run under way is broken off if it needs the host, and its job is ended by force.
    """

    def __init__(
        self,
        jobs: HostJobs,
        registry: Registry,
        token: str,
        settings: Settings,
        clock_ms: Callable[[], float] = lambda: time.monotonic() * 1000,
    ) -> None:
        self._jobs, self._registry, self._settings = jobs, registry, settings
        self._clock_ms = clock_ms
        self._silences = Silences[HostRecord](settings.heartbeat_ms)
        self._couriers = Silences[tuple[int, int, int]](settings.heartbeat_ms)
        self._silent: dict[HostRecord, float] = {}
        self._complaints = Complaints()
        self._awaited: tuple[HostId, float] | None = None
        """The host that must come up before anything goes on, and since when it is waited for."""
        self._stopped = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="fleet-watch", daemon=True)
        self._starting = threading.Lock()
        self._steps: dict[HostId, KeyedStep] = {}
        self._told: dict[HostId, _Told] = {}
        self._restarts: dict[HostId, int] = {}
        self._endpoints = Endpoints(token)
        self._calls = ThreadPoolExecutor(_WORKERS, thread_name_prefix="fleet")

    # -- which hosts there are

    def add(self, host: HostId, step: KeyedStep) -> None:
        """Start a host. It can be given slots once it is `ready`."""
        with self._starting:
            if self._watcher.ident is None:
                self._watcher.start()
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
        try:
            self._wait_for(hosts, enough)
        finally:
            self._awaited = None

    def _wait_for(self, hosts: Sequence[HostId], enough: int) -> None:
        began = time.monotonic()
        deadline = began + self._settings.host_start_ms / 1000
        while len(self.ready(hosts)) < enough:
            self._registry.must_be_served()
            self.revive(hosts)
            missing = [host for host in hosts if self._registry.host(host) is None]
            self._awaited = (missing[0], began) if missing else None
            hopeless = [h for h in missing if not self._jobs.running(h)]
            if len(hosts) - len(hopeless) < enough:
                raise HostLostError(
                    f"host {hopeless[0]} does not stay up: {self._jobs.failure(hopeless[0])}",
                    hint="see the executor's log of the host's Spark job",
                )
            if missing and time.monotonic() > deadline:
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

    @property
    def waiting(self) -> list[str]:
        """What there is to tell of hosts that are waited for, or silent."""
        told = []
        if (awaited := self._awaited) is not None:
            host, began = awaited
            told.append(f"waiting for host {host} to come up ({time.monotonic() - began:.0f} s)")
        for record, silent_ms in self._silent.items():
            if silent_ms >= _WORTH_TELLING_MS:
                told.append(f"host {record.host} silent for {silent_ms / 1000:.0f} s")
        return told

    # -- hosts that are given up

    def judge(self, complaints: list[Complaint]) -> None:
        """A run has failed, and its couriers complained of these hosts: give up whom they must do
        without."""
        for host in self._complaints.judge(complaints):
            record = self._registry.host(host)
            if record is not None:
                self._give_up(record, "couriers cannot reach it, though the driver does")

    def avoided(self, epoch: int) -> set[str]:
        """Hosts that should have no slots in this epoch if others can have them."""
        return self._complaints.avoided(epoch)

    def _watch(self) -> None:
        """Give up hosts that are silent, until the fleet is stopped."""
        while not self._stopped.wait(self._settings.heartbeat_ms / 1000):
            self._silent = self._silences.tick(self._clock_ms(), self._registry.heard())
            for record, silent_ms in self._silent.items():
                if silent_ms > self._settings.host_lost_ms:
                    self._give_up(record, f"it was silent for {silent_ms / 1000:.1f} s")
            couriers = self._couriers.tick(self._clock_ms(), self._registry.couriers())
            for (_, _, task), silent_ms in couriers.items():
                if silent_ms > self._settings.host_lost_ms:
                    why = f"the courier of partition {task} was silent for {silent_ms / 1000:.1f} s"
                    self._registry.break_off(StaleRunError(why))

    def _give_up(self, record: HostRecord, why: str) -> None:
        """Count on this incarnation no longer, say so once, and end it by force."""
        if not self._registry.forget(record):
            return
        _log.warning(
            "host %s (process %d) is given up: %s. Its slots go to others, and it is started again",
            record.host,
            record.pid,
            why,
        )
        try:
            if self.owned(HostId(record.host)):
                self._registry.break_off(HostLostError(f"host {record.host} was given up: {why}"))
            self._jobs.give_up(record.host, record.pid)
        except Exception as failed:  # the watch must go on for the others
            _log.warning("the job of host %s could not be ended: %s", record.host, failed)

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
        record = self._told[host].record
        try:
            self._call(record, "release")
        except PenstockError as failed:
            self._give_up(record, failed.message)

    def _tell(self, host: HostId, order: Assignment, wait: bool) -> None:
        record = self._registry.host(host)
        if record is None:
            raise HostLostError(f"host {host} is gone")
        try:
            self._call(record, "assign", assignment=order, wait=wait)
        except PenstockError as failed:
            self._give_up(record, failed.message)
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
            except PenstockError as failed:
                self._give_up(record, failed.message)
                return True
            return False

        return any(self._each([host for host, told in self._told.items() if told.owned], one))

    def ask(self, host: HostId, action: str, **arguments: Any) -> Any:
        """Ask a host for what it answers at once."""
        return self._order(host, action, _AT_ONCE_MS, **arguments)

    def memory(self) -> dict[str, int]:
        """Resident bytes of each host's process."""
        return {host: int(self._order(host, "memory")["rss"]) for host in list(self._told)}

    def stop(self) -> None:
        """End every host and its Spark job. Nothing is left running."""
        self._each(list(self._steps), self._end)
        self._stopped.set()
        if self._watcher.ident is not None:
            self._watcher.join()
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

    def _order(
        self, host: HostId, action: str, within_ms: int | None = None, **arguments: Any
    ) -> Any:
        told = self._told.get(host)
        if told is None:
            raise HostLostError(f"host {host} is gone")
        return self._call(told.record, action, within_ms, **arguments)

    def _call(
        self, record: HostRecord, action: str, within_ms: int | None = None, **arguments: Any
    ) -> Any:
        """Have a host do something. Nobody waits for one that is given up meanwhile: the thread that
        asked it is left alone, and whatever comes of the call is not looked at."""
        endpoint, most_ms = self._endpoints.at(record.location), self._settings.rpc_timeout_ms
        most_ms = most_ms if within_ms is None else min(most_ms, within_ms)
        answer = in_own_thread(lambda: endpoint.call(action, most_ms, **arguments), "fleet-call")
        wait_for_any((answer, self._registry.loss(record)), return_when=FIRST_COMPLETED)
        if not answer.done():
            raise HostLostError(f"host {record.host} was given up", location=record.location)
        return answer.result()

    def _each(self, hosts: list[HostId], work: Callable[[HostId], T]) -> list[T]:
        """Do it for all at once; the first error is raised when all are done."""
        futures = [self._calls.submit(work, host) for host in hosts]
        outcomes = [(future.exception(), future) for future in futures]
        for error, _ in outcomes:
            if error is not None:
                raise error
        return [future.result() for _, future in outcomes]
