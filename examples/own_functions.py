"""A backend of your own: functions (burst workers) behind a plain socket.

Shows what Penstock needs: settings that can be pickled (`SocketFunctions`), the driver's handle
(`SocketWorkers`), and a courier's connection (`SocketInvoker`). Here burst workers are threads of the
driver; yours run wherever `BurstWorker(flow)` can be made, and answer `bytes -> bytes`.
Run it on this machine for 40 seconds: python examples/own_functions.py
"""

import hashlib
import hmac
import socket
import socketserver
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field, replace

import penstock as ps
from penstock.offload.backends.backend import WorkerFailed
from penstock.offload.backends.remote import UsageMeter
from penstock.offload.backends.worker import BurstWorker
from penstock.wire.report import Usage

DONE, FAILED, BUSY = b"+", b"-", b"!"
SIGNED = hashlib.sha256().digest_size


@dataclass(frozen=True)
class SocketFunctions:
    """The settings. They travel to couriers like a function of yours."""

    at_most: int = 4
    address: str = "127.0.0.1"
    speed: float = 1.0
    start_ms: int = 0
    price: ps.FunctionPrice = field(default_factory=ps.FunctionPrice)

    def start(self, flow, run_id, access, faults=()):
        return SocketWorkers(self, BurstWorker(flow), access.token)

    def connect(self, reach, access):
        return SocketInvoker(reach, access.token)


class SocketWorkers:
    """The driver's handle: listens, and answers each connection in a thread."""

    def __init__(self, settings: SocketFunctions, worker: BurstWorker, key: str) -> None:
        self._settings, self._worker, self._key = settings, worker, key
        self._free, self._meter, self._used = (
            threading.Semaphore(settings.at_most),
            UsageMeter(),
            Usage(),
        )
        outer = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                self.wfile.write(outer._reply(self.rfile.read()))

        worker.rehearse()
        self._server = socketserver.ThreadingTCPServer((settings.address, 0), Handler)
        self.reach = "{}:{}".format(*self._server.server_address)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def warm(self, count: int) -> None:
        """Do nothing: threads need not be started ahead."""

    def note(self, usage: Usage) -> None:
        """Do nothing: this process counts the usage itself."""

    def used(self) -> Usage:
        self._used += self._meter.taken()
        used = self._used
        return replace(used, money=self._settings.price.money(used.invocations, used.seconds))

    def stop(self) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()

    def _reply(self, message: bytes) -> bytes:
        signature, request = message[:SIGNED], message[SIGNED:]
        if not hmac.compare_digest(signature, signed(self._key, request)):
            return FAILED + b"the signature is wrong"
        if not self._free.acquire(blocking=False):
            self._meter.count(throttled=1)
            return BUSY
        began = time.perf_counter()
        try:
            reply = DONE + self._worker.answer(request)
        except Exception as failed:
            reply = FAILED + f"{type(failed).__name__}: {failed}".encode()
        finally:
            self._free.release()
        took_s, failed = time.perf_counter() - began, reply[:1] == FAILED
        self._meter.count(invocations=1, seconds=took_s, failed=int(failed))
        return reply


class SocketInvoker:
    """A courier's connection: one socket for each request."""

    request_limit = None

    def __init__(self, reach: str, key: str) -> None:
        address, port = reach.split(":")
        self._at, self._key = (address, int(port)), key

    def invoke(self, request: bytes, timeout_ms: int) -> bytes:
        try:
            with socket.create_connection(self._at, timeout_ms / 1000) as there:
                there.sendall(signed(self._key, request) + request)
                there.shutdown(socket.SHUT_WR)
                reply = there.makefile("rb").read()
        except TimeoutError as late:
            raise WorkerFailed("a burst worker was too slow", failure="timeout") from late
        except OSError as gone:
            raise WorkerFailed(f"the driver did not answer: {gone}") from gone
        if reply[:1] == BUSY:
            raise WorkerFailed("all burst workers are busy", failure="throttled")
        if reply[:1] != DONE:
            raise WorkerFailed(reply[1:].decode())
        return reply[1:]

    def taken(self) -> Usage:
        return Usage()

    def close(self) -> None:
        """Do nothing: no connection is kept."""


def signed(key: str, request: bytes) -> bytes:
    """The signature of a request: only those who know the run's token can make it."""
    return hmac.new(key.encode(), request, hashlib.sha256).digest()


def main(seconds: float = 40) -> None:
    from bursts import SLOW_HOSTS, counted  # the example beside this one

    spark = ps.session("own-functions", cores=6)
    lines = spark.readStream.format("rate").option("rowsPerSecond", 5_000).load()
    messages = lines.selectExpr("concat('a', value % 1000, ' b', value % 5000) as text")
    flow = counted(messages).elastic(at_most=2, functions=SocketFunctions(at_most=2))
    with tempfile.TemporaryDirectory() as checkpoint:
        query = flow.start(ps.to("noop"), checkpoint=checkpoint, hosts=1, settings=SLOW_HOSTS)
        query.await_termination(timeout=seconds)
        for epoch in query.progress:
            print(f"epoch {epoch.epoch}: {epoch.rows} rows, {epoch.functions.rows} in functions")
        query.stop()


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
