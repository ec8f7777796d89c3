"""A proxy in front of an S3 server that injects faults.

In the same process, use `proxy.order(S3Fault("throttle", share=0.2))` and `proxy.clear()`. Other processes
use HTTP: PUT a JSON list of faults to `proxy.control`, DELETE to clear them, GET for the counts of requests
and faults.
"""

from __future__ import annotations

import random
import re
import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal, get_args
from urllib.parse import urlsplit

from penstock import codec

Kind = Literal[
    "slow",  # the response begins `seconds` later
    "trickle",  # the body of the response is sent in pieces, over `seconds`
    "hang",  # no response for `seconds`, then the connection is cut; the request is not executed
    "error",  # `status` (500, 502, 503); the request is not executed
    "throttle",  # 503 SlowDown; the request is not executed
    "reset",  # the connection is cut; the request is not executed
    "lost",  # the request is executed, but the connection is cut before the response
    "cut",  # the connection is cut in the middle of the response's body
    "denied",  # 403 AccessDenied
    "expired",  # 400 ExpiredToken
    "skewed",  # 403 RequestTimeTooSkewed
]
_ANSWERS = {
    "throttle": (503, "SlowDown"),
    "denied": (403, "AccessDenied"),
    "expired": (400, "ExpiredToken"),
    "skewed": (403, "RequestTimeTooSkewed"),
}
_ERRORS = {500: "InternalError", 502: "BadGateway", 503: "ServiceUnavailable"}
_CONTROL = "/.faults"
"""Path of the control interface; no bucket can have this name."""
_HOP_BY_HOP = ("connection", "expect", "keep-alive", "transfer-encoding")
_AT_ONCE = struct.pack("ii", 1, 0)
"""SO_LINGER value with which closing a socket resets its connection."""
_PIECES = 10
"""Pieces of a body that is sent slowly."""


@dataclass(frozen=True)
class S3Fault:
    """A fault, and the requests that it applies to."""

    kind: Kind
    share: float = 1.0
    """Share of the matching requests that fail, chosen at random with the proxy's seed."""
    count: int | None = None
    """Number of requests that fail; None for no limit."""
    method: str = ""
    """HTTP method of matching requests; empty for any."""
    path: str = ""
    """Regular expression searched for in the path and query of matching requests, as sent."""
    seconds: float = 0.0
    """Length of a delay, for the kinds that have one."""
    status: int = 500
    """HTTP status of the kind "error"."""

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind) or (self.kind == "error" and self.status not in _ERRORS):
            raise ValueError(f"unknown kind or status: {self}")


@dataclass
class _Order:
    fault: S3Fault
    left: int | None


class FaultProxy:
    """A running proxy. `endpoint` is the URL to use instead of the server's."""

    def __init__(self, server: str, seed: int = 0, address: str = "127.0.0.1") -> None:
        """Listen at an address of this machine, and forward requests to the server's URL."""
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._orders: list[_Order] = []
        self._cut = threading.Event()
        self.requests: Counter[str] = Counter()
        """Method -> number of requests since the last `clear`."""
        self.done: Counter[str] = Counter()
        """Kind -> number of injected faults since the last `clear`."""
        handler = type("Handler", (_Handler,), {"proxy": self, "upstream": urlsplit(server).netloc})
        self._http = _Server((address, 0), handler)
        self.endpoint = f"http://{address}:{self._http.server_address[1]}"
        self.control = self.endpoint + _CONTROL
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def order(self, *faults: S3Fault) -> None:
        """Inject these faults from now on, in addition to earlier ones. A request gets at most one."""
        with self._lock:
            self._orders += [_Order(fault, fault.count) for fault in faults]

    def clear(self) -> None:
        """Remove all faults, and reset the counts."""
        with self._lock:
            self._orders.clear()
            self.requests.clear()
            self.done.clear()

    def cut(self) -> None:
        """Cut all open connections; new ones are accepted."""
        ended, self._cut = self._cut, threading.Event()
        ended.set()
        self._http.cut_all()

    def close(self) -> None:
        """Stop the proxy and cut all connections."""
        self._http.shutdown()
        self._http.server_close()
        self.cut()
        self._thread.join()

    def wait(self, seconds: float) -> None:
        """Wait for some seconds, or until connections are cut."""
        self._cut.wait(seconds)

    def met(self, method: str, path: str) -> S3Fault | None:
        """The fault for this request, or None."""
        with self._lock:
            self.requests[method] += 1
            for order in self._orders:
                fault = order.fault
                if order.left == 0 or (fault.method and fault.method != method):
                    continue
                if not re.search(fault.path, path) or self._random.random() >= fault.share:
                    continue
                if order.left is not None:
                    order.left -= 1
                self.done[fault.kind] += 1
                return fault
        return None


