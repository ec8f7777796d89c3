"""Record of a simulated step by time slot: arrivals, completions, latencies, hosts and costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.control.examine.vitals import Floats
from penstock.model import SLA
from penstock.sim.kernels import LATENCY_BINS, quantiles
from penstock.sim.success import success_rates

Array = npt.NDArray[Any]

_SERIES_MS = 1000.0


@dataclass(frozen=True, eq=False)
class Series:
    """Figures of a run over time, one value for each second."""

    rate: Floats
    """Records that arrived in each second."""
    completed: Floats
    """Records that completed in each second."""
    hosts: Floats
    """Number of hosts at the end of each second, including those that start, since they are paid for."""
    mean_ms: Floats
    """Mean latency in milliseconds; nan if nothing completed."""
    p99_ms: Floats
    """99th percentile of the latency in milliseconds, to within 10 %; nan if nothing completed."""
    load: Floats
    """Busy share of the busiest host's time. Only for the epochs engine."""
    workers: Floats
    """Maximum number of burst workers that ran at the same time."""
    worker_money: Floats
    """Cost of burst workers in US dollars."""


class Ledger:
    """Arrived and completed records by time slot and slot, with their latencies."""

    def __init__(self, arrived: Array, delta_ms: float, age_ms: Array | None = None) -> None:
        length, slots = arrived.shape
        self.delta_ms = delta_ms
        self.arrived = arrived
        self.age_ms: Floats = np.zeros(length) if age_ms is None else age_ms
        """Age of the records that arrive in each time slot, from earlier steps, in milliseconds."""
        self.completed = np.zeros((length, slots))
        self.latency = np.zeros((length, slots), dtype=np.float32)
        """Sum of the latencies in this step of completed records, in milliseconds."""
        self.carried = np.zeros((length, slots), dtype=np.float32)
        """Sum of the latencies in earlier steps of records completed here, in milliseconds."""
        seconds = int(np.ceil(length * delta_ms / _SERIES_MS))
        self.series_ms = _SERIES_MS
        self.histogram = np.zeros((seconds, LATENCY_BINS), dtype=np.float32)
        self._busy_ms, self._workers, self._money = np.zeros((3, seconds))
        self._hosts = [(0.0, 0)]
        """Changes of the number of hosts: the time in milliseconds, and the number from then on."""

    def arrive(self, first: int, records: Array) -> None:
        """Add records that arrived in the time slots from `first` on."""
        self.arrived[first : first + len(records)] += records

    def note_epoch(
        self, began_ms: float, done_ms: float, busy_ms: float, workers: int, money: float
    ) -> None:
        """Record an epoch: the busy time of its busiest host, and the number and cost of burst workers."""
        ends = np.arange(1, len(self._busy_ms) + 1) * self.series_ms
        first = int(began_ms // self.series_ms)
        last = min(int(done_ms // self.series_ms) + 1, len(ends))
        within = slice(first, last)
        overlap_ms = np.minimum(ends[within], done_ms) - np.maximum(
            ends[within] - self.series_ms, began_ms
        )
        part = overlap_ms / (done_ms - began_ms)
        self._busy_ms[within] += part * busy_ms
        self._money[within] += part * money
        self._workers[within] = np.maximum(self._workers[within], workers)

    def note_hosts(self, size: int, since_ms: float) -> None:
        """Record that the step has `size` hosts from `since_ms` on."""
        if self._hosts[-1][1] != size:
            self._hosts.append((since_ms, size))

    def average_hosts(self, from_ms: float = 0.0) -> float:
        """Mean number of hosts over time, from `from_ms` on."""
        end_ms = len(self.arrived) * self.delta_ms
        starts = np.clip([since_ms for since_ms, _ in self._hosts], from_ms, end_ms)
        sizes = np.array([size for _, size in self._hosts])
        return float(sizes @ np.diff(starts, append=end_ms)) / (end_ms - from_ms)

    def success(
        self, sla: SLA, first: int = 0, last: int | None = None, end_to_end: bool = False
    ) -> Floats:
        """Success rate of each slot over some time slots, for this step or for all steps up to it."""
        rows = slice(first, last)
        latency = self.latency[rows]
        return success_rates(
            self.arrived[rows],
            self.completed[rows],
            latency + self.carried[rows] if end_to_end else latency,
            self.delta_ms,
            sla,
            age_ms=self.age_ms[rows] if end_to_end else None,
        )

    def series(self) -> Series:
        """Figures for each second. Latencies include all steps up to this one."""
        seconds = len(self.histogram)
        second = (np.arange(len(self.arrived)) * self.delta_ms / _SERIES_MS).astype(np.int64)
        arrived, completed, latency_ms, carried_ms = (
            np.bincount(second, values.sum(axis=1, dtype=np.float64), seconds)
            for values in (self.arrived, self.completed, self.latency, self.carried)
        )
        mean_ms = np.full(seconds, np.nan)
        np.divide(latency_ms + carried_ms, completed, out=mean_ms, where=completed > 0)
        ends_ms = np.arange(1, seconds + 1) * _SERIES_MS
        changes = np.searchsorted([since_ms for since_ms, _ in self._hosts], ends_ms) - 1
        hosts = np.array([float(size) for _, size in self._hosts])[changes]
        p99_ms: Floats = quantiles(self.histogram, 0.99)
        return Series(
            arrived.astype(np.float64),
            completed.astype(np.float64),
            hosts,
            mean_ms,
            p99_ms,
            self._busy_ms / self.series_ms,
            self._workers,
            self._money,
        )
