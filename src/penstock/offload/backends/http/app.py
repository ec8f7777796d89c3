"""The ASGI app of burst workers over HTTP, which a container runs: an extra, `pip install penstock[http]`.

    PENSTOCK_KEY=... uvicorn --factory penstock.offload.backends.http.app:app --host 0.0.0.0 --port 8080

`penstock functions package MODULE:NAME --for http` writes a container with it. It keeps nothing between
requests. It runs the flow that it was packaged with, and nothing that comes with a request.
"""

from __future__ import annotations

import os
import pickle
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from penstock.errors import FlowError, SettingError
from penstock.offload.backends.http.messages import (
    ARROW,
    HOLD_MS,
    answer_headers,
    request_fits,
)
from penstock.offload.backends.worker import BurstWorker

BODY_LIMIT = 256 << 20
"""Default of the largest body of a request, in bytes."""
_HOLD_MS = 1_000
"""Longest time that a request can keep a worker warm, in milliseconds."""


class HttpWorker:
    """Answers the requests of one container. Requests beyond `at_once` at the same time are refused."""

    def __init__(
        self, worker: BurstWorker, key: str, at_once: int = 1, body_limit: int = BODY_LIMIT
    ) -> None:
        """With an empty `key`, anyone who can reach the container can have it run the flow's code."""
        self._worker, self._key, self._body_limit = worker, key, body_limit
        self._free = threading.Semaphore(at_once)
        self._cold = True
        pa.set_cpu_count(1)
        worker.rehearse()

    @property
    def app(self) -> Starlette:
        return Starlette(routes=[Route("/{path:path}", self._serve, methods=["POST"])])

    async def _serve(self, request: Request) -> Response:
        try:
            body = await self._body(request)
        except ClientDisconnect:
            return _refused(400, "the request broke off")
        if body is None:
            return _refused(413, f"a request may have {self._body_limit} bytes")
        if not request_fits(self._key, request.headers, body, time.time()):
            return _refused(401, "the signature does not fit, or the clocks differ")
        if not self._free.acquire(blocking=False):
            return _refused(429, "busy")
        try:
            return await run_in_threadpool(self._answer, dict(request.headers), body)
        finally:
            self._free.release()

    async def _body(self, request: Request) -> bytes | None:
        """The body of a request; None if it is too large."""
        pieces, size = [], 0
        async for piece in request.stream():
            size += len(piece)
            if size > self._body_limit:
                return None
            pieces.append(piece)
        return b"".join(pieces)

    def _answer(self, asked: Mapping[str, str], body: bytes) -> Response:
        began = time.perf_counter()
        cold, self._cold = self._cold, False
        answer, hold_ms = b"", asked.get(HOLD_MS, "")
        if hold_ms.isdecimal():
            time.sleep(min(int(hold_ms), _HOLD_MS) / 1000)
        else:
            try:
                answer = self._worker.answer(body)
            except FlowError as other:
                return _refused(409, str(other))
            except Exception as failed:
                return _refused(422, f"{type(failed).__name__}: {failed}")
        ms = (time.perf_counter() - began) * 1000
        headers = answer_headers(self._key, asked, answer, self._worker.mark, ms, cold)
        return Response(answer, headers=headers, media_type=ARROW)


def app() -> Starlette:
    """The app with the settings of the environment.

    PENSTOCK_PLAN has the file of the plan, which is trusted like the code beside it. PENSTOCK_KEY has the
    key, and PENSTOCK_AT_ONCE the number of requests at the same time (1).
    """
    key = os.environ.get("PENSTOCK_KEY")
    if key is None:
        raise SettingError(
            "PENSTOCK_KEY is not set: anyone could have these functions run the flow's code",
            hint="set it to the key of ps.HttpFunctions; or to an empty text, if the platform checks callers",
        )
    plan = Path(os.environ.get("PENSTOCK_PLAN", "flow_plan.pickle"))
    worker = BurstWorker(pickle.loads(plan.read_bytes()))
    return HttpWorker(worker, key, int(os.environ.get("PENSTOCK_AT_ONCE", "1"))).app


def _refused(status: int, why: str) -> PlainTextResponse:
    return PlainTextResponse(why, status)
