"""Latency over the last minutes, as the epochs that were seen tell it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from penstock.driver.progress import Latency

_KEPT_MS = 180_000


@dataclass(frozen=True)
class SeenEpoch:
    """An epoch that was seen, with rows in it."""

    epoch: int
    done_ms: float
    """When its output was in the sink, in milliseconds since 1970."""
    rows: int
    latency: Latency
    average_ms: float = 0.0
    """Over the SLA's window up to this epoch."""


class LatencyHistory:
    """The epochs that were seen, of the last three minutes. Where epochs are quicker than looks, some
    are missed: averages are over those seen. No clock: it goes by the times that epochs tell."""

    def __init__(self, bar_ms: float) -> None:
        self._bar_ms = bar_ms
        self._seen: deque[SeenEpoch] = deque()

    def take(self, found: SeenEpoch, window_ms: float) -> None:
        """Go on with the newest epoch; the same one again is skipped."""
        if self._seen and self._seen[-1].epoch == found.epoch:
            return
        window = [seen for seen in self._seen if seen.done_ms > found.done_ms - window_ms]
        self._seen.append(replace(found, average_ms=_average([*window, found])))
        while self._seen[0].done_ms <= found.done_ms - _KEPT_MS:
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
        """Average latencies over `bar_ms` each, oldest first."""
        bars = groupby(self._seen, key=lambda seen: seen.done_ms // self._bar_ms)
        return [_average(list(bar)) for _, bar in bars]


def _average(seen: Sequence[SeenEpoch]) -> float:
    return sum(one.rows * one.latency.mean_ms for one in seen) / sum(one.rows for one in seen)
