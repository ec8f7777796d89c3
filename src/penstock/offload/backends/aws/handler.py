"""The handler that AWS Lambda calls, as the entry point in the archive of `penstock functions package`.

A Lambda function that is invoked directly takes and returns JSON: no bytes, and 6 MB at most either way. So
requests and answers are base64 text inside a JSON object, which makes them a third larger;
`backend.request_limit` allows for that. Over a URL or a gateway, bytes would be base64 as well, with one more
limit.

    {"request": text}    ->  {"answer": text, "cold": bool, "ms": float}, or {"failed": text, "failure": ...}
    {"warm": ms}         ->  {"mark": text, "cold": bool, "ms": float}, after `ms`: so that others are started
"""

from __future__ import annotations

import base64
import pickle
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.offload.backends.worker import BurstWorker

PLAN = "flow_plan.pickle"
"""Name of the file with the flow's plan, beside the entry point in the archive."""
ANSWER_LIMIT = 6 * 1024 * 1024 - 1024
"""Largest answer in bytes of base64 text; the rest of the payload is for the JSON around it."""


class Handler:
    """Answers the events of one Lambda environment. The first event counts as a cold start."""

    def __init__(self, worker: BurstWorker) -> None:
        self._worker, self._cold = worker, True
        pa.set_cpu_count(1)
        worker.rehearse()

    @staticmethod
    def of(folder: Path) -> Handler:
        """Make a handler for the plan in a folder. The plan is trusted, like the code beside it."""
        return Handler(BurstWorker(pickle.loads((folder / PLAN).read_bytes())))

    def __call__(self, event: dict[str, Any], context: Any = None) -> dict[str, Any]:
        began = time.perf_counter()
        cold, self._cold = self._cold, False
        result = self._result(event)
        return result | {"cold": cold, "ms": (time.perf_counter() - began) * 1000}

    def _result(self, event: dict[str, Any]) -> dict[str, Any]:
        if "warm" in event:
            time.sleep(event["warm"] / 1000)
            return {"mark": self._worker.mark}
        try:
            body = self._worker.answer(base64.b64decode(event["request"]))
        except Exception as failed:
            # returned, not raised: Lambda may discard an environment whose handler has raised an error
            return {"failed": f"{type(failed).__name__}: {failed}", "failure": "failed"}
        text = base64.b64encode(body).decode()
        if len(text) > ANSWER_LIMIT:
            return {
                "failed": f"an answer has {len(text)} bytes, and the limit is {ANSWER_LIMIT}",
                "failure": "too_large",
            }
        return {"answer": text}
