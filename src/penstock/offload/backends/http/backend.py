"""Burst workers over HTTP, through urllib3: an extra, `pip install penstock[http]`.

The URL is that of a service whose containers run `penstock.offload.backends.http.app`. The platform starts
and ends them. Couriers count their own usage and report it to the driver.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from penstock.control.money import FunctionPrice
from penstock.errors import SettingError
from penstock.extensions import imported
from penstock.faults import Fault
from penstock.offload.backends.backend import Failure, WorkerFailed
from penstock.offload.backends.http.messages import COLD, MARK, MS, answer_fits, request_headers
from penstock.offload.backends.messages import flow_mark
from penstock.offload.backends.remote import RemoteWorkers, UsageMeter
from penstock.wire.access import Access
from penstock.wire.report import Usage

if TYPE_CHECKING:
    from penstock.plan.steps import FlowPlan

Headers = Mapping[str, str]

_FAILURES: dict[int, Failure] = {
    408: "timeout",
    413: "too_large",
    429: "throttled",
    503: "throttled",
    504: "timeout",
}
"""HTTP status -> kind of failure; any other but 200 is "failed"."""
_PIECE = 1 << 16
"""Bytes of an answer that are read at a time."""
_SHOWN = 300
"""Most characters of a refusal that an error shows."""


@dataclass(frozen=True)
class HttpFunctions:
    """Functions (burst workers) behind a URL. See `Backend`.

    >>> HttpFunctions("https://bursts.example.com", key="a long random text").at_most
    100
    """

    url: str
    key: str = field(default="", repr=False)
    """Secret that both sides know; requests and answers are signed with it. It travels to couriers inside
    the function that Spark ships. Empty: nothing is signed, because the platform checks callers itself."""
    headers: Headers | Callable[[], Headers] = field(default_factory=dict, repr=False)
    """Headers for the platform, such as `Authorization`; or a function that returns them, called in couriers
    for every request, for tokens that expire."""
    ca: str | None = None
    """File with the certificates of authorities to trust, on every machine. None: the system's."""
    at_most: int = 100
    """Most burst workers at the same time. The platform's own limits also apply."""
    speed: float = 1.0
    """Speed relative to a host, until it is measured."""
    start_ms: int = 1_000
    """Assumed milliseconds of a cold start."""
    price: FunctionPrice = field(default_factory=FunctionPrice)
    request_limit: int = 32 << 20
    """Largest request in bytes that the platform takes."""
    answer_limit: int = 256 << 20
    """Largest answer in bytes that couriers take."""

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SettingError(
                f"{self.url!r} is not the URL of functions", hint="use https://... or http://..."
            )
        if self.at_most < 1 or self.speed <= 0:
            raise SettingError(
                f"at_most is {self.at_most} and speed is {self.speed}",
                hint="use 1 or more for at_most, and a speed above 0",
            )

    def start(
        self, flow: FlowPlan, run_id: str, access: Access, faults: tuple[Fault, ...] = ()
    ) -> RemoteWorkers:
        """Connect to the service, which must be deployed. Raises an error if it has another flow."""
        workers = RemoteWorkers(f"{self.url} {run_id}", self.connect(), self.price)
        workers.check(flow_mark(flow), self._other_flow)
        return workers

    def connect(self, reach: str = "", access: Access | None = None) -> HttpInvoker:
        """Connect to the service. Neither argument is needed: the key and the headers open it."""
        return HttpInvoker(self)

    def _other_flow(self) -> SettingError:
        return SettingError(
            f"the functions at {self.url} have another flow, other user code or another release of "
            "Penstock",
            hint="run `penstock functions package` again, and deploy the new image",
        )


