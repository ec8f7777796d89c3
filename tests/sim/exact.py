"""A simulation of single records, to check the fluid model of the simulator against."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.sim.trace import Trace


def then_quiet(trace: Trace, seconds: float) -> Trace:
    """A trace followed by some time without arrivals, in which queues become empty."""
    quiet = np.zeros((round(seconds * 1000 / trace.delta_ms), trace.slots), dtype=np.int32)
    return Trace(trace.delta_ms, np.concatenate([trace.counts, quiet]))


@dataclass
class Exact:
    """Completed records and the sums of their latencies, by time slot and slot."""

    completed: npt.NDArray[Any]
    latency: npt.NDArray[Any]


def exact(
    counts: npt.NDArray[Any], delta_ms: float, service_rate: Sequence[float], owners: Sequence[Any]
) -> Exact:
    """Simulate hosts that process one record at a time, the oldest first, with equal service times.

    The records of a cohort arrive at equal intervals. `owners[m]` are the owners in time slot m. If a slot
    moves while a host processes one of its records, the host finishes that record.
    """
    length, slots = counts.shape
    out = Exact(np.zeros(counts.shape), np.zeros(counts.shape))
    waiting: list[list[tuple[float, int]]] = [[] for _ in range(slots)]
    free_at = [0.0] * len(service_rate)
    for m in range(length):
        start, end = m * delta_ms, (m + 1) * delta_ms
        for slot in range(slots):
            count = int(counts[m, slot])
            for i in range(count):
                heapq.heappush(waiting[slot], (start + (i + 0.5) / count * delta_ms, slot))
        for host, rate in enumerate(service_rate):
            mine = [slot for slot in range(slots) if owners[m][slot] == host]
            free_at[host] = max(free_at[host], start)
            while mine:
                oldest = min((waiting[slot][0] for slot in mine if waiting[slot]), default=None)
                if oldest is None:
                    break
                begin = max(free_at[host], oldest[0])
                if begin >= end:
                    break
                arrived, slot = heapq.heappop(waiting[oldest[1]])
                done = begin + 1000.0 / rate
                free_at[host] = done
                row = min(int(done / delta_ms), length - 1)
                out.completed[row, slot] += 1
                out.latency[row, slot] += done - arrived
    return out
