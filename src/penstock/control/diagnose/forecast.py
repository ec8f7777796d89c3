"""Choice between two projections for a live step, M/M/1 and chunks, by how well each one predicted.

A host of a live flow processes chunks, and every chunk has a fixed cost. Where that cost is most of the
latency, M/M/1 predicts far too little. Where hosts are slow and chunks small, M/M/1 is right. Both predict
the latency one window ahead, again and again. The one whose recent predictions were closer is used.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from penstock.control.diagnose.project import Chunks, Mm1
from penstock.control.examine.vitals import Floats, Vitals
from penstock.control.treat.decision import Bounds
from penstock.state.arrays import Array

_WEIGHT = 1 / 8
"""Weight of the newest error, and of the newest cost, in their averages."""
_BUSIEST = 0.95
"""Load of a host from which on the cost of a chunk cannot be computed from its latency."""
_LEAST_MS = 0.1
"""Latency in milliseconds below which all latencies count as equal."""
_MM1, _CHUNKS = Mm1(), Chunks()


@dataclass(frozen=True)
class _Predicted:
    """Predicted latencies of a step's hosts."""

    due_ms: float
    """Time at which to compare the prediction with the actual latency."""
    placing: tuple[tuple[str, ...], bytes]
    """The hosts, and the owner of each slot as bytes."""
    by_mm1: Floats
    by_chunks: Floats


class Forecast:
    """Compares the predictions of each projection with the actual latencies. Used by one thread.

    >>> from penstock.model import SLA, StepId
    >>> forecast, bounds = Forecast(), Bounds(SLA(100, 1000))
    >>> fast = Vitals.even(StepId("sum"), [2_000.0], hosts=1, service_rate=10_000.0, latency_ms=6.0)
    >>> for second in range(4):
    ...     now = forecast.fit(replace(fast, now_ms=1_000.0 * second), bounds)
    >>> round(now.chunk_cost_ms, 1)  # M/M/1 had predicted an eighth of a millisecond
    3.2
    """

    def __init__(self) -> None:
        self.cost_ms: float | None = None
        """Estimated fixed cost of a chunk in milliseconds; None before the first estimate."""
        self.errors: tuple[float, float] | None = None
        """Recent errors of M/M/1 and of chunks: the mean absolute logarithm of predicted over actual."""
        self._predicted: _Predicted | None = None

    def fit(self, vitals: Vitals, bounds: Bounds) -> Vitals:
        """Check the last prediction and make a new one. Returns vitals that select the better projection."""
        rate, served, latency_ms = vitals.host_rate, vitals.service_rate, vitals.latency_ms
        placing = (tuple(map(str, vitals.hosts)), vitals.owner.tobytes())
        load = rate / served
        known = np.isfinite(latency_ms) & np.isfinite(load) & (rate > 0) & (load < _BUSIEST)
        self._look_back(vitals.now_ms, placing, latency_ms, known)
        if known.any():
            cost_ms = float(np.median(latency_ms[known] * (1 - load[known]) / _CHUNKS.settle))
            before_ms = cost_ms if self.cost_ms is None else self.cost_ms
            self.cost_ms = before_ms + _WEIGHT * (cost_ms - before_ms)
        if self._predicted is None and self.cost_ms is not None and known.any():
            real = replace(bounds, margin=0.0)
            self._predicted = _Predicted(
                vitals.now_ms + bounds.window_ms,
                placing,
                _MM1.latency_ms(rate, served, real),
                _CHUNKS.latency_ms(rate, served, real, self.cost_ms),
            )
        if self.errors is None or self.cost_ms is None or self.errors[0] <= self.errors[1]:
            return vitals
        return replace(vitals, chunk_cost_ms=max(self.cost_ms, _LEAST_MS))

    def _look_back(
        self, now_ms: float, placing: tuple[tuple[str, ...], bytes], came_ms: Floats, known: Array
    ) -> None:
        then = self._predicted
        if then is None or (now_ms < then.due_ms and placing == then.placing):
            return
        self._predicted = None
        if placing != then.placing or not known.any():
            return  # slots have moved, so the prediction no longer applies
        by_mm1, by_chunks = (
            float(np.mean(np.abs(np.log(_least(by[known]) / _least(came_ms[known])))))
            for by in (then.by_mm1, then.by_chunks)
        )
        old = self.errors or (by_mm1, by_chunks)
        new = (by_mm1, by_chunks)
        self.errors = (old[0] + _WEIGHT * (new[0] - old[0]), old[1] + _WEIGHT * (new[1] - old[1]))


def _least(latency_ms: Floats) -> Floats:
    """The latencies limited to a range in which they have a logarithm."""
    return np.clip(latency_ms, _LEAST_MS, 1e9)
