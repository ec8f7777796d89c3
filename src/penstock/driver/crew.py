"""Long-lived tasks of a flow, hosts or couriers: started, awaited, called, given up, stopped."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import suppress
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from penstock.driver.registry import HostRecord, Registry, capitalized
from penstock.driver.silence_watch import SilenceWatch
from penstock.errors import HostLostError, PenstockError
from penstock.settings import Settings
from penstock.wire.access import Access
from penstock.wire.addresses import nobody_listens
from penstock.wire.flight import PING, Endpoints, in_own_thread

_log = logging.getLogger("penstock.hosts")

T = TypeVar("T")
W = TypeVar("W")
W_contra = TypeVar("W_contra", contravariant=True)
N = TypeVar("N", bound=str)

_WORKERS = 64
"""Number of threads for calls to members. They mostly wait for replies, so there may be many."""
_WORTH_TELLING_MS = 1_500
"""Milliseconds without a heartbeat after which status messages mention a member."""
_TRIED_AGAIN = 4
"""Multiple of `Settings.host_lost_ms` that Spark has to restart the task of a process that is gone."""
AT_ONCE_MS = 5_000
"""Timeout in milliseconds of calls that are answered at once."""


class Jobs(Protocol[W_contra]):
    """Runs the members of a crew. In production each is a Spark job; tests use threads."""

    def start(self, name: str, work: W_contra) -> None:
        """Start a member. It registers by itself once it is up."""
        ...

    def running(self, name: str) -> bool:
        """Whether the member's job exists. It may be waiting for a core, or be restarted by Spark."""
        ...

    def failure(self, name: str) -> str:
        """Why the member's job ended, if that is known."""
        ...

    def cancel(self, name: str) -> None:
        """End the job, by force if necessary, and wait until it is gone."""
        ...

    def leaving(self, names: Iterable[str]) -> list[str]:
        """Those of these members whose executors are being decommissioned."""
        ...

    def give_up(self, name: str, pid: int) -> None:
        """Kill the member at once: its process does not respond."""
        ...


