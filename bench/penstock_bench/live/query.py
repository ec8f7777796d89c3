"""Helpers for a bench's live query: start it, wait for it, end it, and find when its load began."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import penstock as ps
from penstock.errors import PenstockError
from penstock_bench.live.latency import Began

GRACE_S = 90.0
"""Seconds after the end of a load by which its rows must be done."""
_STARTS, _START_S, _POLL_S = 3, 120.0, 0.25


@contextmanager
def running(start: Callable[[str], ps.FlowQuery], folder: str) -> Iterator[ps.FlowQuery]:
    """A started query that has had an epoch. The start is retried, since Spark may fail to start a source.

    `start` gets a checkpoint in the folder, a new one for each attempt.
    """
    for attempt in range(_STARTS):
        query = start(f"{folder}/{attempt}")
        try:
            until(query, lambda q=query: bool(q.progress), _START_S)  # type: ignore[misc]
            break
        except PenstockError:
            query.stop()
            if attempt + 1 == _STARTS:
                raise
    try:
        yield query
    finally:
        query.stop()


def began(query: ps.FlowQuery) -> Began:
    """Start of the load, from the first source's offsets. Waits until the load has begun."""
    starts: list[Began] = []

    def look() -> bool:
        newest = query.spark_query().lastProgress
        offset = newest["sources"][0]["endOffset"] if newest else None
        facts = json.loads(offset) if isinstance(offset, str) else offset
        if facts and facts["start_ms"] is not None:
            starts.append(Began(facts["start_ms"], facts["first"]))
        return bool(starts)

    until(query, look, _START_S)
    return starts[0]


def until(
    query: ps.FlowQuery, condition: Callable[[], bool], timeout_s: float, poll_s: float = _POLL_S
) -> None:
    """Wait for a condition; fails if the query ends before, or after the timeout."""
    deadline, pause = time.monotonic() + timeout_s, threading.Event()
    while not condition():
        if not query.is_active:
            raise PenstockError(f"the query ended: {query.status.message}")
        if time.monotonic() > deadline:
            raise PenstockError(f"the query is not done after {timeout_s:.0f} s")
        pause.wait(poll_s)
