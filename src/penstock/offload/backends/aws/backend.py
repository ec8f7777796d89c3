"""Burst workers on AWS Lambda, through boto3: an extra, `pip install penstock[aws]`.

The Lambda function is made beforehand, of the archive that `penstock functions package` writes.
Couriers invoke it with the credentials of their executors. They count their usage themselves and
report it to the driver, since nobody else sees all invocations.
"""

from __future__ import annotations

import base64
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from penstock.control.money import FunctionPrice
from penstock.errors import SettingError
from penstock.faults import Fault
from penstock.offload.backends.backend import Failure, WorkerFailed, reach_text
from penstock.offload.backends.messages import flow_mark
from penstock.wire.access import Access
from penstock.wire.report import Usage

if TYPE_CHECKING:
    from penstock.plan.steps import FlowPlan

_PAYLOAD_LIMIT = 6 * 1024 * 1024
_WARM_EVERY_S = 240.0
"""Lambda keeps an idle environment for more than five minutes, as a rule."""
_WARM_HOLD_MS = 200
"""Time that each is kept busy, so that as many environments are up as are to be warm."""
_CLIENTS = 32
"""Clients that an invoker keeps, each with connections of its own. The oldest goes first, and is closed
when the last call through it has ended."""
_STEP_MS = 100
"""Timeouts are rounded up to a multiple of this: each one takes a client of its own."""
_FAILURES: dict[str | int, Failure] = {
    "TooManyRequestsException": "throttled",
    429: "throttled",
    "RequestTooLargeException": "too_large",
    413: "too_large",
}
"""By error code or HTTP status; any other is "failed"."""


@dataclass(frozen=True)
class LambdaFunctions:
    """Functions (burst workers) on AWS Lambda. See `Backend`.

    >>> LambdaFunctions("my-flow", "eu-central-1").price.memory_mb
    1769
    """

    name: str
    """The Lambda function's name or ARN, with an alias or version if need be."""
    region: str | None = None
    """None: as boto3 finds it in its own settings."""
    endpoint_url: str | None = None
    """Another address than AWS's own, such as a private one."""
    at_most: int = 100
    """Burst workers at a time. What the account allows, or has reserved, is a limit beside it."""
    speed: float = 1.0
    """Speed relative to a host. A Lambda function with 1,769 MB has a core of its own."""
    price: FunctionPrice = field(default_factory=FunctionPrice)
    payload_limit: int = _PAYLOAD_LIMIT
    """Bytes of a request or an answer that Lambda lets through."""
    start_ms: int = 500
    """Assumed duration of a cold start: as published for Lambda with its runtime loaded before."""

    @property
    def facts(self) -> dict[str, Any]:
        """The arguments of its `LambdaInvoker`."""
        names = ("name", "region", "endpoint_url", "payload_limit")
        return {name: getattr(self, name) for name in names} | {"connections": self.at_most}

    def start(
        self, flow: FlowPlan, run_id: str, access: Access, faults: tuple[Fault, ...] = ()
    ) -> LambdaWorkers:
        """Nothing is started: the Lambda function is there. Who may invoke it is up to AWS, not the
        token, and it is as fast as it is. One that was made of other code is refused."""
        workers = LambdaWorkers(self)
        try:
            workers.check(flow_mark(flow))
        except SettingError:
            workers.stop()
            raise
        return workers


class LambdaWorkers:
    """One run's use of a Lambda function. See `BurstWorkers`."""

    def __init__(self, settings: LambdaFunctions) -> None:
        self.reach, self._price = reach_text("lambda", **settings.facts), settings.price
        self._invoker, self._name = LambdaInvoker(**settings.facts), settings.name
        self._lock = threading.Lock()
        self._noted = Usage()
        self._warm = 0
        self._changed, self._ended = threading.Event(), False
        self._keeper = threading.Thread(target=self._keep_warm, name="penstock-warm", daemon=True)
        self._keeper.start()

    def check(self, mark: str) -> None:
        """Refuse a Lambda function that was not packaged from the flow with this mark.

        One that gives no answer now may give one later; it refuses requests of other flows itself.
        """
        with suppress(WorkerFailed):
            found = self._invoker.ask({"warm": 0}, timeout_ms=30_000)
            if found.get("mark") != mark:
                raise SettingError(
                    f"the Lambda function {self._name} was made of another flow, other user code or "
                    "another release of Penstock",
                    hint="run `penstock functions package` again, and deploy what it writes",
                )

    def warm(self, count: int) -> None:
        """Invoke this many at once, now and every few minutes."""
        if count != self._warm:
            self._warm = count
            self._changed.set()

    def note(self, usage: Usage) -> None:
        with self._lock:
            self._noted += usage

    def used(self) -> Usage:
        self.note(self._invoker.taken())
        noted = self._noted
        return replace(noted, money=self._price.money(noted.invocations, noted.seconds))

    def stop(self) -> None:
        self._ended = True
        self._changed.set()
        self._keeper.join()
        self._invoker.close()

    def _keep_warm(self) -> None:
        while not self._ended:
            self._changed.wait(_WARM_EVERY_S)
            self._changed.clear()
            if self._warm and not self._ended:
                with ThreadPoolExecutor(self._warm) as threads:
                    list(threads.map(self._touch, range(self._warm)))

    def _touch(self, _: int) -> None:
        with suppress(WorkerFailed):
            self._invoker.ask({"warm": _WARM_HOLD_MS}, timeout_ms=30_000)


