"""An endpoint for connections across a network, and a client of it.

    python -m tests.cluster.echo serve ADDRESS PORT
    python -m tests.cluster.echo talk LOCATION

The client keeps a stream open, writes into it ten times a second, and calls an action as often. It prints a
line when calls begin to be answered, when they no longer are, and when the stream breaks.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

from penstock.errors import PenstockError
from penstock.wire.access import Access
from penstock.wire.addresses import Listen
from penstock.wire.flight import PING, Endpoint, TokenServer

ACCESS = Access("of-a-test")
_EVERY_S = 0.1


class Echo(TokenServer):
    """Answers frames with the same frames."""

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        for chunk in reader:
            writer.write_metadata(chunk.app_metadata)


def serve(address: str, port: str) -> None:
    server = Echo(Listen(address, ports=range(int(port), int(port) + 1)), ACCESS)
    print("there", flush=True)
    server.serve()


def talk(location: str) -> None:
    endpoint = Endpoint(location, ACCESS)
    endpoint.greet(10_000)
    threading.Thread(target=_stream, args=[endpoint], daemon=True).start()
    answered = None
    while True:
        try:
            endpoint.call(PING, 1_000)
            now = "answered"
        except PenstockError:
            now = "unanswered"
        if now != answered:
            answered = now
            print(now, flush=True)
        time.sleep(_EVERY_S)


def _stream(endpoint: Endpoint) -> None:
    try:
        with endpoint.exchange(b"{}", None) as (writer, _):
            while True:
                writer.write_metadata(b"x")
                time.sleep(_EVERY_S)
    except PenstockError:
        print("broken", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(*sys.argv[2:])
    else:
        talk(*sys.argv[2:])
