"""The interface of a backend, in which burst workers run.

    Backend       the user's setting `functions=`
    BurstWorkers  the driver's handle of the burst workers of one run
    Invoker       a courier's connection to them

The driver starts a backend's burst workers for a flow. Couriers get a text without secrets in the plan of
each epoch, and `invoker_at` makes an `Invoker` of it. A burst worker gets the bytes of a request and returns
those of an answer (see `messages`). It knows no host and no other burst worker, and accepts no connections.
"""

from __future__ import annotations

import json
import pkgutil
import threading
from typing import TYPE_CHECKING, Literal, Protocol

from penstock.control.elastic import WorkerTerms
from penstock.errors import PenstockError, ProtocolError
from penstock.faults import Fault
from penstock.wire.access import Access
from penstock.wire.report import Usage

if TYPE_CHECKING:
    from penstock.plan.steps import FlowPlan

INVOKERS = {
    "local": "penstock.offload.backends.local.backend:LocalInvoker",
    "lambda": "penstock.offload.backends.aws.backend:LambdaInvoker",
}
"""Kind of backend -> its `Invoker` class, imported when first needed. It is called with the run's access and
the facts of a reach text. A new backend adds an entry here."""

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
        """Text by which couriers connect to them with `invoker_at`."""
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
    """Settings of the place where burst workers run. Picklable."""

    def start(
        self, flow: FlowPlan, run_id: str, access: Access, faults: tuple[Fault, ...] = ()
    ) -> BurstWorkers:
        """Start burst workers. Called in the driver. `faults` are for burst workers on this machine."""
        ...


_lock = threading.Lock()
_invokers: dict[str, Invoker] = {}
"""Reach text -> invoker. A Python worker keeps them between tasks. A new run has a new text."""
_KEPT = 8
"""Most invokers that a Python worker keeps. The least recently used is closed first."""


def reach_text(kind: str, **facts: object) -> str:
    """The text from which `invoker_at` makes an `Invoker` of this kind with these arguments."""
    return json.dumps({"kind": kind} | facts)


def invoker_at(reach: str, access: Access) -> Invoker:
    """The invoker that a reach text describes. It is made once per process, with the access of its run."""
    with _lock:
        if reach in _invokers:
            _invokers[reach] = _invokers.pop(reach)  # most recently used
        else:
            facts = json.loads(reach)
            kind = facts.pop("kind", None)
            if kind not in INVOKERS:
                raise ProtocolError(f"unknown kind of functions in a plan: {kind!r}")
            _invokers[reach] = pkgutil.resolve_name(INVOKERS[kind])(access=access, **facts)
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