@contextmanager
def faulty(server: str, seed: int = 0, address: str = "127.0.0.1") -> Iterator[FaultProxy]:
    """A proxy for the server at this URL, which ends with the block."""
    proxy = FaultProxy(server, seed, address)
    try:
        yield proxy
    finally:
        proxy.close()


class _Server(ThreadingHTTPServer):
    """A server that keeps track of its connections, so that it can cut them."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._open: set[socket.socket] = set()
        super().__init__(address, handler)

    def process_request(self, request: socket.socket, client_address: tuple[str, int]) -> None:  # type: ignore[override]
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: socket.socket) -> None:  # type: ignore[override]
        self._open.discard(request)
        with suppress(OSError):
            if request.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, len(_AT_ONCE)) != _AT_ONCE:
                request.shutdown(socket.SHUT_WR)
        request.close()

    def cut_all(self) -> None:
        for connection in list(self._open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore errors, such as clients that have disconnected."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: FaultProxy
    upstream: str
    disable_nagle_algorithm = True

    def handle_one_request(self) -> None:
        """Handle a request of any method."""
        self.raw_requestline = self.rfile.readline(65537)
        if not self.raw_requestline:
            self.close_connection = True
        elif self.parse_request():
            body = self._body()
            if self.path.startswith(_CONTROL):
                self._ordered(body)
            else:
                self._pass(body, self.proxy.met(self.command, self.path))
            self.wfile.flush()

    def _pass(self, body: bytes, fault: S3Fault | None) -> None:
        kind = fault.kind if fault is not None else ""
        if fault is not None:
            if kind == "hang":
                self.proxy.wait(fault.seconds)
            if kind in ("hang", "reset"):
                return self._reset()
            if kind == "error":
                return self._refuse(fault.status, _ERRORS[fault.status])
            if kind in _ANSWERS:
                return self._refuse(*_ANSWERS[kind])
            if kind == "slow":
                self.proxy.wait(fault.seconds)
        connection = HTTPConnection(self.upstream, timeout=60)
        try:
            answer, data = self._ask(connection, body)
        except (OSError, HTTPException):
            return self._reset()  # the server is down
        finally:
            connection.close()
        if kind == "lost":
            return self._reset()
        self._head(answer, len(data))
        if kind == "cut" and data:
            self.wfile.write(data[: len(data) // 2])
            self.wfile.flush()
            return self._reset()
        seconds = fault.seconds if fault is not None and kind == "trickle" else 0.0
        pieces = _PIECES if seconds else 1
        size = -(-len(data) // pieces) or 1
        for at in range(0, len(data), size):
            self.proxy.wait(seconds / pieces)
            self.wfile.write(data[at : at + size])
            self.wfile.flush()
        return None

    def _ask(self, connection: HTTPConnection, body: bytes) -> tuple[HTTPResponse, bytes]:
        connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in (*_HOP_BY_HOP, "content-length"):
                connection.putheader(name, value)
        if body or self.command in ("PUT", "POST"):
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        answer = connection.getresponse()
        return answer, answer.read()

    def _head(self, answer: HTTPResponse, size: int) -> None:
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            known = self.command == "HEAD" and name.lower() == "content-length"
            if name.lower() not in (*_HOP_BY_HOP, "content-length") or known:
                self.send_header(name, value)
        if self.command != "HEAD" and answer.status not in (204, 304):
            self.send_header("Content-Length", str(size))
        self.end_headers()

    def _refuse(self, status: int, code: str) -> None:
        text = f"<Error><Code>{code}</Code><Message>injected</Message></Error>".encode()
        self.send_response_only(status)
        self.send_header("Content-Type", "application/xml")
        if code == "SlowDown":
            self.send_header("Retry-After", "1")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    def _reset(self) -> None:
        """Reset the connection, without a TCP shutdown."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        pieces = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return b"".join(pieces)

    def _ordered(self, body: bytes) -> None:
        """Handle a control request from another process."""
        status, text = 200, b"{}"
        try:
            if self.command == "DELETE":
                self.proxy.clear()
            elif self.command == "PUT":
                self.proxy.order(*codec.decode(body, list[S3Fault]))
            text = codec.encode({"requests": self.proxy.requests, "done": self.proxy.done})
        except Exception as refused:
            status, text = 400, str(refused).encode()
        self.send_response_only(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Do not log requests."""
