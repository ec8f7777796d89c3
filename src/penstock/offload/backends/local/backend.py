"""Local burst workers: the user's settings, the driver's handle and the courier's connection.

A service process loads the flow and all kernels, and burst workers are forked from a copy of it. So a cold
start takes milliseconds, and an idle burst worker costs only memory, most of which is shared.
"""

from __future__ import annotations

import os
import pickle
import selectors
import signal
import struct
import subprocess
import sys
import threading
import weakref
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

import cloudpickle
import pyarrow as pa
import pyarrow.flight as fl

from penstock import errors
from penstock.control.money import FunctionPrice
from penstock.errors import PenstockError, SettingError
from penstock.faults import Fault
from penstock.offload.backends.backend import WorkerFailed
from penstock.wire.access import Access
from penstock.wire.addresses import Listen
from penstock.wire.flight import Endpoint, client
from penstock.wire.report import Usage

if TYPE_CHECKING:
    from penstock.plan.steps import FlowPlan

T = TypeVar("T")

INVOKE = "invoke"
TIMEOUT = struct.Struct("<I")
"""Prefix of a request: its timeout in milliseconds."""
LENGTH = struct.Struct("<Q")
"""Prefix of an order: its length in bytes."""

_UP_S = 120.0
"""Timeout for the service to load everything, in seconds."""
_CALL_MS = 5_000
"""Timeout of a call to the service, in milliseconds."""
_GRACE_S = 5.0
"""Seconds that the service has to end by itself."""


@dataclass(frozen=True)
class LocalFunctions:
    """Functions (burst workers) on this machine. See `Backend`.

    >>> LocalFunctions(at_most=4, speed=0.5).price.memory_mb
    1769
    """

    at_most: int = 16
    """Most burst workers at the same time; requests beyond that are refused."""
    keep_warm: int = 0
    """Number of burst workers that are kept ready from the start; `BurstWorkers.warm` changes it."""
    idle_ms: int = 60_000
    """Idle milliseconds after which a burst worker is ended, unless it is kept warm."""
    start_ms: int = 0
    """Milliseconds that are added to each cold start, to emulate a slower backend."""
    speed: float = 1.0
    """Speed relative to a host."""
    address: str = "127.0.0.1"
    """Address of this machine for couriers. On a cluster, it is the address at which executors reach the
    driver, and need not be set."""
    listen: Listen | None = field(default=None, repr=False)
    """Address and ports to listen on, set by the flow; None for `address` and any port."""
    price: FunctionPrice = field(default_factory=FunctionPrice)

    def __post_init__(self) -> None:
        if self.at_most < 1 or self.speed <= 0:
            raise SettingError(
                f"at_most is {self.at_most} and speed is {self.speed}",
                hint="use 1 or more for at_most, and a speed above 0",
            )

    def start(
        self, flow: FlowPlan, run_id: str, access: Access, faults: tuple[Fault, ...] = ()
    ) -> LocalWorkers:
        order = ServiceOrder(tuple(sys.path), cloudpickle.dumps((flow, faults)), access, self)
        return LocalWorkers(order, run_id)

    def connect(self, reach: str, access: Access) -> LocalInvoker:
        location, _ = reach.split()
        return LocalInvoker(access, location)


@dataclass(frozen=True)
class ServiceOrder:
    """The driver's first message to the service, pickled: both processes belong to the same user."""

    path: tuple[str, ...]
    """Python's module search path, with the user's modules."""
    flow: bytes
    """The flow's plan and its faults, pickled by cloudpickle."""
    access: Access
    settings: LocalFunctions


def reachable(backend: T, listen: Listen) -> T:
    """The backend, with this address if its burst workers run on this machine."""
    return replace(backend, listen=listen) if isinstance(backend, LocalFunctions) else backend


class LocalInvoker:
    """A connection to the service. See `Invoker`."""

    def __init__(self, access: Access, location: str) -> None:
        self._client, self._headers = client(location, access), access.headers
        self.request_limit: int | None = access.most_bytes - TIMEOUT.size

    def invoke(self, request: bytes, timeout_ms: int) -> bytes:
        action = fl.Action(INVOKE, TIMEOUT.pack(timeout_ms) + request)
        options = fl.FlightCallOptions(timeout=timeout_ms / 1000, headers=self._headers)
        try:
            [result] = self._client.do_action(action, options)
        except fl.FlightTimedOutError:
            message = f"a burst worker did not answer within {timeout_ms} ms"
            raise WorkerFailed(message, failure="timeout") from None
        except (pa.ArrowException, OSError) as failed:
            error = errors.find(str(failed))
            if isinstance(error, WorkerFailed):
                raise error from None
            message = f"the service of the burst workers did not answer: {failed}"
            raise WorkerFailed(message) from failed
        answer: bytes = result.body.to_pybytes()
        return answer

    def taken(self) -> Usage:
        """Empty: the service counts the usage itself."""
        return Usage()

    def close(self) -> None:
        self._client.close()


class LocalWorkers:
    """The service of one run. See `BurstWorkers`. It ends with this process, however that ends."""

    def __init__(self, order: ServiceOrder, run_id: str) -> None:
        self._price, self._last = order.settings.price, Usage()
        # in its own session: Ctrl-C goes to the driver only, which then ends the service
        self._process = subprocess.Popen(
            [sys.executable, "-m", "penstock.offload.backends.local.service"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._lock = threading.Lock()
        self._ends = weakref.finalize(self, _end, self._process)
        location = self._send(order)
        # the run distinguishes services that used the same location one after the other
        self.reach = f"{location} {run_id}"
        self._service = Endpoint(location, order.access)

    def warm(self, count: int) -> None:
        with suppress(PenstockError), self._lock:  # a service that is gone has nothing to keep warm
            if self._ends.alive:
                self._service.call("warm", _CALL_MS, count=count)

    def note(self, usage: Usage) -> None:
        """Do nothing: the service counts the usage itself."""

    def used(self) -> Usage:
        with suppress(PenstockError), self._lock:
            if self._ends.alive:
                used = Usage(**self._service.call("used", _CALL_MS))
                money = self._price.money(used.invocations, used.seconds)
                self._last = replace(used, money=money)
        return self._last

    def up(self) -> dict[int, str]:
        """Process id of each running burst worker -> "idle" or "busy"."""
        return dict(self._service.call("up", _CALL_MS))

    def stop(self) -> None:
        """End the service and the connection to it. `used` stays available."""
        self.used()
        with self._lock:
            self._ends()
            self._service.close()

    def _send(self, order: ServiceOrder) -> str:
        """Send the order to the service. Returns the service's location."""
        body = pickle.dumps(order)
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        with suppress(BrokenPipeError):
            stdin.write(LENGTH.pack(len(body)) + body)
            stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            location = stdout.readline().decode().strip() if selector.select(_UP_S) else ""
        if not location:
            self._ends()
            raise SettingError(
                "the service for local functions (burst workers) did not start",
                hint="see its error above; check that the flow's functions and modules can be imported",
            )
        return location


def _end(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_S)
    # Burst workers end with the service, unless they are stopped (SIGSTOP). It leads their process group.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
