"""The dashboard as a web application: the page, its data, events as they happen, and orders.

    GET  /                            the page
    GET  /static/...                  its files
    GET  /api/recording               facts, series, newest moment, journal (from, to in ms; points)
    GET  /api/moment?at=MS            the whole query nearest to a time
    GET  /api/events                  server-sent events: "moment" each second, "end" with the query
    POST /api/what-if                 the recording simulated under other settings; while the query runs,
                                      with the control token
    POST /api/steer, move, scale      orders, with the control token
    GET  /metrics                     for Prometheus

Everybody who reaches the port can read; only who has the control token can give orders. There are no cookies,
so another site cannot use a visitor's rights. An error is JSON: {"error": ..., "hint": ...}.
"""

from __future__ import annotations

import hmac
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import anyio
import anyio.to_thread
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock import codec
from penstock.control.elastic import Steering
from penstock.errors import PenstockError, SettingError
from penstock.observe.dashboard.timeline import Follower, Timeline
from penstock.observe.recording import Recording
from penstock.plan.slots import slots_from_text, slots_to_text

STATIC = Path(__file__).parent / "static"
_POLL_S = 0.5
_POLLERS = 4
"""Threads that look for news for all clients, so that a query that is slow to answer leaves others free."""
_MOST_BODY = 16_384
"""Bytes of a request's body at most."""
_HEADERS = {
    b"content-security-policy": b"default-src 'none'; script-src 'self'; style-src 'self'; "
    b"img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    b"frame-ancestors 'none'",
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cache-control": b"no-store",
}


class Orders(Protocol):
    """A query that takes orders."""

    def steer(self, steering: Steering) -> dict[str, Any]:
        """Change the SLA and the control settings. Returns those now in force."""

    def move(self, step: str, slots: Sequence[int], to: str) -> None: ...

    def scale(self, step: str, hosts: int) -> None: ...


