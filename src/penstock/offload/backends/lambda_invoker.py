"""Invoking a Lambda function through boto3, once per request, and what can go wrong with that."""

from __future__ import annotations

import base64
import json
import threading
import time
from typing import TYPE_CHECKING, Any

from penstock.errors import SettingError
from penstock.offload.backends.port import Failure, FunctionFailed, Usage

if TYPE_CHECKING:
    from penstock.offload.backends.aws import LambdaReach

_FAILURES: dict[str, Failure] = {
    "TooManyRequestsException": "throttled",
    "RequestTooLargeException": "too_large",
}
_STEP_MS = 100
"""Time-outs are rounded up to a multiple of this: each one takes a client of its own."""


class LambdaInvoker:
    """Invokes one Lambda function and waits for it. See `functions.port.Invoker`."""

    def __init__(self, reach: LambdaReach) -> None:
        _must_have_boto3()
        self._reach = reach
        self.request_limit: int | None = request_limit(reach.payload_limit)
        self._lock = threading.Lock()
        self._clients: dict[int, Any] = {}
        self._usage = Usage()

    def invoke(self, request: bytes, timeout_ms: int) -> bytes:
        limit = self.request_limit
        if limit is not None and len(request) > limit:
            message = f"a request of {len(request)} bytes, where {limit} are let through"
            raise FunctionFailed(message, failure="too_large")
        told = self.ask({"request": base64.b64encode(request).decode()}, timeout_ms)
        if "answer" not in told:
            self._count(failed=1)
            raise FunctionFailed(
                f"a function failed: {told.get('failed', told)}",
                failure=told.get("failure", "failed"),
            )
        return base64.b64decode(told["answer"])

    def ask(self, event: dict[str, Any], timeout_ms: int) -> dict[str, Any]:
        """Invoke with any event."""
        from botocore.exceptions import (
            BotoCoreError,
            ClientError,
            ConnectTimeoutError,
            HTTPClientError,
            ReadTimeoutError,
        )

        begun = time.monotonic()
        try:
            response = self._client(timeout_ms).invoke(
                FunctionName=self._reach.name,
                InvocationType="RequestResponse",
                Payload=json.dumps(event).encode(),
            )
            payload = response["Payload"].read()
        except ClientError as refused:
            raise self._refused(refused) from refused
        except (ReadTimeoutError, ConnectTimeoutError) as late:
            # it may work on to its own time-out, and that is paid for
            self._count(invocations=1, failed=1, seconds=time.monotonic() - begun)
            message = f"a function gave no answer within {timeout_ms} ms"
            raise FunctionFailed(message, failure="timeout") from late
        except (BotoCoreError, HTTPClientError, OSError) as broken:
            self._count(invocations=1, failed=1)
            raise FunctionFailed(f"{self._reach.name} gave no answer: {broken}") from broken
        return self._told(response, payload, time.monotonic() - begun)

    def taken(self) -> Usage:
        with self._lock:
            usage, self._usage = self._usage, Usage()
        return usage

    def _told(self, response: dict[str, Any], payload: bytes, took_s: float) -> dict[str, Any]:
        try:
            told = json.loads(payload)
        except ValueError:
            told = {}
        if "FunctionError" in response or not isinstance(told, dict):
            self._count(invocations=1, failed=1, seconds=took_s)
            text = str(told.get("errorMessage", "") if isinstance(told, dict) else told)
            raise FunctionFailed(
                f"{self._reach.name} failed: {response.get('FunctionError')} {text}",
                failure=_by_text(text),
            )
        cold, seconds = bool(told.get("cold")), float(told.get("ms", 0)) / 1000
        # what a cold one took beyond its work was its start, and the way there and back
        start_ms = (took_s - seconds) * 1000 if cold else 0.0
        self._count(invocations=1, seconds=seconds, cold_starts=int(cold), cold_start_ms=start_ms)
        return told

    def _refused(self, refused: Any) -> FunctionFailed:
        code = refused.response.get("Error", {}).get("Code", "")
        status = refused.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        by_status: dict[int, Failure] = {429: "throttled", 413: "too_large"}
        failure = _FAILURES.get(code) or by_status.get(status, "failed")
        if failure == "throttled":
            self._count(throttled=1)
        return FunctionFailed(f"{self._reach.name} was not invoked: {refused}", failure=failure)

    def _count(self, **more: Any) -> None:
        with self._lock:
            self._usage += Usage(**more)

    def _client(self, timeout_ms: int) -> Any:
        rounded = -(-timeout_ms // _STEP_MS) * _STEP_MS
        with self._lock:
            if rounded not in self._clients:
                self._clients[rounded] = _client(self._reach, rounded)
            return self._clients[rounded]


def request_limit(payload_limit: int) -> int:
    """Bytes of a request whose text, in base64 and with JSON around it, fits.

    >>> request_limit(6 * 1024 * 1024)
    4717824
    """
    return (payload_limit - 1024) // 4 * 3


def _by_text(message: str) -> Failure:
    """What the Lambda service says of a handler that did not answer."""
    if "timed out" in message:
        return "timeout"
    return "too_large" if "payload size exceeded" in message else "failed"


def _must_have_boto3() -> None:
    try:
        import boto3  # noqa: F401
    except ImportError as missing:
        raise SettingError(
            "functions on AWS Lambda need boto3, and it is not installed",
            hint="pip install 'penstock[aws]', on the driver and on all executors",
        ) from missing


def _client(reach: LambdaReach, timeout_ms: int) -> Any:
    import boto3
    from botocore.config import Config

    config = Config(
        connect_timeout=timeout_ms / 1000,
        read_timeout=timeout_ms / 1000,
        # a second try would come when the rows have long gone another way
        retries={"total_max_attempts": 1},
        max_pool_connections=reach.connections,
    )
    # a session of its own: boto3's default one is not safe to use from several threads
    session = boto3.session.Session()
    return session.client(
        "lambda", region_name=reach.region, endpoint_url=reach.endpoint_url, config=config
    )
