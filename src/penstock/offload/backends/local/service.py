"""The service process of local burst workers: takes requests from couriers, and passes them to burst workers.

    python -m penstock.offload.backends.local.service < order

The order comes on standard input, which then stays open. When it is closed, the driver is gone or needs no
more burst workers, and the service ends with all of them. It prints one line, its location.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict
from importlib import import_module
from typing import IO, Any

import pyarrow as pa
import pyarrow.flight as fl

from penstock.faults import arm
from penstock.host.rehearsal import rehearse
from penstock.offload.backends.backend import WorkerFailed
from penstock.offload.backends.local.backend import INVOKE, LENGTH, TIMEOUT, ServiceOrder
from penstock.offload.backends.local.fork_server import ForkServerClient, RequestLoop
from penstock.offload.backends.local.pool import WorkerPool
from penstock.offload.backends.messages import Request
from penstock.offload.backends.worker import BurstWorker
from penstock.wire.access import Access
from penstock.wire.addresses import Listen
from penstock.wire.flight import TokenServer, telling_errors

_TEND_S = 0.1
"""Seconds between two calls of the pool's `tend`."""


class WorkerService(TokenServer):
    """Takes requests from couriers, and commands from the driver."""

    def __init__(self, pool: WorkerPool, listen: Listen, access: Access) -> None:
        super().__init__(listen, access)
        self._pool = pool
        self.actions = {
            "used": lambda _: asdict(pool.used),
            "warm": lambda order: pool.warm(order["count"]),
            "up": lambda _: list(pool.up.items()),
        }

    def do_action(self, context: Any, action: fl.Action) -> Iterable[Any]:
        if action.type != INVOKE:
            return super().do_action(context, action)
        with telling_errors():
            self._access.must_fit(action.body.size)
            body = action.body.to_pybytes()
            (timeout_ms,) = TIMEOUT.unpack_from(body)
            answer = self._pool.invoke(body[TIMEOUT.size :], timeout_ms)
            return [fl.Result(pa.py_buffer(answer))]


def serve(orders: IO[bytes]) -> None:
    """Read the order from `orders`, and serve until that is closed."""
    # the output of user code must not fill the pipe to the driver
    to_driver = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    (length,) = LENGTH.unpack(orders.read(LENGTH.size))
    order: ServiceOrder = pickle.loads(orders.read(length))
    sys.path[:] = order.path
    pa.set_cpu_count(1)
    flow, faults = pickle.loads(order.flow)
    arm(faults)
    worker = BurstWorker(flow, order.settings.speed)
    rehearse()
    worker.rehearse()
    # Arrow imports it when user code first makes an array of Python objects, which takes half a second.
    import_module("pandas")

    def answer(body: bytes) -> tuple[int, bytes]:
        return Request.from_bytes(body).rows, worker.answer(body)

    settings = order.settings
    loop = RequestLoop(answer, settings.start_ms, settings.speed)
    fork_server = ForkServerClient(loop, settings.start_ms)
    pool = WorkerPool(fork_server.start, settings.at_most, settings.idle_ms)
    pool.warm(settings.keep_warm)
    server = WorkerService(pool, settings.listen or Listen(settings.address), order.access)
    print(server.location, file=to_driver, flush=True)
    ended = threading.Event()
    threading.Thread(target=_await_end, args=(orders, ended), daemon=True).start()
    while not ended.wait(_TEND_S):
        with suppress(WorkerFailed):  # the next request gets the error
            pool.tend()
    # The fork server notices that this process is gone, and kills all burst workers.
    os._exit(0)


def _await_end(orders: IO[bytes], ended: threading.Event) -> None:
    orders.read()
    ended.set()


if __name__ == "__main__":
    serve(sys.stdin.buffer)