def dashboard_app(
    recording: Recording,
    orders: Orders | None = None,
    token: str = "",
    *,
    names: Sequence[str] = ("localhost", "127.0.0.1"),
    metrics: ASGIApp | None = None,
    closing: threading.Event | None = None,
    timeline: Timeline | None = None,
) -> Starlette:
    """The dashboard of a recording.

    `orders` takes orders that come with the control token `token`; None: there is nothing to control.
    Requests must name the server by one of `names`, so that no foreign web page can reach it under a name
    of its own. Events end when `closing` is set. `timeline` is that of the recording, if it is fed from
    elsewhere.
    """
    api = _Api(timeline or Timeline(recording), orders, token, closing or threading.Event())
    routes = [
        Route("/", api.page),
        Route("/api/recording", api.recorded),
        Route("/api/moment", api.moment),
        Route("/api/events", api.events),
        Route("/api/what-if", api.what_if, methods=["POST"]),
        *(
            Route(f"/api/{name}", partial(api.order, order), methods=["POST"])
            for name, order in (("steer", api.steer), ("move", api.move), ("scale", api.scale))
        ),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    if metrics is not None:
        routes.append(Route("/metrics", metrics))
    return Starlette(
        routes=routes,
        middleware=[
            Middleware(_SafeHeaders),
            Middleware(TrustedHostMiddleware, allowed_hosts=list(names), www_redirect=False),
            Middleware(GZipMiddleware, minimum_size=2_000, compresslevel=4),
        ],
        exception_handlers={HTTPException: _http_error, PenstockError: _refusal},
    )


class _Api:
    """The answers. What may take long runs in a thread, so that the page of another client goes on."""

    def __init__(
        self, timeline: Timeline, orders: Orders | None, token: str, closing: threading.Event
    ) -> None:
        self._recording, self._orders, self._token = timeline.recording, orders, token
        self._timeline, self._closing = timeline, closing
        self._pollers = anyio.CapacityLimiter(_POLLERS)
        self._simulating = threading.Lock()

    async def page(self, _: Request) -> Response:
        return FileResponse(STATIC / "index.html")

    async def recorded(self, request: Request) -> Response:
        asked = request.query_params
        from_ms, to_ms = _number(asked, "from", 0.0), _number(asked, "to", float("inf"))
        points = int(_number(asked, "points", 600))
        whole = await run_in_threadpool(self._timeline.whole, from_ms, to_ms, points)
        controllable = self._orders is not None and whole["running"]
        return _json(whole | {"controllable": controllable})

    async def moment(self, request: Request) -> Response:
        at_ms = _number(request.query_params, "at", None)
        found = await run_in_threadpool(self._timeline.nearest, at_ms)
        if found is None:
            raise HTTPException(404, "nothing is recorded yet")
        return _json(found)

    async def events(self, request: Request) -> Response:
        since_ms = _number(request.query_params, "since", 0.0)
        # A browser that connects again names the last event that it got.
        since_ms = _number(request.headers, "last-event-id", since_ms)
        return EventSourceResponse(self._events(since_ms), send_timeout=10)

    async def _events(self, since_ms: float) -> AsyncIterator[ServerSentEvent]:
        follower = Follower(self._timeline, since_ms)
        while not self._closing.is_set():
            news = await anyio.to_thread.run_sync(follower.news, limiter=self._pollers)
            if news is not None:
                # In full: a shorter number could be before the moment, which would then be sent again.
                name = repr(follower.since_ms)
                yield ServerSentEvent(codec.text(news), event="moment", id=name)
            if follower.ended:
                yield ServerSentEvent(codec.text({"ended_ms": follower.since_ms}), event="end")
                return
            await anyio.sleep(_POLL_S)

    async def what_if(self, request: Request) -> Response:
        from penstock.observe.what_if import what_if

        if (
            await self._controllable()
        ):  # it takes time from the query, whose process may be this one
            self._must_have_token(request)
        asked = await _body(request)
        for name, value in asked.items():
            if name not in _WHAT_IF or not isinstance(value, _WHAT_IF[name]):
                raise HTTPException(
                    400, f"{name} = {value!r} is not a change that can be simulated"
                )
        if not self._simulating.acquire(blocking=False):
            raise HTTPException(429, "a simulation is under way; wait until it has ended")
        try:
            found = await run_in_threadpool(what_if, self._recording, **asked)
        finally:
            self._simulating.release()
        return _json(found.as_json())

    # -- orders

    async def _controllable(self) -> bool:
        if self._orders is None:
            return False
        # A query in another process is asked for this, which may take long.
        return await run_in_threadpool(lambda: self._recording.running)

    async def order(self, order: Callable[..., Any], request: Request) -> Response:
        """Check that an order may be given, then give it."""
        if not await self._controllable():
            raise HTTPException(403, "there is nothing to control: this query has ended")
        self._must_have_token(request)
        return _json(await run_in_threadpool(order, await _body(request)))

    def _must_have_token(self, request: Request) -> None:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        right = hmac.compare_digest(given.strip().encode(), self._token.encode())
        if scheme.lower() != "bearer" or not right or not self._token:
            raise HTTPException(
                401,
                "the control token is missing or wrong",
                {"www-authenticate": "Bearer"},
            )

    def steer(self, asked: dict[str, Any]) -> dict[str, Any]:
        assert self._orders is not None
        changes = {name: value for name, value in asked.items() if value is not None}
        if not changes:
            raise SettingError("no change was asked for", hint="fill in one field or more")
        settings = self._orders.steer(Steering.of(**changes))
        names = ", ".join(f"{name} {value}" for name, value in changes.items())
        return {"done": f"Changed from the next decision on: {names}", "settings": settings}

    def move(self, asked: dict[str, Any]) -> dict[str, Any]:
        assert self._orders is not None
        step, to = self._step(asked), str(asked.get("to", ""))
        slots = slots_from_text(str(asked.get("slots", "")), self._recording.facts.slots[step])
        if not slots:
            raise SettingError("no slots to move", hint="name slots, such as 0-15,20")
        self._orders.move(step, slots, to)
        return {"done": f"Slots {slots_to_text(slots)} of {step} move to {to} with the next epoch"}

    def scale(self, asked: dict[str, Any]) -> dict[str, Any]:
        assert self._orders is not None
        step, hosts = self._step(asked), asked.get("hosts")
        if not isinstance(hosts, int) or hosts < 1:
            raise SettingError(f"{hosts!r} is not a number of hosts", hint="use 1 or more")
        self._orders.scale(step, hosts)
        return {"done": f"{step} goes to {hosts} host{'s' * (hosts != 1)}"}

    def _step(self, asked: dict[str, Any]) -> str:
        steps, step = self._recording.facts.slots, asked.get("step")
        if step not in steps:
            raise SettingError(f"there is no step {step!r}", hint=f"use {', '.join(steps)}")
        return str(step)


_WHAT_IF: dict[str, Any] = {
    "policy": str,
    "latency": str,
    "window": str,
    "margin": int | float,
    "at_most": int,
}
"""Fields of a what-if request, and their types."""


async def _body(request: Request) -> dict[str, Any]:
    """The JSON object in a request's body. Its type must be named, which no form of another site can do."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise HTTPException(415, "the body must be of type application/json")
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MOST_BODY:
            raise HTTPException(413, f"the body is larger than {_MOST_BODY} bytes")
    return codec.decode(body or b"{}", dict)


def _number(asked: Mapping[str, str], name: str, usual: float | None) -> float:
    text = asked.get(name)
    if text is None and usual is not None:
        return usual
    try:
        number = float(text or "")
    except ValueError:
        number = float("nan")
    if number != number:
        raise HTTPException(400, f"{name} is {text!r}, not a number")
    return number


def _json(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(codec.encode(value), status, headers, media_type="application/json")


_HINTS = {
    401: "paste the token that `penstock dashboard CHECKPOINT` prints on the driver's machine",
    403: "start the flow again with this checkpoint to control it",
}


async def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    facts = {"error": error.detail, "hint": _HINTS.get(error.status_code, "")}
    return _json(facts, error.status_code, error.headers)


async def _refusal(_: Request, error: Exception) -> Response:
    assert isinstance(error, PenstockError)
    return _json({"error": error.message, "hint": error.hint}, 400)


class _SafeHeaders:
    """Adds headers to every answer that keep other sites, and other scripts, out."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = {name.lower() for name, _ in message["headers"]}
                more = [item for item in _HEADERS.items() if item[0] not in present]
                message = {**message, "headers": [*message["headers"], *more]}
            await send(message)

        await self._app(scope, receive, sent)