class HttpInvoker:
    """Sends requests over connections that are kept open. See `Invoker`."""

    def __init__(self, settings: HttpFunctions) -> None:
        self._settings, self._meter = settings, UsageMeter()
        self.request_limit: int | None = settings.request_limit
        self._http = imported("urllib3", "http", "HttpFunctions")
        trusted = {"ca_certs": settings.ca} if settings.url.startswith("https:") else {}
        # threads whose rows are done elsewhere may still hold connections
        most = 2 * settings.at_most
        self._pool = self._http.connection_from_url(settings.url, maxsize=most, **trusted)
        self._path = self._http.util.parse_url(settings.url).request_uri

    def invoke(self, request: bytes, timeout_ms: int) -> bytes:
        if len(request) > self._settings.request_limit:
            message = f"a request has {len(request)} bytes, and the limit is {self._settings.request_limit}"
            raise WorkerFailed(message, failure="too_large")
        return self._post(request, None, timeout_ms)[1]

    def touch(self, hold_ms: int, timeout_ms: int) -> str:
        return self._post(b"", hold_ms, timeout_ms)[0].get(MARK, "")

    def taken(self) -> Usage:
        return self._meter.taken()

    def close(self) -> None:
        self._pool.close()

    def _post(self, body: bytes, hold_ms: int | None, timeout_ms: int) -> tuple[Headers, bytes]:
        """Send one request. Returns the headers and the body of its answer."""
        settings, errors = self._settings, self._http.exceptions
        own = settings.headers() if callable(settings.headers) else settings.headers
        asked = request_headers(settings.key, body, time.time(), hold_ms)
        began = time.monotonic()
        try:
            response = self._pool.request(
                "POST",
                self._path,
                body=body,
                headers={**own, **asked},
                timeout=self._http.Timeout(total=timeout_ms / 1000),
                preload_content=False,
                redirect=False,
                # a retry would come after the courier has done the rows itself
                retries=False,
            )
            answer = self._read(response, began + timeout_ms / 1000)
        except (errors.TimeoutError, TimeoutError) as late:
            # it may run on, which costs money
            self._meter.count(invocations=1, failed=1, seconds=time.monotonic() - began)
            message = f"a burst worker did not answer within {timeout_ms} ms"
            raise WorkerFailed(message, failure="timeout") from late
        except (errors.HTTPError, OSError) as broken:
            self._meter.count(invocations=1, failed=1, seconds=time.monotonic() - began)
            raise WorkerFailed(f"{settings.url} did not answer: {broken}") from broken
        headers = {name.lower(): text for name, text in response.headers.items()}
        if response.status != 200:
            raise self._refusal(response.status, answer, time.monotonic() - began)
        if not answer_fits(settings.key, asked, headers, answer):
            response.close()  # answers on this connection may not belong to its requests
            self._meter.count(invocations=1, failed=1, seconds=time.monotonic() - began)
            raise WorkerFailed(f"{settings.url} sent an answer with a wrong signature")
        response.release_conn()
        self._count(headers, time.monotonic() - began)
        return headers, answer

    def _read(self, response: Any, until: float) -> bytes:
        """Read an answer. Closes the connection if the answer is too long or too late."""
        pieces, size = [], 0
        try:
            while piece := response.read1(_PIECE, decode_content=False):
                pieces.append(piece)
                size += len(piece)
                if size > self._settings.answer_limit:
                    raise WorkerFailed("an answer is larger than answer_limit", failure="too_large")
                if time.monotonic() > until:
                    raise TimeoutError
        except BaseException:
            response.close()
            raise
        return b"".join(pieces)

    def _refusal(self, status: int, body: bytes, took_s: float) -> WorkerFailed:
        failure = _FAILURES.get(status, "failed")
        if failure == "throttled":
            self._meter.count(throttled=1)
        else:
            self._meter.count(invocations=1, failed=1, seconds=took_s)
        said = body[:_SHOWN].decode(errors="replace")
        return WorkerFailed(f"{self._settings.url} answered {status}: {said}", failure=failure)

    def _count(self, headers: Headers, took_s: float) -> None:
        cold = headers.get(COLD) == "1"
        try:
            seconds = float(headers.get(MS, "")) / 1000
        except ValueError:  # a gateway may drop headers that it does not know
            seconds = took_s
        # a cold start includes the network round trip: it is the time beyond the work
        start_ms = (took_s - seconds) * 1000 if cold else 0.0
        self._meter.count(
            invocations=1, seconds=seconds, cold_starts=int(cold), cold_start_ms=start_ms
        )
