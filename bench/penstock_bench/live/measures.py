"""Metrics of the messages that a consumer received, as pure functions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Received = npt.NDArray[np.int64]
"""One row per message: received at, produced at (microseconds since 1970), key, count, sum."""


@dataclass(frozen=True)
class Receipts:
    """Latencies from produce to receipt, in milliseconds."""

    p50_ms: float
    p99_ms: float
    max_ms: float
    messages: int


def between(received: Received, from_us: int, to_us: int) -> Received:
    """The messages of rows produced in this interval."""
    at = received[:, 1]
    return received[(at >= from_us) & (at < to_us)]


def latency(received: Received) -> Receipts:
    """Latencies of these messages; nan if there are none.

    >>> latency(np.array([[3000, 1000, 1, 1, 1], [5000, 1000, 2, 1, 1]]))
    Receipts(p50_ms=3.0, p99_ms=3.98, max_ms=4.0, messages=2)
    """
    if not len(received):
        return Receipts(float("nan"), float("nan"), float("nan"), 0)
    ms = (received[:, 0] - received[:, 1]) / 1000
    p50, p99 = np.percentile(ms, [50, 99])
    return Receipts(float(p50), float(p99), float(ms.max()), len(ms))


def by_bin(received: Received, from_us: int, bins: int, bin_ms: int = 100) -> list[float | None]:
    """p99 latency in milliseconds of the rows produced in each time bin; None for a bin without rows."""
    ms = (received[:, 0] - received[:, 1]) / 1000
    return p99_by_bin(received[:, 1] / 1000, ms, from_us / 1000, bins, bin_ms)


def p99_by_bin(
    at_ms: Floats, ms: Floats, from_ms: float, bins: int, bin_ms: int = 100
) -> list[float | None]:
    """99th percentile of the values in each time bin; None for a bin without values.

    >>> p99_by_bin(np.array([10.0, 20.0, 250.0]), np.array([1.0, 3.0, np.nan]), 0.0, 3)
    [2.98, None, None]
    """
    number = np.floor((at_ms - from_ms) / bin_ms)
    p99s: list[float | None] = []
    for at in range(bins):
        values = ms[(number == at) & ~np.isnan(ms)]
        p99s.append(round(float(np.percentile(values, 99)), 3) if len(values) else None)
    return p99s


def final(received: Received) -> dict[int, tuple[int, int]]:
    """Key -> its last count and sum, in the order of receipt."""
    return {int(k): (int(n), int(s)) for _, _, k, n, s in received}


def drained_per_s(received: Received, rows: int) -> float:
    """Rows per second while a backlog was worked off, not counting the first tenth.

    A message's count is the number of its key's rows that were done by then.
    """
    order = np.argsort(received[:, 0], kind="stable")
    at, key, count = received[order, 0], received[order, 2], received[order, 3]
    by_key = np.argsort(key, kind="stable")
    before = np.zeros(len(count), np.int64)
    same = np.flatnonzero(key[by_key][1:] == key[by_key][:-1])
    before[by_key[same + 1]] = count[by_key[same]]
    done = np.cumsum(count - before)
    first = int(np.searchsorted(done, rows // 10))
    last = int(np.searchsorted(done, rows - 1))
    if last >= len(done) or at[last] <= at[first]:
        return 0.0
    return float((done[last] - done[first]) / ((at[last] - at[first]) / 1e6))
