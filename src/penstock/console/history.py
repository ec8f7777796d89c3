"""Latency over the last minutes, collected from epochs' progress."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from penstock.driver.progress import Latency

_KEPT_MS = 180_000
"""Milliseconds for which epochs are remembered."""


@dataclass(frozen=True)
class SeenEpoch:
    """One epoch with at least one row."""

    epoch: int
    done_ms: float
    """Time at which its output was in the sink, in milliseconds since 1970."""
    rows: int
    latency: Latency
    average_ms: float = 0.0
    """Average latency in milliseconds over the SLA's window that ends with this epoch."""


class LatencyHistory:
    """The epochs of the last three minutes, as far as they were polled.

    Epochs shorter than the polling interval may be missed; averages are over the polled ones. It needs no
    clock: it uses the times recorded in the epochs.
    """

    def __init__(self, bar_ms: float) -> None:
        self._bar_ms = bar_ms
        self._seen: deque[SeenEpoch] = deque()

    def take(self, newest: SeenEpoch, window_ms: float) -> None:
        """Add the newest epoch, unless it was added already."""
        if self._seen and self._seen[-1].epoch == newest.epoch:
            return
        window = [seen for seen in self._seen if seen.done_ms > newest.done_ms - window_ms]
        self._seen.append(replace(newest, average_ms=_average([*window, newest])))
        while self._seen[0].done_ms <= newest.done_ms - _KEPT_MS:
            self._seen.popleft()

    @property
    def newest(self) -> SeenEpoch | None:
        return self._seen[-1] if self._seen else None

    @property
    def worst_ms(self) -> float:
        """Highest average latency over a window of the SLA, in milliseconds."""
        return max((seen.average_ms for seen in self._seen), default=0.0)

    @property
    def bars_ms(self) -> list[float]:
        """Average latencies in milliseconds, one per `bar_ms` of time, oldest first."""
        bars = groupby(self._seen, key=lambda seen: seen.done_ms // self._bar_ms)
        return [_average(list(bar)) for _, bar in bars]


def _average(epochs: Sequence[SeenEpoch]) -> float:
    total_ms = sum(epoch.rows * epoch.latency.mean_ms for epoch in epochs)
    return total_ms / sum(epoch.rows for epoch in epochs)
