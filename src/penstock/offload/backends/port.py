"""The port to functions: what a place that runs them must offer. All of Penstock goes through it.

The driver starts functions for a flow and gets a `Started`. Its `reach` goes to the couriers as text
within the plan of each epoch; `reach.invoker_at` makes an `Invoker` of it there. A function gets the
bytes of a request and gives those of an answer (see `functions.messages`). It knows of no host and
no other function, and accepts no connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

from penstock.errors import PenstockError
from penstock.offload.backends.price import FunctionPrice
from penstock.wire.report import Usage as Usage

if TYPE_CHECKING:
    from penstock.plan.steps import FlowPlan

Failure = Literal["failed", "timeout", "throttled", "too_large"]


class FunctionFailed(PenstockError):
    """An invocation gave no answer. Nothing has changed: the rows can go another way.

    >>> FunctionFailed("all 8 functions are busy", failure="throttled").failure
    'throttled'
    """

    def __init__(self, message: str, *, hint: str = "", failure: Failure = "failed") -> None:
        self.failure = failure
        super().__init__(message, hint=hint)

    def facts(self) -> dict[str, str]:
        return super().facts() | {"failure": self.failure}


class Invoker(Protocol):
    """A courier's way to functions. Safe to use from several threads; a worker process keeps it."""

    request_limit: int | None
    """Bytes that a request may have; None: any number."""

    def invoke(self, request: bytes, timeout_ms: int) -> bytes:
        """Let one function answer a request. Blocks at most about as long as is said.

        Raises `FunctionFailed`. Nothing is tried twice here: the caller has another way.
        """
        ...

    def taken(self) -> Usage:
        """What was used through this invoker since it was last asked, as far as `Started` does not
        see it by itself: to be told to `Started.note`."""
        ...


class Reach(Protocol):
    """How couriers reach the functions of a run. A value; `to_text` goes into the plan of an epoch."""

    def connect(self) -> Invoker: ...

    def to_text(self) -> str: ...


class Started(Protocol):
    """The functions of one run, as the driver holds them. Safe to use from several threads."""

    @property
    def reach(self) -> Reach: ...

    def warm(self, count: int) -> None:
        """From now on keep so many functions ready, or busy. Does not wait for them."""
        ...

    def note(self, usage: Usage) -> None:
        """A courier tells what it used (see `Invoker.taken`)."""
        ...

    def used(self) -> Usage:
        """All that was used so far."""
        ...

    def stop(self) -> None:
        """Let go of everything. Also after a failure, and more than once."""
        ...


class Functions(Protocol):
    """What a user gives: where functions run, as settings that can be pickled."""

    @property
    def at_most(self) -> int:
        """Functions at a time."""
        ...

    @property
    def price(self) -> FunctionPrice: ...

    @property
    def speed(self) -> float:
        """Of a function, relative to a host: Sponge's rho."""
        ...

    @property
    def start_ms(self) -> int:
        """What a cold start takes, as far as it matters: the policy does not count on those that
        are still starting."""
        ...

    def start(
        self, flow: FlowPlan, run_id: str, token: str, host_rate: float | None = None
    ) -> Started:
        """Bring up what is needed, in the driver. `host_rate` is for trials: records a second that
        hosts are held to, so that functions are slow in proportion."""
        ...
