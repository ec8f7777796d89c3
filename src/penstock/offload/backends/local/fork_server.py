"""The fork server: a process with everything loaded and one thread, which forks burst workers.

It is separate from the service, since forking a process with threads is not safe. Each burst worker is a
process with a single pipe, to the service. When the service is gone, the fork server kills all burst workers,
also those that hang, and ends.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from penstock.faults import point
from penstock.offload.backends.backend import WorkerFailed

_LENGTH = struct.Struct("<Q")
_FORK, _KILL = b"fork", b"kill"
_PID = struct.Struct("<q")
_READY, _DONE, _FAILED = b"ready", b"+", b"-"
"""Messages of a burst worker: one when it is up, then a prefix before each answer or error text."""

_START_S = 60.0
"""Timeout for the start of a burst worker, in seconds, beyond its `start_ms`."""
_REAP_S = 0.5
"""Seconds between two checks for child processes that have ended."""


class Pipe:
    """One end of a socket pair that carries messages: the length, then the bytes.

    Calls raise `EOFError` or `OSError` if the process at the other end is gone.

    >>> here, there = Pipe.pair()
    >>> here.send(b"rows")
    >>> there.receive()
    b'rows'
    >>> here.close()
    >>> there.receive()
    Traceback (most recent call last):
    ...
    EOFError
    """

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    @staticmethod
    def pair() -> tuple[Pipe, Pipe]:
        """Make both ends of a new pipe."""
        one, other = socket.socketpair()
        return Pipe(one), Pipe(other)

    def fileno(self) -> int:
        return self._end.fileno()

    def send(self, message: bytes, until: float | None = None) -> None:
        """Send a message. Raises `TimeoutError` if it is not sent by `until` (`time.monotonic`)."""
        for part in (_LENGTH.pack(len(message)), message):
            self._limit(until)
            self._end.sendall(part)

    def receive(self, until: float | None = None) -> bytes:
        """Receive the next message. Raises `TimeoutError` if it has not arrived by `until`."""
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size, until))
        return self._exactly(length, until)

    def send_end(self, message: bytes, end: Pipe) -> None:
        """Send a short message together with an end of another pipe."""
        socket.send_fds(self._end, [message], [end.fileno()])

    def receive_end(self, most: int, until: float) -> tuple[bytes, Pipe]:
        """Receive a message and a pipe's end from `send_end`."""
        self._limit(until)
        message, numbers, _, _ = socket.recv_fds(self._end, most, 1)
        if not numbers:
            raise EOFError
        return message, Pipe(socket.socket(fileno=numbers[0]))

    def close(self) -> None:
        self._end.close()

    def _exactly(self, length: int, until: float | None) -> bytes:
        data = bytearray(length)
        view, at = memoryview(data), 0
        while at < length:
            self._limit(until)
            count = self._end.recv_into(view[at:])
            if not count:
                raise EOFError
            at += count
        return bytes(data)

    def _limit(self, until: float | None) -> None:
        left = None if until is None else until - time.monotonic()
        if left is not None and left <= 0:
            raise TimeoutError
        self._end.settimeout(left)


class RequestLoop:
    """The loop of each forked process: answers requests at its speed until its pipe is closed."""

    def __init__(
        self,
        answer: Callable[[bytes], tuple[int, bytes]],
        start_ms: int = 0,
        speed: float = 1.0,
    ) -> None:
        """`answer` takes a request and returns its number of records and the answer."""
        self._answer, self._start_ms, self._speed = answer, start_ms, speed

    def serve(self, pipe: Pipe) -> None:
        """Answer requests until the pipe is closed."""
        time.sleep(self._start_ms / 1000)
        pipe.send(_READY)
        while True:
            pipe.send(self._reply(pipe.receive()))

    def _reply(self, request: bytes) -> bytes:
        began = time.perf_counter()
        try:
            records, answer = self._answer(request)
        except Exception as failed:
            return _FAILED + f"{type(failed).__name__}: {failed}".encode()
        if self._speed < 1:
            time.sleep((time.perf_counter() - began) * (1 / self._speed - 1))
        point("burst.work", records=records, took_s=time.perf_counter() - began)
        return _DONE + answer


class ForkServer:
    """The fork server, in its own process."""

    def __init__(self, service: Pipe, loop: RequestLoop) -> None:
        self._service, self._loop = service, loop
        self._children: set[int] = set()

    def serve(self) -> None:
        try:
            while True:
                self._reap()
                if select.select([self._service], [], [], _REAP_S)[0]:
                    self._obey(self._service.receive())
        finally:
            for pid in self._children:
                os.kill(pid, signal.SIGKILL)

    def _obey(self, order: bytes) -> None:
        if order == _FORK:
            self._fork()
        elif order.startswith(_KILL):
            (pid,) = _PID.unpack(order[len(_KILL) :])
            if pid in self._children:  # else it was reaped, and its pid may be reused
                os.kill(pid, signal.SIGKILL)

    def _fork(self) -> None:
        end, own = Pipe.pair()
        pid = os.fork()
        if pid == 0:
            self._service.close()
            end.close()
            _run_and_exit(lambda: self._loop.serve(own))
        self._children.add(pid)
        self._service.send_end(_PID.pack(pid), end)
        end.close()
        own.close()

    def _reap(self) -> None:
        for pid in list(self._children):
            if os.waitpid(pid, os.WNOHANG)[0]:
                self._children.discard(pid)


class ForkedWorker:
    """A burst worker that the fork server has forked. See `pool.PooledWorker`."""

    def __init__(self, pid: int, pipe: Pipe, kill: Callable[[int], None]) -> None:
        self.pid, self._pipe, self._kill = pid, pipe, kill

    def answer(self, request: bytes, until: float) -> bytes:
        self._pipe.send(request, until)
        reply = self._pipe.receive(until)
        if reply[:1] != _DONE:
            raise WorkerFailed(f"a burst worker failed: {reply[1:].decode(errors='replace')}")
        return reply[1:]

    def end(self) -> None:
        self._pipe.close()
        self._kill(self.pid)


class ForkServerClient:
    """The service's side of the fork server. Safe to use from several threads."""

    def __init__(self, loop: RequestLoop, start_ms: int) -> None:
        """Fork a fork server from this process, which must have only one thread."""
        gc.collect()
        gc.freeze()  # memory that all burst workers share stays shared
        self._pipe, there = Pipe.pair()
        if os.fork() == 0:
            self._pipe.close()
            _run_and_exit(lambda: ForkServer(there, loop).serve())
        there.close()
        self._start_s = start_ms / 1000 + _START_S
        self._lock = threading.Lock()

    def start(self) -> ForkedWorker:
        """Start a burst worker, and wait until it is ready."""
        until = time.monotonic() + self._start_s
        try:
            with self._lock:
                self._pipe.send(_FORK)
                pid, pipe = self._pipe.receive_end(_PID.size, until)
            worker = ForkedWorker(_PID.unpack(pid)[0], pipe, self._kill)
            if pipe.receive(until) != _READY:
                raise EOFError
        except (EOFError, OSError) as failed:
            raise WorkerFailed(f"a burst worker did not start: {failed!r}") from failed
        return worker

    def _kill(self, pid: int) -> None:
        with self._lock:
            self._pipe.send(_KILL + _PID.pack(pid))


def _run_and_exit(run: Callable[[], None]) -> NoReturn:
    """Call `run`, then exit without the parent's exit handlers."""
    with suppress(EOFError, OSError, KeyboardInterrupt):
        run()
    os._exit(0)
