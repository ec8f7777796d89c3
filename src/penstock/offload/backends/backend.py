"""The port to burst workers: what a backend, a place where they run, must offer.

    Backend       what a user configures as `functions=`
    BurstWorkers  the burst workers of one run, as the driver holds them
    Invoker       a courier's connection to them

The driver starts a backend's burst workers for a flow. How to reach them goes to the couriers as a text
in the plan of each epoch, without secrets; `invoker_at` makes an `Invoker` of it there. A burst worker
gets the bytes of a request and returns those of an answer (see `messages`). It knows of no host and no
other burst worker, and accepts no connection.
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
"""Kind of backend -> its `Invoker` class, imported when first needed and called with the
run's access and the facts of a reach text. A new backend is one more entry."""

Failure = Literal["failed", "timeout", "throttled", "too_large"]


class WorkerFailed(PenstockError):
    """An invocation got no answer. Nothing has changed: the rows can go another way.

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
    """Bytes that a request may have, a larger one is refused; None: any number."""

    def invoke(self, request: bytes, timeout_ms: int) -> bytes:
        """Have one burst worker answer a request. Blocks for about `timeout_ms` at most.

        Raises `WorkerFailed`. Nothing is tried twice: the caller has another way for its rows.
        """
        ...

    def taken(self) -> Usage:
        """Usage through this invoker since the last call, for `BurstWorkers.note`. Empty where the
        backend counts by itself."""
        ...

    def close(self) -> None:
        """Let go of its connections; calls under way may fail."""
        ...


class BurstWorkers(Protocol):
    """The burst workers of one run, as the driver holds them. Safe to use from several threads."""

    @property
    def reach(self) -> str:
        """How couriers reach them: what `invoker_at` takes."""
        ...

    def warm(self, count: int) -> None:
        """Keep this many ready or busy from now on. Does not wait for them."""
        ...

    def note(self, usage: Usage) -> None:
        """Add what a courier reports of its usage (see `Invoker.taken`)."""
        ...

    def used(self) -> Usage:
        """All usage so far."""
        ...

    def stop(self) -> None:
        """Release everything. May be called after a failure, and more than once."""
        ...


class Backend(WorkerTerms, Protocol):
    """Where burst workers run, as settings that can be pickled."""

    def start(
        self, flow: FlowPlan, run_id: str, access: Access, faults: tuple[Fault, ...] = ()
    ) -> BurstWorkers:
        """Start what is needed, in the driver. `faults` are for burst workers of this machine."""
        ...


_lock = threading.Lock()
_invokers: dict[str, Invoker] = {}
"""A warm Python worker keeps them between tasks. A new run has a new text."""
_KEPT = 8
"""Invokers that a Python worker keeps. Those that were not used for longest are closed first."""


def reach_text(kind: str, **facts: object) -> str:
    """The text from which `invoker_at` makes an `Invoker` of this kind with these arguments."""
    return json.dumps({"kind": kind} | facts)


def invoker_at(reach: str, access: Access) -> Invoker:
    """The invoker that a reach text describes, made once in a process with the access of its run."""
    with _lock:
        if reach in _invokers:
            _invokers[reach] = _invokers.pop(reach)  # the last one to go
        else:
            facts = json.loads(reach)
            kind = facts.pop("kind", None)
            if kind not in INVOKERS:
                raise ProtocolError(f"a plan names functions of an unknown kind: {kind!r}")
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