class LambdaInvoker:
    """Invokes one Lambda function, once per request, and waits for it. See `Invoker`."""

    def __init__(
        self,
        name: str,
        region: str | None = None,
        endpoint_url: str | None = None,
        payload_limit: int = _PAYLOAD_LIMIT,
        connections: int = 64,
        access: Access | None = None,
    ) -> None:
        """Who may invoke it is up to AWS, not to the run's access."""
        try:
            import boto3
        except ImportError as missing:
            raise SettingError(
                "functions on AWS Lambda need boto3, and it is not installed",
                hint="pip install 'penstock[aws]', on the driver and on all executors",
            ) from missing
        # a session of its own: boto3's default one is not safe to use from several threads
        self._session = boto3.session.Session()
        self._address = {"region_name": region, "endpoint_url": endpoint_url}
        self._name, self._connections = name, connections
        self.request_limit: int | None = request_limit(payload_limit)
        self._lock = threading.Lock()
        self._clients: dict[float, Any] = {}
        self._usage = Usage()

    def invoke(self, request: bytes, timeout_ms: int) -> bytes:
        limit = self.request_limit
        if limit is not None and len(request) > limit:
            message = f"a request of {len(request)} bytes, where {limit} are let through"
            raise WorkerFailed(message, failure="too_large")
        result = self.ask({"request": base64.b64encode(request).decode()}, timeout_ms)
        if "answer" not in result:
            self._count(failed=1)
            raise WorkerFailed(
                f"a burst worker failed: {result.get('failed', result)}",
                failure=result.get("failure", "failed"),
            )
        return base64.b64decode(result["answer"])

    def ask(self, event: dict[str, Any], timeout_ms: int) -> dict[str, Any]:
        """Invoke with any event. Returns what the handler returned."""
        from botocore.exceptions import (
            BotoCoreError,
            ClientError,
            ConnectTimeoutError,
            HTTPClientError,
            ReadTimeoutError,
        )

        began = time.monotonic()
        try:
            response = self._client(timeout_ms).invoke(
                FunctionName=self._name,
                InvocationType="RequestResponse",
                Payload=json.dumps(event).encode(),
            )
            payload = response["Payload"].read()
        except ClientError as refused:
            raise self._refusal(refused) from refused
        except (ReadTimeoutError, ConnectTimeoutError) as late:
            # it may work on to its own timeout, and that is paid for
            self._count(invocations=1, failed=1, seconds=time.monotonic() - began)
            message = f"a burst worker gave no answer within {timeout_ms} ms"
            raise WorkerFailed(message, failure="timeout") from late
        except (BotoCoreError, HTTPClientError, OSError) as broken:
            self._count(invocations=1, failed=1)
            raise WorkerFailed(f"{self._name} gave no answer: {broken}") from broken
        return self._result(response, payload, time.monotonic() - began)

    def taken(self) -> Usage:
        with self._lock:
            usage, self._usage = self._usage, Usage()
        return usage

    def close(self) -> None:
        with self._lock:
            clients, self._clients = self._clients, {}
        for client in clients.values():
            client.close()

    def _result(self, response: dict[str, Any], payload: bytes, took_s: float) -> dict[str, Any]:
        try:
            result = json.loads(payload)
        except ValueError:
            result = {}
        if "FunctionError" in response or not isinstance(result, dict):
            self._count(invocations=1, failed=1, seconds=took_s)
            text = str(result.get("errorMessage", "") if isinstance(result, dict) else result)
            raise WorkerFailed(
                f"{self._name} failed: {response.get('FunctionError')} {text}",
                failure=_failure_in(text),
            )
        cold, seconds = bool(result.get("cold")), float(result.get("ms", 0)) / 1000
        # what a cold one took beyond its work was its start, and the way there and back
        start_ms = (took_s - seconds) * 1000 if cold else 0.0
        self._count(invocations=1, seconds=seconds, cold_starts=int(cold), cold_start_ms=start_ms)
        return result

    def _refusal(self, refused: Any) -> WorkerFailed:
        code = refused.response.get("Error", {}).get("Code", "")
        status = refused.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        failure = _FAILURES.get(code) or _FAILURES.get(status, "failed")
        if failure == "throttled":
            self._count(throttled=1)
        return WorkerFailed(f"{self._name} was not invoked: {refused}", failure=failure)

    def _count(self, **more: Any) -> None:
        with self._lock:
            self._usage += Usage(**more)

    def _client(self, timeout_ms: int) -> Any:
        from botocore.config import Config

        rounded_s = -(-timeout_ms // _STEP_MS) * _STEP_MS / 1000
        with self._lock:
            if rounded_s not in self._clients:
                config = Config(
                    connect_timeout=rounded_s,
                    read_timeout=rounded_s,
                    # a second try would come when the rows have long gone another way
                    retries={"total_max_attempts": 1},
                    max_pool_connections=self._connections,
                )
                client = self._session.client("lambda", config=config, **self._address)
                self._clients[rounded_s] = client
                if len(self._clients) > _CLIENTS:
                    self._clients.pop(next(iter(self._clients)))
            return self._clients[rounded_s]


def request_limit(payload_limit: int) -> int:
    """Bytes of a request that fits as base64 text with JSON around it.

    >>> request_limit(6 * 1024 * 1024)
    4717824
    """
    return (payload_limit - 1024) // 4 * 3


def _failure_in(message: str) -> Failure:
    """The kind of failure that Lambda's message about a handler tells of."""
    if "timed out" in message:
        return "timeout"
    return "too_large" if "payload size exceeded" in message else "failed"
