"""A live query of a bench: how it is started, awaited and ended, and when its load began."""

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
"""A load that has ended may be worked on for so much longer."""
_STARTS, _START_S, _POLL_S = 3, 120.0, 0.25


@contextmanager
def running(start: Callable[[str], ps.FlowQuery], folder: str) -> Iterator[ps.FlowQuery]:
    """The query, once it has had an epoch; Spark may need to be asked twice to start a source.

    `start` is given a checkpoint below the folder, another one each time.
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
    """When the load began, as the first source tells Spark; waits until it has."""
    found: list[Began] = []

    def look() -> bool:
        newest = query.spark_query().lastProgress
        offset = newest["sources"][0]["endOffset"] if newest else None
        facts = json.loads(offset) if isinstance(offset, str) else offset
        if facts and facts["start_ms"] is not None:
            found.append(Began(facts["start_ms"], facts["first"]))
        return bool(found)

    until(query, look, _START_S)
    return found[0]


def until(
    query: ps.FlowQuery, condition: Callable[[], bool], timeout_s: float, poll_s: float = _POLL_S
) -> None:
    """Wait for a condition; a query that ends before, or that takes too long, is an error."""
    deadline, pause = time.monotonic() + timeout_s, threading.Event()
    while not condition():
        if not query.is_active:
            raise PenstockError(f"the query ended: {query.status.message}")
        if time.monotonic() > deadline:
            raise PenstockError(f"the query is not done after {timeout_s:.0f} s")
        pause.wait(poll_s)
