"""What AWS Lambda calls. Packed into the archive of `penstock functions package` as its entry.

Lambda takes and gives JSON when a function is invoked directly: no bytes, and 6 MB at most either
way. So requests and answers travel as base64 text inside a JSON object, which makes them a third
larger; `lambda_invoker.request_limit` reckons with that. Over a function's URL or a gateway bytes
would be base64 all the same, behind one more limit.

    {"request": text}    ->  {"answer": text, "cold": bool, "ms": float}, or {"failed": text, "failure": ...}
    {"warm": ms}         ->  {"cold": bool, "ms": float}: stays busy that long, so that others are warmed too
"""

from __future__ import annotations

import base64
import pickle
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.offload.backends.work import Work

PLAN = "flow_plan.pickle"
"""Beside the entry in the archive."""
ANSWER_LIMIT = 6 * 1024 * 1024 - 1024
"""Bytes that an answer may have as text, with some left for what is around it."""


class Handler:
    """Answers events of one environment. The first one that it is given, it was started for."""

    def __init__(self, work: Work) -> None:
        self._work, self._cold = work, True
        pa.set_cpu_count(1)
        work.rehearse()

    @staticmethod
    def of(folder: Path) -> Handler:
        """With the plan that was packed: it is the account's own, like the code beside it."""
        return Handler(Work(pickle.loads((folder / PLAN).read_bytes())))

    def __call__(self, event: dict[str, Any], context: Any = None) -> dict[str, Any]:
        begun = time.perf_counter()
        cold, self._cold = self._cold, False
        told = self._done(event)
        return told | {"cold": cold, "ms": (time.perf_counter() - begun) * 1000}

    def _done(self, event: dict[str, Any]) -> dict[str, Any]:
        if "warm" in event:
            time.sleep(event["warm"] / 1000)
            return {}
        try:
            body = self._work.answer(base64.b64decode(event["request"]))
        except Exception as failed:
            # told, not raised: Lambda may throw away an environment in which a handler raised
            return {"failed": f"{type(failed).__name__}: {failed}", "failure": "failed"}
        text = base64.b64encode(body).decode()
        if len(text) > ANSWER_LIMIT:
            return {"failed": f"an answer of {len(text)} bytes", "failure": "too_large"}
        return {"answer": text}
