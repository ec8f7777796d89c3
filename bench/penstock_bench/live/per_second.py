"""Latency by the second in which rows arrived, from when each epoch's output was in the sink."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Delivered:
    """Rows up to this number (exclusive) were in the sink at this time."""

    row: int
    at_ms: float


@dataclass(frozen=True)
class Seconds:
    """Milliseconds from arrival to sink, one value for each second of arrivals."""

    p50_ms: list[float]
    p99_ms: list[float]
    cumulative_p99_ms: list[float]
    """Of all rows that have arrived up to the end of that second."""

    def peak_ms(self, since: int) -> float:
        """The worst second from that one on, by its 99th percentile."""
        return max(self.p99_ms[since:])

    def steady_ms(self, until: int) -> float:
        """The median of the seconds before that one, by their 99th percentiles."""
        return float(np.median(self.p99_ms[:until]))


def per_second(
    delivered: Sequence[Delivered], first_row: int, seconds: int, rate: int, start_ms: float
) -> Seconds:
    """The latency of the rows of some seconds; row `first_row` arrives at `start_ms`.

    >>> told = per_second([Delivered(4, 1500.0), Delivered(8, 2500.0)], 0, 2, 4, 0.0)
    >>> told.p50_ms, told.peak_ms(since=1)
    ([1125.0, 1125.0], 1492.5)
    """
    numbers = np.arange(first_row, first_row + seconds * rate)
    ends = np.array([d.row for d in delivered])
    times = np.array([d.at_ms for d in delivered])
    arrived = start_ms + (numbers - first_row) * 1000 / rate
    latencies: npt.NDArray[np.float64] = times[np.searchsorted(ends, numbers, "right")] - arrived
    by_second = latencies.reshape(seconds, rate)
    return Seconds(
        p50_ms=np.percentile(by_second, 50, axis=1).tolist(),
        p99_ms=np.percentile(by_second, 99, axis=1).tolist(),
        cumulative_p99_ms=[
            float(np.percentile(latencies[: (n + 1) * rate], 99)) for n in range(seconds)
        ],
    )
