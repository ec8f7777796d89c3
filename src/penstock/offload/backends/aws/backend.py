"""Burst workers on AWS Lambda, through boto3: an extra, `pip install penstock[aws]`.

The Lambda function must exist, made from the archive that `penstock functions package` writes. Couriers
invoke it with the credentials of their executors. They count their own usage and report it to the driver,
since no other process sees all invocations.
"""

from __future__ import annotations

import base64
import json
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.control.money import FunctionPrice
from penstock.errors import SettingError
from penstock.faults import Fault
from penstock.offload.backends.backend import Failure, WorkerFailed
from penstock.offload.backends.messages import flow_mark
from penstock.offload.backends.remote import RemoteWorkers, UsageMeter
from penstock.wire.access import Access
from penstock.wire.report import Usage

if TYPE_CHECKING:
    from penstock.plan.steps import FlowPlan

_PAYLOAD_LIMIT = 6 * 1024 * 1024
"""Bytes that Lambda allows in a request or an answer."""
_CLIENTS = 32
"""Most clients that an invoker keeps, each with its own connections. The oldest is dropped first, and closed
when its last call has ended."""
_STEP_MS = 100
"""Milliseconds to a multiple of which timeouts are rounded up: each timeout needs its own client."""
_FAILURES: dict[str | int, Failure] = {
    "TooManyRequestsException": "throttled",
    429: "throttled",
    "RequestTooLargeException": "too_large",
    413: "too_large",
}
"""Error code or HTTP status -> kind of failure; any other is "failed"."""


@dataclass(frozen=True)
class LambdaFunctions:
    """Functions (burst workers) on AWS Lambda. See `Backend`.

    >>> LambdaFunctions("my-flow", "eu-central-1").price.memory_mb
    1769
    """

    name: str
    """Name or ARN of the Lambda function, with an alias or version if needed."""
    region: str | None = None
    """AWS region; None to use boto3's own configuration."""
    endpoint_url: str | None = None
    """Address to use instead of AWS's own, such as a private endpoint."""
    at_most: int = 100
    """Most burst workers at the same time. The account's own concurrency limits also apply."""
    speed: float = 1.0
    """Speed relative to a host. A Lambda function with 1,769 MB has one core."""
    price: FunctionPrice = field(default_factory=FunctionPrice)
    payload_limit: int = _PAYLOAD_LIMIT
    """Largest request or answer that Lambda allows, in bytes."""
    start_ms: int = 500
    """Assumed milliseconds of a cold start, as published for Lambda with a preloaded runtime."""

    def start(
        self, flow: FlowPlan, run_id: str, access: Access, faults: tuple[Fault, ...] = ()
    ) -> RemoteWorkers:
        """Connect to the Lambda function, which must exist. AWS decides who may invoke it, not the run's
        token. Raises an error if it was packaged from other code."""
        workers = RemoteWorkers(f"lambda {self.name} {run_id}", self.connect(), self.price)
        workers.check(flow_mark(flow), self._other_flow)
        return workers

    def connect(self, reach: str = "", access: Access | None = None) -> LambdaInvoker:
        """Connect to the Lambda function. Neither argument is needed: see `start`."""
        facts = (self.name, self.region, self.endpoint_url, self.payload_limit)
        return LambdaInvoker(*facts, connections=self.at_most)

    def _other_flow(self) -> SettingError:
        return SettingError(
            f"the Lambda function {self.name} was packaged from another flow, other user code or another "
            "release of Penstock",
            hint="run `penstock functions package` again, and deploy the new package",
        )


