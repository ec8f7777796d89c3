"""What a live run really did, row by row, from outside of all that is measured by the run itself.

Rows of a load follow from their numbers alone: when each arrives and which slot it is for. An epoch's
rows are the next ones in order, and its output is in the sink at a known moment. So the latency of
every row is known exactly, however the run was controlled.
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
    """Rows up to this number (exclusive) were in the sink at this time."""

    row: int
    at_ms: float


@dataclass(frozen=True)
class Seconds:
    """Milliseconds from arrival to sink, one value for each second of arrivals."""

    p50_ms: list[float]
    p99_ms: list[float]
    cumulative_p99_ms: list[float]
    """The 99th percentile of all rows that have arrived up to the end of that second."""

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


DELTA_MS = 100.0

SlotsOf = Callable[[Numbers, Numbers], Numbers]
"""The slots of rows, from their numbers and their times of arrival in microseconds."""


@dataclass(frozen=True)
class Began:
    """The load of a run began at this time, in milliseconds since 1970, with this row."""

    start_ms: int
    first: int


@dataclass(frozen=True, eq=False)
class Truth:
    """Rows that arrived in the run's time, by time slot and slot, and the latencies of those done."""

    arrived: Floats
    completed: Floats
    latency_ms: Floats
    """Sums, of what completed in a time slot."""
    arrival_s: Floats
    """Each row's arrival, in seconds from the beginning of the load."""
    slot: Numbers
    """Each row's slot."""
    row_ms: Floats
    """The latency of each row; nan where the run ended before it was done."""

    def success(self, sla: SLA, warm_up_s: float) -> Floats:
        """The success rate of each slot, but for the beginning."""
        from_row = round(warm_up_s * 1000 / DELTA_MS)
        of = (self.arrived[from_row:], self.completed[from_row:], self.latency_ms[from_row:])
        return success_rates(*of, DELTA_MS, sla)

    def mean_ms(self, from_s: float, to_s: float) -> float:
        """The mean latency of the rows that arrived between these seconds."""
        return float(np.nanmean(self.row_ms[self._between(from_s, to_s)]))

    def by_second(self, seconds: int) -> dict[str, list[float | None]]:
        """Arrivals, mean and 99th percentile of latency by the second in which rows arrived."""
        told: dict[str, list[float | None]] = {"rate": [], "mean_ms": [], "p99_ms": []}
        for second in range(seconds):
            row_ms = self.row_ms[self._between(second, second + 1)]
            done = row_ms[~np.isnan(row_ms)]
            told["rate"].append(float(len(row_ms)))
            told["mean_ms"].append(round(float(done.mean()), 1) if len(done) else None)
            told["p99_ms"].append(round(float(np.percentile(done, 99)), 1) if len(done) else None)
        return told

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
    """What happened in the first seconds of a load.

    `delivered` tells, in order, up to which row the sink had all output at which time.

    >>> from penstock.sim.shapes import Steady
    >>> one_slot = lambda number, t_us: np.zeros_like(number)
    >>> told = truth(
    ...     Steady(10), one_slot, 1, Began(5_000, 2), [Delivered(2, 4_900.0), Delivered(7, 5_600.0)], 1.0
    ... )
    >>> told.arrived.ravel().tolist()
    [0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    >>> told.completed[5].tolist(), told.row_ms[:6].tolist()
    ([5.0], [500.0, 400.0, 300.0, 200.0, 100.0, nan])
    """
    count = int(arrivals.cumulative(seconds * 1000 - 1e-3))
    order = np.arange(count, dtype=np.int64)
    t_us = arrivals.arrival_us(order)
    number = order + began.first
    done = done_ms(delivered, number) - began.start_ms
    return truth_of(t_us, slots_of(number, t_us), done, slots, seconds)


def truth_of(t_us: Numbers, slot: Numbers, done: Floats, slots: int, seconds: float) -> Truth:
    """What happened to records that arrived at these times and were done at those, in milliseconds from the
    beginning of the load; nan: never.

    >>> found = truth_of(np.array([0, 50_000]), np.array([0, 1]), np.array([40.0, np.nan]), 2, 0.1)
    >>> found.arrived.tolist(), found.completed.tolist(), found.row_ms.tolist()
    ([[1.0, 1.0]], [[1.0, 0.0]], [40.0, nan])
    """
    length = round(seconds * 1000 / DELTA_MS)
    row_ms = done - t_us / 1000
    # Time slot m ends at (m + 1) * delta, and what happens just then is in it.
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
    """When the rows of these numbers were in the sink; nan where they never were."""
    ends = np.array([one.row for one in delivered], dtype=np.int64)
    times = np.array([*(one.at_ms for one in delivered), np.nan])
    found: Floats = times[np.searchsorted(ends, number, side="right")]
    return found


def _counted(
    at: Numbers,
    slot: Numbers,
    weights: npt.NDArray[np.float64] | None,
    length: int,
    slots: int,
) -> Floats:
    """How many rows, or how much of them, fall on each time slot and slot."""
    counted = np.bincount(at * slots + slot, weights, length * slots)
    return counted.astype(np.float64).reshape(length, slots)


def delivered(epochs: Sequence[EpochProgress]) -> list[Delivered]:
    """Up to which row, and when, the sink had what each epoch put out."""
    told, row = [], 0
    for epoch in sorted(epochs, key=lambda one: one.epoch):
        row += epoch.rows
        told.append(Delivered(row, epoch.started_ms + epoch.sink_ms))
    return told
