"""The port to functions: what a place that runs them must offer. All of Penstock goes through it.

The driver starts functions for a flow and gets a `Started`. Its `reach` goes to the couriers as text
within the plan of each epoch; `reach.invoker_at` makes an `Invoker` of it there. A function gets the
bytes of a request and gives those of an answer (see `functions.messages`). It knows of no host and
no other function, and accepts no connection.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from penstock.errors import PenstockError
from penstock.faults import Fault
from penstock.offload.backends.price import FunctionPrice

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


@dataclass(frozen=True)
class Usage:
    """What functions have done, and what it cost.

    >>> Usage(invocations=2, seconds=0.5) + Usage(invocations=1, cold_starts=1)
    Usage(invocations=3, seconds=0.5, cold_starts=1, cold_start_ms=0.0, failed=0, throttled=0, money=0.0)
    """

    invocations: int = 0
    """That a function took up, also those that failed then."""
    seconds: float = 0.0
    """That functions are paid for, added up."""
    cold_starts: int = 0
    cold_start_ms: float = 0.0
    """What those took, added up."""
    failed: int = 0
    """Invocations that a function took up and gave no answer to, in time or at all."""
    throttled: int = 0
    """Invocations that were refused since too many functions were busy; they cost nothing."""
    money: float = 0.0
    """US dollars."""

    def __add__(self, other: Usage) -> Usage:
        mine, others = vars(self), vars(other)
        return Usage(**{name: mine[name] + others[name] for name in mine})


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
        self, flow: FlowPlan, run_id: str, token: str, faults: tuple[Fault, ...] = ()
    ) -> Started:
        """Bring up what is needed, in the driver. `faults` are for those that run on this machine."""
        ...
