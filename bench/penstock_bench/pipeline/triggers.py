"""Timing of a Spark streaming query's triggers, the same way for every side of a comparison."""

from __future__ import annotations

import threading
from datetime import datetime
from itertools import pairwise
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from penstock.errors import PenstockError

_POLL_S = 0.25


class Triggers:
    """Reads a running query's progress until enough of it has been seen."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query

    def progress(self, until: int, timeout_s: float = 900) -> list[dict[str, Any]]:
        """Waits for epoch `until`, then gives the progress that Spark keeps, in order: 100 epochs.

        Asks for the newest only while it waits: telling all of it ten times a second would cost
        the query that is being timed a good part of a core.
        """
        pause = threading.Event()
        waited = 0.0
        while (newest := self._query.lastProgress) is None or newest["batchId"] < until:
            if self._query.exception() is not None or not self._query.isActive:
                reason = str(self._query.exception()).strip().split("\n")[0]
                raise PenstockError(f"a side of the bench ended: {reason}")
            if waited > timeout_s:
                raise PenstockError(f"a side of the bench took over {timeout_s:.0f} s")
            pause.wait(_POLL_S)
            waited += _POLL_S
        # By value: the object behind it may be gone with the query.
        return [dict(p) for p in self._query.recentProgress]

    def cycles_ms(self, warm: int, measured: int) -> list[float]:
        """Milliseconds from one trigger's start to the next, after `warm` triggers."""
        progress = self.progress(until=warm + measured)
        starts = [started_ms(p) for p in progress if p["batchId"] >= warm]
        return [b - a for a, b in pairwise(starts)]


def started_ms(progress: dict[str, Any]) -> float:
    """When a trigger began, in milliseconds since 1970."""
    text = str(progress["timestamp"]).replace("Z", "+00:00")
    return datetime.fromisoformat(text).timestamp() * 1000