class TaskCrew(ABC, Generic[N, W]):
    """All hosts, or all couriers, of a started flow, by name. Used by the query's thread; only `add`, `pids`
    and `waiting` may be called by others.

    A thread watches the members' heartbeats. A member that sends none for `Settings.host_lost_ms` is given
    up: calls to it stop waiting, the current run ends if it needs the member, and its job is killed.
    """

    kind: ClassVar[str]
    """Name of the kind of member in messages: "host" or "courier"."""
    inheritance: ClassVar[str]
    """Sentence in log lines about what happens to the work of a lost member."""

    def __init__(
        self,
        jobs: Jobs[W],
        registry: Registry,
        access: Access,
        settings: Settings,
        clock_ms: Callable[[], float] = lambda: time.monotonic() * 1000,
    ) -> None:
        self._jobs, self._registry, self._settings = jobs, registry, settings
        self._watch = SilenceWatch[HostRecord](
            f"{self.kind}-watch", settings, clock_ms, self._heard, self._is_silent
        )
        self._awaited: tuple[N, float] | None = None
        """Member that the query waits for, and the start of the wait in seconds; None if there is none."""
        self._members: dict[N, W] = {}
        self._restarts: dict[N, int] = {}
        self._gone: dict[N, tuple[int, float]] = {}
        """Members that Spark should restart, since their process is gone: process id, and time in seconds."""
        self._pings: dict[HostRecord, Future[Any]] = {}
        self._endpoints = Endpoints(access)
        self._calls = ThreadPoolExecutor(_WORKERS, thread_name_prefix=self.kind)

    # -- members

    def add(self, name: N, work: W) -> None:
        """Start a member. It can get work once it is `ready`."""
        self._watch.begin()
        self._members[name] = work
        self._restarts.pop(name, None)  # an earlier member may have had this name
        self._jobs.start(name, work)

    def knows(self, name: N) -> bool:
        """Whether a member of this name exists, even if it is just ending."""
        return name in self._members

    def ready(self, names: Iterable[N]) -> list[N]:
        """Those of these members that have registered."""
        return [name for name in names if self._registry.host(name) is not None]

    def leaving(self, names: Iterable[N]) -> list[N]:
        """Those of these members that must be replaced because their executors are being decommissioned."""
        known = list(names)
        going = self._jobs.leaving(known)
        return [name for name in known if name in going]

    def revive(self, names: Iterable[N]) -> None:
        """Restart members whose jobs have ended, without waiting for them."""
        for name in names:
            if self._registry.host(name) is not None:
                self._restarts.pop(name, None)
                self._gone.pop(name, None)
            elif self._jobs.running(name):
                self._hurry(name)
            else:
                tries = self._restarts.get(name, 0)
                if tries < self._settings.epoch_runs:
                    self._restarts[name] = tries + 1
                    self._jobs.start(name, self._members[name])

    def _hurry(self, name: N) -> None:
        """Kill the job of a member that Spark has not restarted in time, so that a new one can start."""
        pid, since = self._gone.get(name, (0, float("inf")))
        if time.monotonic() - since > _TRIED_AGAIN * self._settings.host_lost_ms / 1000:
            del self._gone[name]
            self._jobs.give_up(name, pid)

    def wait_for(self, names: Sequence[N], enough: int) -> None:
        """Wait until `enough` of these members are ready. Jobs that end meanwhile are restarted."""
        try:
            self._wait_for(names, enough)
        finally:
            self._awaited = None

    def _wait_for(self, names: Sequence[N], enough: int) -> None:
        began = time.monotonic()
        deadline = began + self._settings.host_start_ms / 1000
        while len(self.ready(names)) < enough:
            self._registry.must_be_served()
            self.revive(names)
            missing = [name for name in names if self._registry.host(name) is None]
            self._awaited = (missing[0], began) if missing else None
            hopeless = [name for name in missing if not self._jobs.running(name)]
            if len(names) - len(hopeless) < enough:
                raise HostLostError(
                    f"{self.kind} {hopeless[0]} cannot start: {self._jobs.failure(hopeless[0])}",
                    hint=f"read the executor's log of the {self.kind}'s Spark job",
                )
            if missing and time.monotonic() > deadline:
                raise HostLostError(
                    f"{self.kind} {missing[0]} did not start within "
                    f"{self._settings.host_start_ms} ms",
                    hint=f"give the session more cores (each {self.kind} holds one), or raise "
                    "Settings.host_start_ms if executors start slowly",
                )
            with self._registry.changed:
                self._registry.changed.wait(0.1)

    def wait_shortly(self, names: Sequence[N], most_ms: float) -> None:
        """Wait until these members are ready, for `most_ms` milliseconds at most."""
        deadline = time.monotonic() + most_ms / 1000
        with self._registry.changed:
            while len(self.ready(names)) < len(names):
                left = deadline - time.monotonic()
                if left <= 0 or not self._registry.changed.wait(left):
                    return

    @property
    def waiting(self) -> list[str]:
        """Status messages about members that the query waits for, or that do not respond."""
        messages = []
        if (awaited := self._awaited) is not None:
            name, began = awaited
            seconds = time.monotonic() - began
            messages.append(f"waiting for {self.kind} {name} to come up ({seconds:.0f} s)")
        for record, silent_ms in self._watch.silent.items():
            if silent_ms >= _WORTH_TELLING_MS:
                messages.append(f"{self.kind} {record.host} silent for {silent_ms / 1000:.0f} s")
        return messages

    # -- lost members

    @abstractmethod
    def _needed(self, name: N) -> bool:
        """Whether the current run needs this member."""

    def pulse(self, names: Iterable[N]) -> None:
        """Ping these members in the background, and give up those whose process is gone.

        Missing heartbeats would show the same, but seconds later.
        """
        self._pings = {r: ping for r, ping in self._pings.items() if not ping.done()}
        for record in filter(None, (self._registry.host(name) for name in names)):
            if record not in self._pings:
                ping = in_own_thread(lambda r=record: self._ping(r), f"{self.kind}-pulse")  # type: ignore[misc]
                self._pings[record] = ping

    def _ping(self, record: HostRecord) -> None:
        try:
            self._endpoints.at(record.location).call(PING, self._settings.host_lost_ms)
        except PenstockError as failed:
            self._give_up(record, failed.message)

    def _heard(self) -> dict[HostRecord, int]:
        heard = self._registry.heard()
        return {record: marks for record, marks in heard.items() if record.host in self._members}

    def _is_silent(self, record: HostRecord, silent_ms: float) -> None:
        self._give_up(record, f"it was silent for {silent_ms / 1000:.1f} s")

    def _give_up(self, record: HostRecord, why: str) -> None:
        """Give up this process of a member: log it once, end the run if it needs it, and kill the job."""
        if not self._registry.forget(record):
            return
        why = why.replace(f"no answer from {record.location}", "it does not answer")
        _log.warning(
            "%s (process %d) is lost: %s. %s, and it is started again.",
            capitalized(record.title),
            record.pid,
            why,
            self.inheritance,
            extra=record.fields | {"reason": why},
        )
        self._registry.recovery.lost(record.title)
        name: Any = record.host
        try:
            if self._needed(name):
                self._registry.break_off(HostLostError(f"{record.title} is lost: {why}"))
            if nobody_listens(record.location):  # Spark has noticed, and restarts the task
                self._gone[name] = (record.pid, time.monotonic())
            else:
                self._jobs.give_up(record.host, record.pid)
        except Exception as failed:  # the other members must still be watched
            _log.warning(
                "The Spark job of %s could not be ended: %s",
                record.title,
                failed,
                extra=record.fields | {"reason": str(failed)},
            )

    # -- the end

    def stop(self) -> None:
        """End all members and their Spark jobs."""
        self._each(list(self._members), self._end)
        self._watch.stop()
        self._calls.shutdown()
        wait_for(self._pings.values(), self._settings.host_lost_ms / 1000)
        self._endpoints.close()

    def _end(self, name: N) -> None:
        record = self._registry.host(name)
        if record is not None:
            with suppress(PenstockError):
                self._call(record, "stop")
            self._registry.forget(record)
        self._jobs.cancel(name)

    # -- calls

    def _call(
        self, record: HostRecord, action: str, within_ms: int | None = None, **arguments: Any
    ) -> Any:
        """Call an action of a member and return its reply. If the member is given up meanwhile, this raises
        at once; the call's own thread is left to itself, and its result is ignored."""
        endpoint, most_ms = self._endpoints.at(record.location), self._settings.rpc_timeout_ms
        most_ms = most_ms if within_ms is None else min(most_ms, within_ms)
        reply = in_own_thread(lambda: endpoint.call(action, most_ms, **arguments), "fleet-call")
        wait_for((reply, self._registry.loss(record)), return_when=FIRST_COMPLETED)
        if not reply.done():
            raise HostLostError(f"{record.title} was given up", location=record.location)
        return reply.result()

    def _each(self, names: list[N], work: Callable[[N], T]) -> list[T]:
        """Call `work` for all names in parallel. Raises the first error once all calls have ended."""
        futures = [self._calls.submit(work, name) for name in names]
        outcomes = [(future.exception(), future) for future in futures]
        for error, _ in outcomes:
            if error is not None:
                raise error
        return [future.result() for _, future in outcomes]
