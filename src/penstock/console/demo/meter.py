"""Throughput, latency and host load of a running query over the last second, computed from its progress."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from penstock.console.history import LatencyHistory, SeenEpoch
from penstock.driver.progress import EpochProgress, Latency
from penstock.model import SLA

_WINDOW_MS = 1000.0
_BARS = 60
_BAR_MS = 500
"""Milliseconds that one bar of the history covers: 60 bars are half a minute."""


@dataclass(frozen=True)
class HostReading:
    """One host: its state now, and its load over the last second."""

    host: str
    entries: int
    state_bytes: int
    busy: float
    """Share of the last second that it worked, 0 to 1."""
    taken: int
    """Records (rows and partial states) received since the start."""


@dataclass(frozen=True)
class Reading:
    """Metrics of a query at one moment."""

    epoch: int
    rows: int
    rows_per_second: float
    latency: Latency | None
    """Latency of the last second's rows; its p99 is the worst epoch's."""
    worst_ms: float
    """Highest average latency over any window of the SLA since the start, in milliseconds."""
    history_ms: tuple[float, ...]
    hosts: tuple[HostReading, ...]
    moved: int = 0
    """Number of slots that have moved between hosts since the start."""


class DemoMeter:
    """Follows a query through its progress. It needs no clock: it uses the times recorded in the epochs."""

    def __init__(self, sla: SLA) -> None:
        self._sla = sla
        self._recent: deque[EpochProgress] = deque()
        self._newest: EpochProgress | None = None
        self._rows = self._moved = 0
        self._taken: dict[str, int] = {}
        self._worst_ms = 0.0
        self._history = LatencyHistory(_BAR_MS)

    def take(self, progress: Iterable[EpochProgress]) -> None:
        """Add the epochs that are newer than the last one added."""
        for epoch in progress:
            if self._newest is not None and epoch.epoch <= self._newest.epoch:
                continue
            self._newest = epoch
            self._rows += epoch.rows
            self._moved += sum(len(handover.slots) for handover in epoch.migration.handovers)
            for host in epoch.hosts:
                self._taken[host.host] = self._taken.get(host.host, 0) + host.rows
            self._recent.append(epoch)
            while _done(self._recent[0]) <= _done(epoch) - _WINDOW_MS:
                self._recent.popleft()
            if epoch.latency is not None and epoch.rows:
                seen = SeenEpoch(epoch.epoch, _done(epoch), epoch.rows, epoch.latency)
                self._history.take(seen, self._sla.window_ms)
                self._worst_ms = max(self._worst_ms, self._history.worst_ms)

    def reading(self) -> Reading | None:
        """The current metrics, or None before the first epoch."""
        newest = self._newest
        if newest is None:
            return None
        last = self._recent
        span_ms = max(1.0, _done(newest) - min(e.started_ms for e in last))
        worked_ms: dict[str, float] = defaultdict(float)
        for host in (host for epoch in last for host in epoch.hosts):
            worked_ms[host.host] += host.useful_ms
        busy = {host: min(1.0, ms / span_ms) for host, ms in worked_ms.items()}
        return Reading(
            epoch=newest.epoch,
            rows=self._rows,
            rows_per_second=sum(e.rows for e in last) / span_ms * 1000,
            latency=_over(last),
            worst_ms=self._worst_ms,
            history_ms=tuple(self._history.bars_ms[-_BARS:]),
            hosts=tuple(
                HostReading(h.host, h.entries, h.state_bytes, busy[h.host], self._taken[h.host])
                for h in newest.hosts
            ),
            moved=self._moved,
        )


def _done(epoch: EpochProgress) -> float:
    """Time at which the epoch's output was in the sink, in milliseconds since 1970."""
    return epoch.started_ms + epoch.sink_ms


def _over(epochs: Iterable[EpochProgress]) -> Latency | None:
    """Latency over several epochs. Its p50 and p99 are approximations from those of the epochs."""
    known = [(e.rows, e.latency) for e in epochs if e.latency is not None and e.rows]
    if not known:
        return None
    rows = np.array([r for r, _ in known])
    means, medians = (np.array([getattr(x, n) for _, x in known]) for n in ("mean_ms", "p50_ms"))
    order = np.argsort(medians)
    middle = np.searchsorted(np.cumsum(rows[order]), rows.sum() / 2)
    return Latency(
        mean_ms=float(np.average(means, weights=rows)),
        p50_ms=float(medians[order][middle]),
        p99_ms=max(x.p99_ms for _, x in known),
    )
