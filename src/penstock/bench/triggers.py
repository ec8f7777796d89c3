"""Timing of a Spark streaming query's triggers, the same way for every side of a comparison."""

from __future__ import annotations

import threading
from datetime import datetime
from itertools import pairwise
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from penstock.errors import PenstockError


class Triggers:
    """Reads a running query's progress until enough of it has been seen."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query

    def progress(self, until: int, timeout_s: float = 900) -> list[dict[str, Any]]:
        """All progress up to epoch `until`, in order; waits for it."""
        seen: dict[int, dict[str, Any]] = {}
        pause = threading.Event()
        waited = 0.0
        while not seen or max(seen) < until:
            if self._query.exception() is not None or not self._query.isActive:
                reason = str(self._query.exception()).strip().split("\n")[0]
                raise PenstockError(f"a side of the bench ended: {reason}")
            if waited > timeout_s:
                raise PenstockError(f"a side of the bench took over {timeout_s:.0f} s")
            pause.wait(0.1)
            waited += 0.1
            # By value: the object behind it may be gone with the query.
            seen |= {p["batchId"]: dict(p) for p in self._query.recentProgress}
        return [seen[epoch] for epoch in sorted(seen)]

    def cycles_ms(self, warm: int, measured: int) -> list[float]:
        """Milliseconds from one trigger's start to the next, after `warm` triggers."""
        progress = self.progress(until=warm + measured)
        starts = [started_ms(p) for p in progress if p["batchId"] >= warm]
        return [b - a for a, b in pairwise(starts)]


def started_ms(progress: dict[str, Any]) -> float:
    """When a trigger began, in milliseconds since 1970."""
    text = str(progress["timestamp"]).replace("Z", "+00:00")
    return datetime.fromisoformat(text).timestamp() * 1000
