"""The figures of a query that Spark's listeners get with each progress event."""

from __future__ import annotations

from collections import deque

from penstock.observe.moment import Moment

FIGURES = {
    "latency_mean_ms": float,
    "latency_p99_ms": float,
    "sla_latency_ms": float,
    "success_rate": float,
    "hosts": int,
    "functions": int,
    "backlog": int,
}
"""Name of each figure -> its type. Latency is that of the newest second with rows; the success rate is the
share of the SLA's windows of the last minute that were kept."""
_MOMENTS = 60


class NewestFigures:
    """The newest figures of a query. `take` is for `Recorder.watch`; any thread may read `now`."""

    def __init__(self) -> None:
        self.now: dict[str, float] = {}
        """Name of each figure that is known -> its value."""
        self._windows: deque[tuple[int, int]] = deque(maxlen=_MOMENTS)

    def take(self, moment: Moment) -> None:
        """Take in a moment."""
        self._windows.append((moment.windows, moment.kept))
        now = self.now | {
            "hosts": moment.hosts,
            "functions": moment.functions,
            "backlog": moment.backlog,
        }
        if moment.latency is not None:
            now["latency_mean_ms"] = round(moment.latency.mean_ms, 3)
            now["latency_p99_ms"] = round(moment.latency.p99_ms, 3)
        if moment.sla is not None:
            now["sla_latency_ms"] = float(moment.sla.latency_ms)
        windows = sum(windows for windows, _ in self._windows)
        if windows:
            now["success_rate"] = round(sum(kept for _, kept in self._windows) / windows, 4)
        self.now = now
