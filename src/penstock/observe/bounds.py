"""The bounds of an SLA, each with the figure that it is on and how often it was kept. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from penstock.control.examine.success import FlowMeter
from penstock.driver.progress import EpochProgress, Latency, merged_latency
from penstock.model import SLA, LatencyBound

_USUAL_TAIL, _MOST_TAIL = 2.0, 20.0
"""99th percentile as a multiple of the average, as long as none is known, and at most."""


@dataclass(frozen=True)
class BoundMoment(LatencyBound):
    """One bound of the SLA, and how it was kept in a moment."""

    reached_ms: float | None = None
    """The figure that it bounds: average or 99th percentile, of the flow or of a step. None if it is not
    known, as of a step without autoscaling. A step's percentile is its average times the flow's tail."""
    windows: int = 0
    """Windows that ended."""
    kept: int = 0
    """Those of them in which the bound was kept."""

    @property
    def kind(self) -> str:
        """Name of the figure."""
        return kind_of(self)

    @property
    def what(self) -> str:
        """The figure in words, such as "p99 latency of step clicks"."""
        return what_of(self)


def kind_of(bound: LatencyBound) -> str:
    """Name of the figure that a bound is on: "mean" or "p99"."""
    return "p99" if bound.p99 else "mean"


def what_of(bound: LatencyBound) -> str:
    """The figure that a bound is on, in words.

    >>> what_of(LatencyBound(1000, 1000)), what_of(LatencyBound(1000, 1000, p99=True, step="clicks"))
    ('average latency', 'p99 latency of step clicks')
    """
    figure = "p99" if bound.p99 else "average"
    return f"{figure} latency" + ("" if bound.step is None else f" of step {bound.step}")


def reached(bound: LatencyBound, latency: Latency | None) -> float | None:
    """The figure of a flow's latency that a bound is on, in milliseconds."""
    if latency is None:
        return None
    return latency.p99_ms if bound.p99 else latency.mean_ms


def judged(bound: LatencyBound, reached_ms: float | None, windows: int, kept: int) -> BoundMoment:
    """A bound of an SLA with its figures in a moment."""
    known = None if reached_ms is None else round(reached_ms, 3)
    return BoundMoment(**asdict(bound), reached_ms=known, windows=windows, kept=kept)


class BoundJudge:
    """Judges all bounds of a running query's SLA, moment by moment. One thread calls it."""

    def __init__(self) -> None:
        self._meters: dict[tuple[bool, str | None], FlowMeter] = {}
        """Whether a bound is on the 99th percentile, and its step -> its meter."""
        self._tail = _USUAL_TAIL
        """The flow's 99th percentile as a multiple of its average, smoothed."""

    def judge(
        self,
        sla: SLA | None,
        now_ms: float,
        epochs: Sequence[EpochProgress],
        of_steps: Mapping[str, float],
        main: tuple[int, int],
    ) -> tuple[BoundMoment, ...]:
        """All bounds of the SLA in the moment that ends now.

        `of_steps` has the average latency of each step that had records. `main` are the windows of the first
        bound on the whole flow, and those that were kept, since the query judges this one itself.
        """
        latency = merged_latency(epochs)
        self._note_tail(latency)
        bounds = () if sla is None else sla.bounds
        first = next((bound for bound in bounds if bound.step is None), None)
        found = []
        for bound in bounds:
            if bound.step is None:
                reached_ms = reached(bound, latency)
                windows = main if bound is first else self._of_flow(bound, epochs)
            else:
                reached_ms = self._step_ms(bound, of_steps.get(bound.step))
                windows = self._of_step(bound, now_ms, reached_ms)
            found.append(judged(bound, reached_ms, *windows))
        return tuple(found)

    def _of_flow(self, bound: LatencyBound, epochs: Sequence[EpochProgress]) -> tuple[int, int]:
        """Windows that ended with these epochs, and those that were kept."""
        meter = self._meter(bound)
        before = meter.windows, meter.kept
        for epoch in epochs:
            if (reached_ms := reached(bound, epoch.latency)) is not None:
                meter.take(epoch.done_ms, epoch.rows, reached_ms)
        return meter.windows - before[0], meter.kept - before[1]

    def _of_step(
        self, bound: LatencyBound, now_ms: float, reached_ms: float | None
    ) -> tuple[int, int]:
        """The same for a step, by its latency at the end of the moment."""
        meter = self._meter(bound)
        before = meter.windows, meter.kept
        if reached_ms is not None:
            meter.take(now_ms, 1, reached_ms)
        return meter.windows - before[0], meter.kept - before[1]

    def _meter(self, bound: LatencyBound) -> FlowMeter:
        meter = self._meters.setdefault((bound.p99, bound.step), FlowMeter(bound))
        meter.bound = bound  # it may have been steered
        return meter

    def _step_ms(self, bound: LatencyBound, mean_ms: float | None) -> float | None:
        if mean_ms is None:
            return None
        return mean_ms * self._tail if bound.p99 else mean_ms

    def _note_tail(self, latency: Latency | None) -> None:
        if latency is not None and latency.mean_ms > 0:
            tail = min(max(latency.p99_ms / latency.mean_ms, 1.0), _MOST_TAIL)
            self._tail += (tail - self._tail) / 8
