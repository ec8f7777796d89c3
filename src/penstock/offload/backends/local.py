"""Functions as processes on the driver's machine: the embedded default.

A service process has the flow and all kernels loaded, and functions are forked off a twin of it: so
a cold start is a matter of milliseconds, and a function that is idle costs nothing but memory that it
mostly shares. For trials, `start_ms`, `speed` and `price` make them stand for others.
"""

from __future__ import annotations

import json
import os
import pickle
import selectors
import signal
import subprocess
import sys
import threading
import weakref
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

import cloudpickle
import pyarrow as pa
import pyarrow.flight as fl

from penstock import errors
from penstock.errors import PenstockError, SettingError
from penstock.faults import Fault
from penstock.offload.backends.port import FunctionFailed, Usage
from penstock.offload.backends.price import FunctionPrice
from penstock.offload.backends.service import INVOKE, LENGTH, TIMEOUT, ServiceOrder
from penstock.wire.flight import Endpoint

if TYPE_CHECKING:
    from penstock.plan.steps import FlowPlan

_UP_S = 120.0
"""How long the service may take to load everything."""
_CALL_MS = 5_000
_GRACE_S = 5.0


@dataclass(frozen=True)
class LocalFunctions:
    """Functions on this machine. See `functions.port.Functions`.

    >>> LocalFunctions(at_most=4, speed=0.5).price.memory_mb
    1769
    """

    at_most: int = 16
    """At a time; requests beyond that are refused."""
    keep_warm: int = 0
    """So many are ready from the start; `Started.warm` changes it."""
    idle_ms: int = 60_000
    """One that was idle for so long, and need not be kept warm, is let go."""
    start_ms: int = 0
    """What a cold start takes beyond what it takes here."""
    speed: float = 1.0
    """Relative to a host."""
    price: FunctionPrice = field(default_factory=FunctionPrice)

    def __post_init__(self) -> None:
        if self.at_most < 1 or self.speed <= 0:
            raise SettingError(
                "functions must be at least 1 and have a speed above 0",
                hint="leave at_most and speed out, or set them higher",
            )

    def start(
        self, flow: FlowPlan, run_id: str, token: str, faults: tuple[Fault, ...] = ()
    ) -> LocalStarted:
        order = ServiceOrder(
            tuple(sys.path),
            cloudpickle.dumps((flow, faults)),
            token,
            self.at_most,
            self.keep_warm,
            self.idle_ms,
            self.start_ms,
            self.speed,
        )
        return LocalStarted(order, self.price)


@dataclass(frozen=True)
class LocalReach:
    """Where the service is, and the run's token. See `functions.port.Reach`."""

    location: str
    token: str

    def connect(self) -> LocalInvoker:
        return LocalInvoker(self)

    def to_text(self) -> str:
        return json.dumps({"kind": "local"} | asdict(self))


class LocalInvoker:
    """Asks the service. See `functions.port.Invoker`."""

    request_limit: int | None = None

    def __init__(self, reach: LocalReach) -> None:
        unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        self._client = fl.FlightClient(reach.location, generic_options=unlimited)
        self._headers = [(b"authorization", f"Bearer {reach.token}".encode())]

    def invoke(self, request: bytes, timeout_ms: int) -> bytes:
        action = fl.Action(INVOKE, TIMEOUT.pack(timeout_ms) + request)
        options = fl.FlightCallOptions(timeout=timeout_ms / 1000, headers=self._headers)
        try:
            [result] = self._client.do_action(action, options)
        except fl.FlightTimedOutError:
            message = f"a function gave no answer within {timeout_ms} ms"
            raise FunctionFailed(message, failure="timeout") from None
        except (pa.ArrowException, OSError) as failed:
            told = errors.find(str(failed))
            if isinstance(told, FunctionFailed):
                raise told from None
            raise FunctionFailed(f"the functions' service gave no answer: {failed}") from failed
        answer: bytes = result.body.to_pybytes()
        return answer

    def taken(self) -> Usage:
        """The service counts by itself."""
        return Usage()


class LocalStarted:
    """The service of one run. See `functions.port.Started`. It ends with this process, however that
    ends."""

    def __init__(self, order: ServiceOrder, price: FunctionPrice) -> None:
        self._price, self._last = price, Usage()
        # in a session of its own: Ctrl-C is for the driver, which ends it then
        self._process = subprocess.Popen(
            [sys.executable, "-m", "penstock.offload.backends.service"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._lock = threading.Lock()
        self._ends = weakref.finalize(self, _end, self._process)
        self.reach = LocalReach(self._told(order), order.token)
        self._service = Endpoint(self.reach.location, order.token)

    def warm(self, count: int) -> None:
        with suppress(PenstockError):  # a service that is gone keeps nothing warm
            self._service.call("warm", _CALL_MS, count=count)

    def note(self, usage: Usage) -> None:
        """The service counts by itself."""

    def used(self) -> Usage:
        with suppress(PenstockError), self._lock:
            used = Usage(**self._service.call("used", _CALL_MS))
            money = self._price.money(used.invocations, used.seconds)
            self._last = replace(used, money=money)
        return self._last

    def up(self) -> dict[int, str]:
        """The functions that are there: process number -> "idle" or "busy"."""
        return dict(self._service.call("up", _CALL_MS))

    def stop(self) -> None:
        if self._ends.alive:
            self.used()
        self._ends()

    def _told(self, order: ServiceOrder) -> str:
        """Give the order, and hear where the service is."""
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
                "the service for local functions did not come up",
                hint="its error is printed above; are the flow's functions and modules importable?",
            )
        return location


def _end(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_S)
    # Functions end with the service, unless they are stopped. It leads their group.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
