"""Exact latencies of a run, row by row, independent of the run's own measurements.

The arrival time and slot of each row are functions of its number. An epoch's rows are the next ones in
order, and the time at which its output was in the sink is known. So the latency of every row is known
exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.control.examine.vitals import Floats
from penstock.driver.progress import EpochProgress
from penstock.live.sources.rate import ArrivalTimes
from penstock.model import SLA
from penstock.sim.pieces import Numbers
from penstock.sim.success import success_rates


@dataclass(frozen=True)
class Delivered:
    """A point of progress: all rows up to `row` (exclusive) were in the sink at `at_ms`."""

    row: int
    at_ms: float


@dataclass(frozen=True)
class Seconds:
    """Latencies from arrival to sink in milliseconds, one value per second of arrivals."""

    p50_ms: list[float]
    p99_ms: list[float]
    cumulative_p99_ms: list[float]
    """99th percentile of all rows that arrived up to the end of each second."""

    def peak_ms(self, since: int) -> float:
        """Highest p99 of any second from `since` on."""
        return max(self.p99_ms[since:])

    def steady_ms(self, until: int) -> float:
        """Median of the p99 of the seconds before `until`."""
        return float(np.median(self.p99_ms[:until]))


def per_second(
    delivered: Sequence[Delivered], first_row: int, seconds: int, rate: int, start_ms: float
) -> Seconds:
    """Latencies of the rows of some seconds at a steady rate. Row `first_row` arrives at `start_ms`.

    >>> latencies = per_second([Delivered(4, 1500.0), Delivered(8, 2500.0)], 0, 2, 4, 0.0)
    >>> latencies.p50_ms, latencies.peak_ms(since=1)
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


DELTA_MS = 100.0

SlotsOf = Callable[[Numbers, Numbers], Numbers]
"""A function from row numbers and arrival times (microseconds) to slots."""


@dataclass(frozen=True)
class Began:
    """The start of a run's load."""

    start_ms: int
    """Time in milliseconds since 1970."""
    first: int
    """Number of its first row."""


@dataclass(frozen=True, eq=False)
class Truth:
    """The rows of a run and their latencies. The first three arrays are by time slot and slot."""

    arrived: Floats
    """Number of rows that arrived."""
    completed: Floats
    """Number of rows that were done."""
    latency_ms: Floats
    """Sum of the latencies of the rows that were done, in milliseconds."""
    arrival_s: Floats
    """Each row's arrival, in seconds from the start of the load."""
    slot: Numbers
    """Each row's slot."""
    row_ms: Floats
    """Each row's latency in milliseconds; nan if the run ended before it was done."""

    def success(self, sla: SLA, warm_up_s: float) -> Floats:
        """Success rate of each slot after the warm-up."""
        from_row = round(warm_up_s * 1000 / DELTA_MS)
        of = (self.arrived[from_row:], self.completed[from_row:], self.latency_ms[from_row:])
        return success_rates(*of, DELTA_MS, sla)

    def mean_ms(self, from_s: float, to_s: float) -> float:
        """Mean latency in milliseconds of the rows that arrived between these seconds."""
        return float(np.nanmean(self.row_ms[self._between(from_s, to_s)]))

    def by_second(self, seconds: int) -> dict[str, list[float | None]]:
        """Arrival rate, mean and p99 latency of the rows that arrived in each second."""
        series: dict[str, list[float | None]] = {"rate": [], "mean_ms": [], "p99_ms": []}
        for second in range(seconds):
            row_ms = self.row_ms[self._between(second, second + 1)]
            done = row_ms[~np.isnan(row_ms)]
            series["rate"].append(float(len(row_ms)))
            series["mean_ms"].append(round(float(done.mean()), 1) if len(done) else None)
            series["p99_ms"].append(round(float(np.percentile(done, 99)), 1) if len(done) else None)
        return series

    def _between(self, from_s: float, to_s: float) -> slice:
        first, last = np.searchsorted(self.arrival_s, [from_s, to_s])
        return slice(int(first), int(last))


