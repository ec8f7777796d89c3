"""Long-lived tasks of a flow, be they hosts or couriers: started, awaited, called, given up, stopped."""

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
"""Calls to members at a time. They wait for answers, so there may be many."""
_WORTH_TELLING_MS = 1_500
"""Milliseconds of a member's silence that a user should hear of."""
_TRIED_AGAIN = 4
"""Times `host_lost_ms` within which Spark tries the task of a process that is gone again."""
AT_ONCE_MS = 5_000
"""Milliseconds for an answer that takes no work."""


class Jobs(Protocol[W_contra]):
    """Where members of a crew run. The one implementation that matters starts Spark jobs."""

    def start(self, name: str, work: W_contra) -> None:
        """Begin a member; it registers by itself."""
        ...

    def running(self, name: str) -> bool:
        """Whether the member's job is still there (it may be waiting, or be tried again by Spark)."""
        ...

    def failure(self, name: str) -> str:
        """Why the member's job ended, as far as is known."""
        ...

    def cancel(self, name: str) -> None:
        """End the job, by force if need be, and wait until it is gone."""
        ...

    def leaving(self, names: Iterable[str]) -> list[str]:
        """Members among these whose machine or executor is being taken away in good order."""
        ...

    def give_up(self, name: str, pid: int) -> None:
        """End the job by force and at once: the member's process does not answer, and may hang."""
        ...


class TaskCrew(ABC, Generic[N, W]):
    """Members of one kind of a started flow, by name, each with its work. Used by one thread, the
    query's; only `add`, `pids` and `waiting` may be called by others.

    A watch of its own counts how long each member has been silent, from the first one on. One that is
    silent for `Settings.host_lost_ms` is given up, whatever it was asked for: no call waits for it any
    longer, the run under way is broken off if it needs it, and its job is ended by force.
    """

    kind: ClassVar[str]
    """What people call a member."""
    inheritance: ClassVar[str]
    """What people are told about what a lost member leaves."""

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
        """The member that must come up before anything goes on, and since when it is waited for."""
        self._members: dict[N, W] = {}
        self._restarts: dict[N, int] = {}
        self._gone: dict[N, tuple[int, float]] = {}
        """Members whose process is gone, and whose task Spark should be trying again, since when."""
        self._pings: dict[HostRecord, Future[Any]] = {}
        self._endpoints = Endpoints(access)
        self._calls = ThreadPoolExecutor(_WORKERS, thread_name_prefix=self.kind)

    # -- who there is

    def add(self, name: N, work: W) -> None:
        """Start a member. It can be given work once it is `ready`."""
        self._watch.begin()
        self._members[name] = work
        self._restarts.pop(name, None)  # one of this name may have been there before
        self._jobs.start(name, work)

    def knows(self, name: N) -> bool:
        """Whether there is such a member, be it that it is just ending."""
        return name in self._members

    def ready(self, names: Iterable[N]) -> list[N]:
        """Those among these that have registered."""
        return [name for name in names if self._registry.host(name) is not None]

    def leaving(self, names: Iterable[N]) -> list[N]:
        """Those among these that must be replaced, since their machine or executor will go."""
        known = list(names)
        going = self._jobs.leaving(known)
        return [name for name in known if name in going]

    def revive(self, names: Iterable[N]) -> None:
        """Start the jobs of members again that have ended, without waiting for them."""
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
        """End the job of a member that was not tried again in all this time: another one is started."""
        pid, since = self._gone.get(name, (0, float("inf")))
        if time.monotonic() - since > _TRIED_AGAIN * self._settings.host_lost_ms / 1000:
            del self._gone[name]
            self._jobs.give_up(name, pid)

    def wait_for(self, names: Sequence[N], enough: int) -> None:
        """Wait until `enough` of these are ready; jobs that end meanwhile are started again."""
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
                    f"{self.kind} {hopeless[0]} does not stay up: {self._jobs.failure(hopeless[0])}",
                    hint=f"see the executor's log of the {self.kind}'s Spark job",
                )
            if missing and time.monotonic() > deadline:
                raise HostLostError(
                    f"{self.kind} {missing[0]} did not come up within "
                    f"{self._settings.host_start_ms} ms",
                    hint=f"give the session more cores ({self.kind}s hold one each), or raise "
                    "Settings.host_start_ms if executors start slowly",
                )
            with self._registry.changed:
                self._registry.changed.wait(0.1)

    def wait_shortly(self, names: Sequence[N], most_ms: float) -> None:
        """Wait until these are ready, or so long; whoever is missing then comes later."""
        deadline = time.monotonic() + most_ms / 1000
        with self._registry.changed:
            while len(self.ready(names)) < len(names):
                left = deadline - time.monotonic()
                if left <= 0 or not self._registry.changed.wait(left):
                    return

    @property
    def waiting(self) -> list[str]:
        """What there is to tell of members that are waited for, or silent."""
        told = []
        if (awaited := self._awaited) is not None:
            name, began = awaited
            seconds = time.monotonic() - began
            told.append(f"waiting for {self.kind} {name} to come up ({seconds:.0f} s)")
        for record, silent_ms in self._watch.silent.items():
            if silent_ms >= _WORTH_TELLING_MS:
                told.append(f"{self.kind} {record.host} silent for {silent_ms / 1000:.0f} s")
        return told

    # -- who is given up

    @abstractmethod
    def _needed(self, name: N) -> bool:
        """Whether the run under way cannot go on without this member."""

    def pulse(self, names: Iterable[N]) -> None:
        """Ask these whether they are there, and give up whose process is gone; returns at once.

        Silence says the same of a dead process, seconds later.
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
        """Count on this incarnation no longer, say so once, and end it by force."""
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
            if nobody_listens(record.location):  # Spark knows by now, and tries the task again
                self._gone[name] = (record.pid, time.monotonic())
            else:
                self._jobs.give_up(record.host, record.pid)
        except Exception as failed:  # the watch must go on for the others
            _log.warning(
                "The Spark job of %s could not be ended: %s",
                record.title,
                failed,
                extra=record.fields | {"reason": str(failed)},
            )

    # -- the end

    def stop(self) -> None:
        """End every member and its Spark job. Nothing is left running."""
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
        """Have a member do something. Nobody waits for one that is given up meanwhile: the thread that
        asked it is left alone, and whatever comes of the call is not looked at."""
        endpoint, most_ms = self._endpoints.at(record.location), self._settings.rpc_timeout_ms
        most_ms = most_ms if within_ms is None else min(most_ms, within_ms)
        answer = in_own_thread(lambda: endpoint.call(action, most_ms, **arguments), "fleet-call")
        wait_for((answer, self._registry.loss(record)), return_when=FIRST_COMPLETED)
        if not answer.done():
            raise HostLostError(f"{self.kind} {record.host} was given up", location=record.location)
        return answer.result()

    def _each(self, names: list[N], work: Callable[[N], T]) -> list[T]:
        """Do it for all at once; the first error is raised when all are done."""
        futures = [self._calls.submit(work, name) for name in names]
        outcomes = [(future.exception(), future) for future in futures]
        for error, _ in outcomes:
            if error is not None:
                raise error
        return [future.result() for _, future in outcomes]
