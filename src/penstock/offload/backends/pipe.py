"""Messages between two processes over a pair of sockets: the length, then the bytes."""

from __future__ import annotations

import socket
import struct
import time

_LENGTH = struct.Struct("<Q")


class Pipe:
    """One end. The other end's process being gone is an `EOFError` or an `OSError`.

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
        one, other = socket.socketpair()
        return Pipe(one), Pipe(other)

    @property
    def number(self) -> int:
        """Its file descriptor."""
        return self._end.fileno()

    def send(self, message: bytes, until: float | None = None) -> None:
        """Send it all; a `TimeoutError` if that is not done by then, by `time.monotonic`."""
        self._limit(until)
        self._end.sendall(_LENGTH.pack(len(message)))
        self._limit(until)
        self._end.sendall(message)

    def receive(self, until: float | None = None) -> bytes:
        """The next message; a `TimeoutError` if it is not there by then, by `time.monotonic`."""
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size, until))
        return self._exactly(length, until)

    def send_end(self, message: bytes, end: Pipe) -> None:
        """Send a short message, and with it an end of another pipe."""
        socket.send_fds(self._end, [message], [end.number])

    def receive_end(self, most: int, until: float) -> tuple[bytes, Pipe]:
        """What `send_end` sent."""
        self._limit(until)
        message, numbers, _, _ = socket.recv_fds(self._end, most, 1)
        if not numbers:
            raise EOFError
        return message, Pipe(socket.socket(fileno=numbers[0]))

    def close(self) -> None:
        self._end.close()

    def _exactly(self, length: int, until: float | None) -> bytes:
        taken = bytearray(length)
        view, at = memoryview(taken), 0
        while at < length:
            self._limit(until)
            count = self._end.recv_into(view[at:])
            if not count:
                raise EOFError
            at += count
        return bytes(taken)

    def _limit(self, until: float | None) -> None:
        if until is None:
            self._end.settimeout(None)
            return
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._end.settimeout(left)