def truth(
    arrivals: ArrivalTimes,
    slots_of: SlotsOf,
    slots: int,
    began: Began,
    delivered: Sequence[Delivered],
    seconds: float,
) -> Truth:
    """Exact latencies of the first seconds of a load.

    `delivered` lists, in order, up to which row the sink had all output at which time.

    >>> from penstock.sim.shapes import Steady
    >>> one_slot = lambda number, t_us: np.zeros_like(number)
    >>> exact = truth(
    ...     Steady(10), one_slot, 1, Began(5_000, 2), [Delivered(2, 4_900.0), Delivered(7, 5_600.0)], 1.0
    ... )
    >>> exact.arrived.ravel().tolist()
    [0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    >>> exact.completed[5].tolist(), exact.row_ms[:6].tolist()
    ([5.0], [500.0, 400.0, 300.0, 200.0, 100.0, nan])
    """
    count = int(arrivals.cumulative(seconds * 1000 - 1e-3))
    order = np.arange(count, dtype=np.int64)
    t_us = arrivals.arrival_us(order)
    number = order + began.first
    done = done_ms(delivered, number) - began.start_ms
    return truth_of(t_us, slots_of(number, t_us), done, slots, seconds)


def truth_of(t_us: Numbers, slot: Numbers, done: Floats, slots: int, seconds: float) -> Truth:
    """Exact latencies of records, from their arrival times and the times at which they were done.

    Times are from the start of the load: arrivals in microseconds, `done` in milliseconds, nan if never done.

    >>> exact = truth_of(np.array([0, 50_000]), np.array([0, 1]), np.array([40.0, np.nan]), 2, 0.1)
    >>> exact.arrived.tolist(), exact.completed.tolist(), exact.row_ms.tolist()
    ([[1.0, 1.0]], [[1.0, 0.0]], [40.0, nan])
    """
    length = round(seconds * 1000 / DELTA_MS)
    row_ms = done - t_us / 1000
    # Time slot m ends at (m + 1) * delta, inclusive.
    in_time = done <= seconds * 1000
    done_at = np.maximum(np.ceil(done[in_time] / DELTA_MS).astype(np.int64) - 1, 0)
    arrived_at = np.minimum((t_us / 1000 / DELTA_MS).astype(np.int64), length - 1)
    return Truth(
        arrived=_counted(arrived_at, slot, None, length, slots),
        completed=_counted(done_at, slot[in_time], None, length, slots),
        latency_ms=_counted(done_at, slot[in_time], row_ms[in_time], length, slots),
        arrival_s=t_us / 1e6,
        slot=slot,
        row_ms=row_ms,
    )


def done_ms(delivered: Sequence[Delivered], number: Numbers) -> Floats:
    """Time at which each of these rows was in the sink, in milliseconds; nan if it never was."""
    ends = np.array([point.row for point in delivered], dtype=np.int64)
    times = np.array([*(point.at_ms for point in delivered), np.nan])
    done: Floats = times[np.searchsorted(ends, number, side="right")]
    return done


def _counted(
    at: Numbers,
    slot: Numbers,
    weights: npt.NDArray[np.float64] | None,
    length: int,
    slots: int,
) -> Floats:
    """Number of rows, or sum of their weights, in each time slot and slot."""
    counted = np.bincount(at * slots + slot, weights, length * slots)
    return counted.astype(np.float64).reshape(length, slots)


def delivered(epochs: Sequence[EpochProgress]) -> list[Delivered]:
    """The last row of each epoch, and the time at which its output was in the sink."""
    points, row = [], 0
    for epoch in sorted(epochs, key=lambda progress: progress.epoch):
        row += epoch.rows
        points.append(Delivered(row, epoch.started_ms + epoch.sink_ms))
    return points
