"""AWS Lambda's invoke API on a local port, as far as Penstock uses it.

Behind it, the real handler answers in environments like Lambda's: each serves one invocation at a time, is
started when none is free, and stays warm. Faults are put into a queue, one for each invocation.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal, Protocol

Fault = Literal["throttle", "hang", "error", "kill", "garbage", "timed out"]
PAYLOAD_LIMIT = 6 * 1024 * 1024
HELLO = "ready"

_BOOTSTRAP = f"""
import json, sys
replies = sys.stdout
sys.stdout = sys.stderr
sys.path.insert(0, sys.argv[1])
from penstock_handler import handler
spare = {{"pyspark", "pandas", "boto3"}} & set(sys.modules)
assert not spare, spare
import penstock
assert penstock.__file__.startswith(sys.argv[1])
print({HELLO!r}, file=replies, flush=True)
for line in sys.stdin:
    print(json.dumps(handler(json.loads(line), None)), file=replies, flush=True)
"""


class Environment(Protocol):
    """An environment in which Lambda runs a handler."""

    def answer(self, event: dict[str, Any]) -> dict[str, Any]:
        """Raises EOFError if it died."""
        ...

    def kill(self) -> None: ...


class InProcess:
    """A handler in this process."""

    def __init__(self, handler: Callable[[dict[str, Any], Any], dict[str, Any]]) -> None:
        self._handler = handler
        self._killed = False

    def answer(self, event: dict[str, Any]) -> dict[str, Any]:
        if self._killed:
            raise EOFError
        return self._handler(event, None)

    def kill(self) -> None:
        self._killed = True


class Unpacked:
    """The content of an archive in a separate process, which imports Penstock from there."""

    def __init__(self, folder: Path, kernels: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _BOOTSTRAP, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=folder,
            env={"NUMBA_CACHE_DIR": kernels},
            text=True,
        )
        self._read()

    def answer(self, event: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(event) + "\n")
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError):  # it died, or was killed
            raise EOFError from None
        result: dict[str, Any] = json.loads(self._read())
        return result

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise EOFError
        return line


class LambdaStandIn:
    """The service, for one function name. A context manager."""

    def __init__(self, name: str, start: Callable[[], Environment], at_most: int = 10) -> None:
        self.name, self._start, self._at_most = name, start, at_most
        self.faults: deque[Fault | None] = deque()
        self.asked: list[dict[str, str]] = []
        """Headers of all requests."""
        self.started = 0
        self._lock = threading.Lock()
        self._idle: list[Environment] = []
        self._busy = 0
        self._ended = threading.Event()
        stand_in = self

        class Calls(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                stand_in.asked.append(dict(self.headers))
                result = stand_in.answer(self.path, body)
                if result is None:
                    self.close_connection = True
                    return
                status, headers, payload = result
                self.send_response(status)
                for header, value in headers.items():
                    self.send_header(header, value)
                self.send_header("Content-Length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Calls)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> LambdaStandIn:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._server.shutdown()
        self._server.server_close()
        for environment in self._idle:
            environment.kill()

    def answer(self, path: str, body: bytes) -> tuple[int, dict[str, str], bytes] | None:
        """Status, headers and body of the response; None to break the connection."""
        if path != f"/2015-03-31/functions/{self.name}/invocations":
            return _error(404, "ResourceNotFoundException", f"no function at {path}")
        if len(body) > PAYLOAD_LIMIT:
            return _error(413, "RequestTooLargeException", "the request payload is too large")
        fault = self.faults.popleft() if self.faults else None
        if fault == "throttle":
            return _throttled()
        if fault == "error":
            return _error(500, "ServiceException", "an internal error occurred")
        if fault == "garbage":
            return 200, {}, b"no JSON"
        if fault == "timed out":
            result = {
                "errorMessage": "2026-01-01T00:00:00Z 1-2-3 Task timed out after 3.00 seconds"
            }
            return 200, {"X-Amz-Function-Error": "Unhandled"}, json.dumps(result).encode()
        if fault == "hang":
            self._ended.wait()
            return None
        return self._invoked(json.loads(body), fault == "kill")

    def _invoked(
        self, event: dict[str, Any], kill: bool
    ) -> tuple[int, dict[str, str], bytes] | None:
        with self._lock:
            if self._busy >= self._at_most:
                return _throttled()
            self._busy += 1
            environment = self._idle.pop() if self._idle else None
        try:
            if environment is None:
                environment = self._start()
                self.started += 1
            if kill:
                environment.kill()
            result = environment.answer(event)
        except EOFError:
            died = {"errorType": "Runtime.ExitError", "errorMessage": "Runtime exited: killed"}
            return 200, {"X-Amz-Function-Error": "Unhandled"}, json.dumps(died).encode()
        finally:
            with self._lock:
                self._busy -= 1
        with self._lock:
            self._idle.append(environment)
        return 200, {"X-Amz-Executed-Version": "$LATEST"}, json.dumps(result).encode()


def _throttled() -> tuple[int, dict[str, str], bytes]:
    return _error(429, "TooManyRequestsException", "Rate Exceeded.")


def _error(status: int, code: str, message: str) -> tuple[int, dict[str, str], bytes]:
    return status, {"x-amzn-ErrorType": code}, json.dumps({"message": message}).encode()
