"""The process behind local functions: couriers ask it, and it has functions answer.

    python -m penstock.offload.backends.service < order

The order comes on standard input, which then stays open: when it ends the driver is gone or wants no
more functions, and the service ends with all of them. Its location is the one line that it prints.
"""

from __future__ import annotations

import os
import pickle
import struct
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import IO, Any

import pyarrow as pa
import pyarrow.flight as fl

from penstock.faults import arm
from penstock.host.rehearsal import rehearse
from penstock.offload.backends.fork_server import Body, fork_nursery
from penstock.offload.backends.messages import Request
from penstock.offload.backends.pool import Midwife, Pool
from penstock.offload.backends.port import FunctionFailed
from penstock.offload.backends.work import Work
from penstock.wire.flight import TokenServer, telling_errors

INVOKE = "invoke"
TIMEOUT = struct.Struct("<I")
"""Before a request: the milliseconds that it may take."""
LENGTH = struct.Struct("<Q")
"""Before an order."""
_TEND_S = 0.1


@dataclass(frozen=True)
class ServiceOrder:
    """What the driver says first, pickled: the driver and the service are one user's."""

    path: tuple[str, ...]
    """Where Python finds the user's modules."""
    flow: bytes
    """The flow's plan and its faults, by cloudpickle."""
    token: str
    at_most: int
    warm: int
    idle_ms: int
    start_ms: int
    speed: float


class FunctionService(TokenServer):
    """Takes requests from couriers, and orders from the driver."""

    def __init__(self, pool: Pool, token: str) -> None:
        super().__init__("127.0.0.1", 0, token)
        self._pool = pool
        self.actions = {"used": self._used, "warm": self._warm, "up": self._up}

    def do_action(self, context: Any, action: fl.Action) -> Iterable[Any]:
        if action.type != INVOKE:
            return super().do_action(context, action)
        with telling_errors():
            body = action.body.to_pybytes()
            (timeout_ms,) = TIMEOUT.unpack_from(body)
            answer = self._pool.invoke(body[TIMEOUT.size :], timeout_ms)
            return [fl.Result(pa.py_buffer(answer))]

    def _used(self, _: dict[str, Any]) -> dict[str, Any]:
        return asdict(self._pool.used)

    def _warm(self, told: dict[str, Any]) -> None:
        self._pool.warm(told["count"])

    def _up(self, _: dict[str, Any]) -> list[list[Any]]:
        return [list(one) for one in self._pool.up.items()]


def serve(orders: IO[bytes]) -> None:
    """Serve until there are no more orders to hear."""
    # what user code prints must not fill the pipe to the driver
    told = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    (length,) = LENGTH.unpack(orders.read(LENGTH.size))
    order: ServiceOrder = pickle.loads(orders.read(length))
    sys.path[:] = order.path
    pa.set_cpu_count(1)
    flow, faults = pickle.loads(order.flow)
    arm(faults)
    work = Work(flow)
    rehearse()
    work.rehearse()
    # Arrow imports it when user code first makes an array of Python's own values: half a second.
    import_module("pandas")

    def answer(body: bytes) -> tuple[int, bytes]:
        return Request.from_bytes(body).rows, work.answer(body)

    nursery = fork_nursery(Body(answer, order.start_ms, order.speed))
    pool = Pool(Midwife(nursery, order.start_ms).start, order.at_most, order.idle_ms)
    pool.warm(order.warm)
    server = FunctionService(pool, order.token)
    print(server.location, file=told, flush=True)
    ended = threading.Event()
    threading.Thread(target=_heard_out, args=(orders, ended), daemon=True).start()
    while not ended.wait(_TEND_S):
        with suppress(FunctionFailed):  # those that ask meanwhile hear of it
            pool.tend()
    # The nursery sees this process go, and ends the functions, whatever they are at.
    os._exit(0)


def _heard_out(orders: IO[bytes], ended: threading.Event) -> None:
    orders.read()
    ended.set()


if __name__ == "__main__":
    serve(sys.stdin.buffer)
