"""The interface of a backend, in which burst workers run.

    Backend       the user's setting `functions=`
    BurstWorkers  the driver's handle of the burst workers of one run
    Invoker       a courier's connection to them

Any object with the interface of `Backend` can be one, whichever module defines it. The driver starts its
burst workers for a flow. Couriers get a text without secrets in the plan of each epoch. They also get the
backend itself, pickled inside the function that Spark ships, and it makes an `Invoker` of the text. A burst
worker gets the bytes of a request and returns those of an answer (see `messages` and `worker`). It knows no
host and no other burst worker.

    driver   backend.start(flow, ...)           ──► BurstWorkers, and their `reach` text
    courier  backend.connect(reach, access)     ──► Invoker.invoke(request) ──► answer
    worker   BurstWorker(flow).answer(request)  ──► answer
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Literal, Protocol

import cloudpickle

from penstock.control.elastic import WorkerTerms
from penstock.errors import PenstockError, ProtocolError, SettingError
from penstock.faults import Fault
from penstock.wire.access import Access
from penstock.wire.report import Usage

if TYPE_CHECKING:
    from penstock.plan.steps import FlowPlan

Failure = Literal["failed", "timeout", "throttled", "too_large"]


class WorkerFailed(PenstockError):
    """An invocation got no answer. No state has changed: the caller can do the rows itself.

    >>> WorkerFailed("all 8 burst workers are busy", failure="throttled").failure
    'throttled'
    """

    def __init__(self, message: str, *, hint: str = "", failure: Failure = "failed") -> None:
        self.failure = failure
        super().__init__(message, hint=hint)

    def facts(self) -> dict[str, str]:
        return super().facts() | {"failure": self.failure}


class Invoker(Protocol):
    """A courier's connection to burst workers. Safe to use from several threads."""

    request_limit: int | None
    """Largest size of a request in bytes; None for no limit."""

    def invoke(self, request: bytes, timeout_ms: int) -> bytes:
        """Send a request to one burst worker, and return its answer. Blocks for about `timeout_ms` at most.

        Raises `WorkerFailed`. Nothing is retried: the caller can do the rows itself.
        """
        ...

    def taken(self) -> Usage:
        """Usage since the last call, for `BurstWorkers.note`. Empty if the backend counts it itself."""
        ...

    def close(self) -> None:
        """Close its connections. Calls in progress may fail."""
        ...


class BurstWorkers(Protocol):
    """The driver's handle of the burst workers of one run. Safe to use from several threads."""

    @property
    def reach(self) -> str:
        """Text for `Backend.connect`, without secrets. Each start has its own: couriers keep one invoker for
        each text."""
        ...

    def warm(self, count: int) -> None:
        """Keep this many ready or busy from now on. Does not wait for them."""
        ...

    def note(self, usage: Usage) -> None:
        """Add the usage that a courier reports (see `Invoker.taken`)."""
        ...

    def used(self) -> Usage:
        """All usage so far."""
        ...

    def stop(self) -> None:
        """Release all resources. May be called after a failure, and more than once."""
        ...


class Backend(WorkerTerms, Protocol):
    """Settings of the place where burst workers run. Cloudpickle must be able to pickle it: it travels to
    couriers like a function of the user, so its modules must be there too. Its credentials travel with it.
    """

    def start(
        self, flow: FlowPlan, run_id: str, access: Access, faults: tuple[Fault, ...] = ()
    ) -> BurstWorkers:
        """Start burst workers. Called in the driver, in a thread of its own, so it may take its time.
        `faults` are for burst workers on this machine.

        Raises an error if they cannot run this flow. The query then goes on without them.
        """
        ...

    def connect(self, reach: str, access: Access) -> Invoker:
        """Connect to the burst workers with this reach text. Called in couriers, once per process and text.
        `access` has the token and the certificates of the run."""
        ...


_INTERFACE = ("at_most", "price", "speed", "start_ms", "start", "connect")


def checked(functions: object) -> None:
    """Raise an error if an object cannot be used as a `Backend`."""
    kind = type(functions).__name__
    if missing := [name for name in _INTERFACE if not hasattr(functions, name)]:
        raise SettingError(
            f"functions={kind}(...) has no {', '.join(missing)}",
            hint="use ps.LocalFunctions, ps.HttpFunctions or ps.LambdaFunctions, or a class with all of "
            "penstock.offload.backends.backend.Backend",
        )
    try:
        cloudpickle.dumps(functions)
    except Exception as failed:
        raise SettingError(
            f"functions={kind}(...) cannot be sent to couriers: {failed}",
            hint="keep connections, locks and threads out of it, and make them in start and connect",
        ) from failed


_lock = threading.Lock()
_invokers: dict[str, Invoker] = {}
"""Reach text -> invoker. A Python worker keeps them between tasks. A new run has a new text."""
_KEPT = 8
"""Most invokers that a Python worker keeps. The least recently used is closed first."""


def invoker_at(reach: str, access: Access) -> Invoker:
    """The invoker of a reach text. It is made once per process, by the backend that came with the access."""
    with _lock:
        if reach in _invokers:
            _invokers[reach] = _invokers.pop(reach)  # most recently used
        else:
            backend: Backend | None = access.functions
            if backend is None:
                raise ProtocolError(
                    "a plan names functions, but this courier has no backend for them"
                )
            _invokers[reach] = backend.connect(reach, access)
            if len(_invokers) > _KEPT:
                _invokers.pop(next(iter(_invokers))).close()
        return _invokers[reach]


def keep_invoker(reach: str, invoker: Invoker) -> None:
    """Let `invoker_at` return this one for a reach text, for burst workers in the process itself."""
    with _lock:
        _invokers[reach] = invoker


def remove_invoker(reach: str) -> None:
    """Forget what `keep_invoker` has kept."""
    with _lock:
        _invokers.pop(reach, None)
