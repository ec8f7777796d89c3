"""Latency over the last minutes, as far as looks at a query's newest epoch tell of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from penstock.driver.progress import Latency

_BAR_MS = 2_000
"""One bar of the history stands for so long."""
_KEPT_MS = 180_000


@dataclass(frozen=True)
class SeenEpoch:
    """An epoch that a look found, with rows in it."""

    epoch: int
    done_ms: float
    """When its output was in the sink, in milliseconds since 1970."""
    rows: int
    latency: Latency
    average_ms: float
    """Over the SLA's window up to this epoch."""


class History:
    """The epochs that were seen, of the last three minutes. Where epochs are quicker than looks, some
    are missed: averages are over those seen. No clock: it goes by the times that epochs tell.

    >>> history = History()
    >>> told = {"rows": 10, "started_ms": 1000, "sink_ms": 200.0}
    >>> told["latency"] = {"mean_ms": 150.0, "p50_ms": 140.0, "p99_ms": 190.0}
    >>> for epoch in (7, 7, 8):
    ...     history.take(told | {"epoch": epoch}, window_ms=1000)
    >>> history.newest.average_ms, history.worst_ms, history.bars_ms
    (150.0, 150.0, [150.0])
    """

    def __init__(self) -> None:
        self._seen: deque[SeenEpoch] = deque()

    def take(self, progress: dict[str, Any] | None, window_ms: float) -> None:
        """What a look told of the newest epoch; the same one again, or one without rows, is skipped."""
        if progress is None or progress["latency"] is None:
            return
        if self._seen and self._seen[-1].epoch == progress["epoch"]:
            return
        done_ms = progress["started_ms"] + progress["sink_ms"]
        latency = Latency(**progress["latency"])
        found = SeenEpoch(progress["epoch"], done_ms, progress["rows"], latency, average_ms=0.0)
        window = [seen for seen in self._seen if seen.done_ms > done_ms - window_ms]
        average_ms = _average([*window, found])
        self._seen.append(replace(found, average_ms=average_ms))
        while self._seen[0].done_ms <= done_ms - _KEPT_MS:
            self._seen.popleft()

    @property
    def newest(self) -> SeenEpoch | None:
        return self._seen[-1] if self._seen else None

    @property
    def worst_ms(self) -> float:
        """The highest average over a window of the SLA."""
        return max((seen.average_ms for seen in self._seen), default=0.0)

    @property
    def bars_ms(self) -> list[float]:
        """Average latencies over two seconds each, oldest first."""
        bars = groupby(self._seen, key=lambda seen: seen.done_ms // _BAR_MS)
        return [_average(list(bar)) for _, bar in bars]


def _average(seen: Sequence[SeenEpoch]) -> float:
    return sum(one.rows * one.latency.mean_ms for one in seen) / sum(one.rows for one in seen)
