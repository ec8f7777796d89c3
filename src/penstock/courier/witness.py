"""What a courier notices of the rows that pass: how many, when they arrived, how far event time got."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_BUCKETS = 512
"""Arrivals of a task are told in at most so many buckets, each at least one millisecond wide."""


@dataclass(frozen=True)
class Seen:
    """One courier's report of one epoch."""

    rows: int
    arrivals_ms: tuple[int, ...] = ()
    """Middle of each bucket of arrival times, since 1970."""
    counts: tuple[int, ...] = ()
    max_event_ms: int | None = None

    @staticmethod
    def from_json(facts: dict[str, Any]) -> Seen:
        return Seen(
            facts["rows"],
            tuple(facts["arrivals_ms"]),
            tuple(facts["counts"]),
            facts["max_event_ms"],
        )


class Witness:
    """Watches batches on their way in."""

    def __init__(self, arrival: str | None, event_time: str | None) -> None:
        self._arrival, self._event_time = arrival, event_time
        self._rows = 0
        self._arrivals: list[npt.NDArray[np.int64]] = []
        self._max_event_ms: int | None = None

    def watch(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self._rows += batch.num_rows
            if batch.num_rows and self._arrival is not None:
                self._arrivals.append(_as_ms(batch.column(self._arrival)))
            if batch.num_rows and self._event_time is not None:
                newest = pc.max(batch.column(self._event_time).cast(pa.timestamp("ms"), safe=False))
                value = newest.value
                if value is not None:
                    before = self._max_event_ms
                    self._max_event_ms = value if before is None else max(before, value)
            yield batch

    def to_json(self) -> dict[str, Any]:
        arrivals, counts = self._histogram()
        return {
            "rows": self._rows,
            "arrivals_ms": arrivals,
            "counts": counts,
            "max_event_ms": self._max_event_ms,
        }

    def _histogram(self) -> tuple[list[int], list[int]]:
        if not self._arrivals:
            return [], []
        times = np.concatenate(self._arrivals)
        if times.size == 0:
            return [], []
        low, high = int(times.min()), int(times.max())
        width = max(1, -(-(high - low + 1) // _BUCKETS))
        counts = np.bincount((times - low) // width)
        filled = np.flatnonzero(counts)
        middles = low + filled * width + width // 2
        return [int(m) for m in middles], [int(c) for c in counts[filled]]


def _as_ms(column: pa.Array) -> npt.NDArray[np.int64]:
    """A timestamp column as milliseconds since 1970; nulls are left out."""
    times = column.drop_null().cast(pa.timestamp("ms"), safe=False).cast(pa.int64())
    found: npt.NDArray[np.int64] = times.to_numpy(zero_copy_only=False)
    return found