class LambdaInvoker:
    """Invokes one Lambda function, once per request, and waits for it. See `Invoker`."""

    def __init__(
        self,
        name: str,
        region: str | None = None,
        endpoint_url: str | None = None,
        payload_limit: int = _PAYLOAD_LIMIT,
        connections: int = 64,
    ) -> None:
        try:
            import boto3
        except ImportError as missing:
            raise SettingError(
                "functions on AWS Lambda need boto3, which is not installed",
                hint="run pip install 'penstock[aws]' on the driver and on all executors",
            ) from missing
        # its own session: boto3's default one is not thread-safe
        self._session = boto3.session.Session()
        self._address = {"region_name": region, "endpoint_url": endpoint_url}
        self._name, self._connections = name, connections
        self.request_limit: int | None = request_limit(payload_limit)
        self._lock = threading.Lock()
        self._clients: dict[float, Any] = {}
        self._meter = UsageMeter()

    def invoke(self, request: bytes, timeout_ms: int) -> bytes:
        limit = self.request_limit
        if limit is not None and len(request) > limit:
            message = f"a request has {len(request)} bytes, and the limit is {limit}"
            raise WorkerFailed(message, failure="too_large")
        result = self.ask({"request": base64.b64encode(request).decode()}, timeout_ms)
        if "answer" not in result:
            self._meter.count(failed=1)
            raise WorkerFailed(
                f"a burst worker failed: {result.get('failed', result)}",
                failure=result.get("failure", "failed"),
            )
        return base64.b64decode(result["answer"])

    def ask(self, event: dict[str, Any], timeout_ms: int) -> dict[str, Any]:
        """Invoke with any event. Returns the handler's result."""
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
            # it may run on until its own timeout, which costs money
            self._meter.count(invocations=1, failed=1, seconds=time.monotonic() - began)
            message = f"a burst worker did not answer within {timeout_ms} ms"
            raise WorkerFailed(message, failure="timeout") from late
        except (BotoCoreError, HTTPClientError, OSError) as broken:
            self._meter.count(invocations=1, failed=1)
            raise WorkerFailed(f"{self._name} did not answer: {broken}") from broken
        return self._result(response, payload, time.monotonic() - began)

    def touch(self, hold_ms: int, timeout_ms: int) -> str:
        return str(self.ask({"warm": hold_ms}, timeout_ms).get("mark", ""))

    def taken(self) -> Usage:
        return self._meter.taken()

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
            self._meter.count(invocations=1, failed=1, seconds=took_s)
            text = str(result.get("errorMessage", "") if isinstance(result, dict) else result)
            raise WorkerFailed(
                f"{self._name} failed: {response.get('FunctionError')} {text}",
                failure=_failure_in(text),
            )
        cold, seconds = bool(result.get("cold")), float(result.get("ms", 0)) / 1000
        # a cold start includes the network round trip: it is the time beyond the work
        start_ms = (took_s - seconds) * 1000 if cold else 0.0
        self._meter.count(
            invocations=1, seconds=seconds, cold_starts=int(cold), cold_start_ms=start_ms
        )
        return result

    def _refusal(self, refused: Any) -> WorkerFailed:
        code = refused.response.get("Error", {}).get("Code", "")
        status = refused.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        failure = _FAILURES.get(code) or _FAILURES.get(status, "failed")
        if failure == "throttled":
            self._meter.count(throttled=1)
        return WorkerFailed(f"{self._name} was not invoked: {refused}", failure=failure)

    def _client(self, timeout_ms: int) -> Any:
        from botocore.config import Config

        rounded_s = -(-timeout_ms // _STEP_MS) * _STEP_MS / 1000
        with self._lock:
            if rounded_s not in self._clients:
                config = Config(
                    connect_timeout=rounded_s,
                    read_timeout=rounded_s,
                    # a retry would come after the courier has done the rows itself
                    retries={"total_max_attempts": 1},
                    max_pool_connections=self._connections,
                )
                client = self._session.client("lambda", config=config, **self._address)
                self._clients[rounded_s] = client
                if len(self._clients) > _CLIENTS:
                    self._clients.pop(next(iter(self._clients)))
            return self._clients[rounded_s]


def request_limit(payload_limit: int) -> int:
    """Largest request in bytes that fits into a payload as base64 text inside JSON.

    >>> request_limit(6 * 1024 * 1024)
    4717824
    """
    return (payload_limit - 1024) // 4 * 3


def _failure_in(message: str) -> Failure:
    """The kind of failure in Lambda's message about a handler."""
    if "timed out" in message:
        return "timeout"
    return "too_large" if "payload size exceeded" in message else "failed"
