"""HTTP/2 by hand: requests that no gRPC client would send."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Sequence

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0, 1, 4, 6, 7, 8
_END_HEADERS = 4


def _frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return (
        struct.pack(">I", len(body))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + body
    )


def _literal(name: bytes, value: bytes) -> bytes:
    """Encode a header as an HPACK literal. Name and value must be shorter than 127 bytes."""
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


class RawRequest:
    """One call of a Flight method, with these headers in addition to those of gRPC."""

    def __init__(
        self, port: int, headers: Sequence[tuple[bytes, bytes]], method: str = "DoAction"
    ) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=10)
        required = [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", f"/arrow.flight.protocol.FlightService/{method}".encode()),
            (b":authority", b"localhost"),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
        ]
        block = b"".join(_literal(*header) for header in [*required, *headers])
        begin = _PREFACE + _frame(_SETTINGS, 0, 0, b"")
        self._socket.sendall(begin + _frame(_HEADERS, _END_HEADERS, 1, block))

    def send(self, body: bytes) -> None:
        """Send one message, and end the stream."""
        message = b"\x00" + struct.pack(">I", len(body)) + body
        self._socket.sendall(_frame(_DATA, 1, 1, message))

    def answer(self, seconds: float = 10) -> bytes:
        """Return all bytes received until the call ends or the time is up."""
        received, until = b"", time.monotonic() + seconds
        while b"grpc-status" not in received and time.monotonic() < until:
            self._socket.settimeout(max(0.01, until - time.monotonic()))
            try:
                got = self._socket.recv(65_536)
            except (TimeoutError, ConnectionError):
                break
            if not got:
                break
            received += got
        return received

    def close(self) -> None:
        self._socket.close()
