"""A platform for containers, in this process: a real HTTP server with burst workers and faults."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any, Self

import uvicorn
from starlette.concurrency import run_in_threadpool

from penstock.offload.backends.http.app import HttpWorker
from penstock.offload.backends.worker import BurstWorker
from penstock.plan.steps import FlowPlan
from penstock.settings import Tls
from tests.offload.backends.waiting import until

_LENGTH = (b"content-length", b"1000")

Chances = Mapping[str, int]
"""What the platform does with a request -> its weight among all behaviours."""

WELL: Chances = {"answer": 1}
ANYHOW: Chances = {
    "answer": 10,
    "busy": 2,
    "fail": 2,
    "garbage": 1,
    "half": 1,
    "gone": 1,
    "again": 2,
    "late": 1,
    "hang": 1,
}
"""answer: a container answers. busy: 429. fail: 500. garbage: 200 with other bytes. half: the connection
breaks in the middle of the answer. gone: it breaks before the answer. again: an earlier answer. late: the
answer comes after the deadline. hang: no answer at all."""


class Platform:
    """A URL with at most `at_most` containers, each of which takes one request at a time."""

    def __init__(
        self,
        flow: FlowPlan,
        key: str,
        at_most: int,
        chances: Chances = WELL,
        seed: int = 0,
        tls: Tls | None = None,
    ) -> None:
        self.chances, self.did = chances, Counter[str]()
        self._pick, self._over = random.Random(seed), threading.Event()
        self._apps = [HttpWorker(BurstWorker(flow), key).app for _ in range(at_most)]
        self._free = list(range(at_most))
        self._last: list[Any] = []
        listening = socket.create_server(("127.0.0.1", 0))
        scheme = "http" if tls is None else "https"
        self.url = f"{scheme}://127.0.0.1:{listening.getsockname()[1]}/bursts"
        config = uvicorn.Config(self._serve, log_level="critical", interface="asgi3", lifespan="on")
        if tls is not None:
            config.ssl_certfile, config.ssl_keyfile = tls.certificate, tls.key
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([listening],))

    def __enter__(self) -> Self:
        self._thread.start()
        until(lambda: self._server.started)
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def end(self) -> None:
        """End the server, whatever it is doing."""
        self._over.set()
        self._server.should_exit = self._server.force_exit = True
        self._thread.join()

    async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        [does] = self._pick.choices([*self.chances], [*self.chances.values()])
        self.did[does] += 1
        if does == "busy" or (does in ("answer", "half", "late") and not self._free):
            await _plain(send, 429)
        elif does == "fail":
            await _plain(send, 500)
        elif does == "garbage":
            await _plain(send, 200, b"no Arrow")
        elif does == "gone":
            await send({"type": "http.response.start", "status": 200, "headers": [_LENGTH]})
            raise ConnectionError  # the server closes the connection
        elif does == "again" and self._last:
            for message in self._last:
                await send(message)
        elif does == "hang":
            while not self._over.is_set():
                await asyncio.sleep(0.01)
        else:
            await self._answer(does, scope, receive, send)

    async def _live(self, receive: Any, send: Any) -> None:
        await receive()
        # all threads start now, not within a test that would leave them behind
        sleeps = (run_in_threadpool(time.sleep, 0.1) for _ in self._apps)
        await asyncio.gather(*sleeps)
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})

    async def _answer(self, does: str, scope: Any, receive: Any, send: Any) -> None:
        sent: list[Any] = []

        async def keep(message: Any) -> None:
            sent.append(message)

        container = self._free.pop()
        try:
            await self._apps[container](scope, receive, keep)
        finally:
            self._free.append(container)
        if does == "late":
            await asyncio.sleep(3.0)
        for message in sent:
            if does == "half" and message.get("body"):
                half = message["body"][: len(message["body"]) // 2]
                await send(message | {"body": half, "more_body": True})
                raise ConnectionError
            await send(message)
        self._last = sent


async def _plain(send: Any, status: int, body: bytes = b"no") -> None:
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [length]})
    await send({"type": "http.response.body", "body": body})
