"""Traces: how many records arrive for each slot, in each time slot."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.control.examine.vitals import Floats
from penstock.errors import SettingError

Counts = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Trace:
    """Arrivals at one step. Nothing is known of a record but its slot and its time slot.

    >>> trace = Trace(100.0, np.array([[3, 1], [0, 2]], dtype=np.int32))
    >>> trace.slots, trace.total, trace.duration_ms
    (2, 6, 200.0)
    """

    delta_ms: float
    """The length of a time slot."""
    counts: Counts
    """By time slot and slot. Row 0 arrives in the first `delta_ms`."""

    def __post_init__(self) -> None:
        if self.delta_ms <= 0:
            raise SettingError(f"time slots of {self.delta_ms:g} ms", hint="use more than 0")
        if self.counts.ndim != 2 or 0 in self.counts.shape:
            raise SettingError(
                f"a trace of the shape {self.counts.shape}",
                hint="give a count for each time slot and slot, and at least one of each",
            )

    @property
    def slots(self) -> int:
        return int(self.counts.shape[1])

    @property
    def total(self) -> int:
        """Records in all."""
        return int(self.counts.sum(dtype=np.int64))

    @property
    def duration_ms(self) -> float:
        return len(self.counts) * self.delta_ms

    @staticmethod
    def from_file(path: str | Path, slots: int, delta_ms: float = 100.0) -> Trace:
        """The trace in a CSV or Parquet file; see `trace_file` for its columns."""
        from penstock.sim.trace_file import read

        return Trace(delta_ms, read(Path(path), slots, delta_ms))

    @staticmethod
    def of_rates(rates: npt.ArrayLike, delta_ms: float = 100.0, seed: int | None = None) -> Trace:
        """A trace of these records a second, by time slot and slot: as even as can be, or Poisson.

        >>> Trace.of_rates([[25.0], [25.0], [25.0]]).counts.ravel().tolist()
        [2, 3, 2]
        """
        expected = np.atleast_2d(np.asarray(rates, dtype=np.float64)) * (delta_ms / 1000.0)
        if seed is None:
            return Trace(delta_ms, _whole(expected))
        return Trace(delta_ms, np.random.default_rng(seed).poisson(expected).astype(np.int32))

    def cut(self, from_s: float = 0.0, to_s: float | None = None) -> Trace:
        """What arrives between these seconds."""
        first = round(from_s * 1000 / self.delta_ms)
        last = None if to_s is None else round(to_s * 1000 / self.delta_ms)
        return Trace(self.delta_ms, self.counts[first:last])

    def every(self, delta_ms: float) -> Trace:
        """The same with time slots of another length: a multiple of this one's, or a part of it.

        >>> trace = Trace(100.0, np.array([[5], [3]], dtype=np.int32))
        >>> trace.every(50.0).counts.ravel().tolist(), trace.every(200.0).counts.ravel().tolist()
        ([2, 3, 1, 2], [8])
        """
        if delta_ms == self.delta_ms:
            return self
        several, parts = round(delta_ms / self.delta_ms), round(self.delta_ms / delta_ms)
        if np.isclose(several * self.delta_ms, delta_ms):
            starts = np.arange(0, len(self.counts), several)
            return Trace(delta_ms, np.add.reduceat(self.counts, starts, axis=0, dtype=np.int32))
        if np.isclose(parts * delta_ms, self.delta_ms):
            # What time slot i has by the end of its p-th part, less what it has before.
            ends = np.arange(1, parts + 1)[None, :, None] * self.counts[:, None, :] // parts
            split = np.diff(ends, axis=1, prepend=0).reshape(-1, self.slots)
            return Trace(delta_ms, split.astype(np.int32))
        raise SettingError(
            f"time slots of {delta_ms:g} ms from those of {self.delta_ms:g} ms",
            hint="use a multiple of them, or divide them by a whole number",
        )

    def rates(self, every_ms: float = 1000.0) -> Floats:
        """Records a second of all slots together, over each `every_ms`.

        >>> Trace(500.0, np.array([[3, 1], [0, 2], [4, 0]], dtype=np.int32)).rates().tolist()
        [6.0, 8.0]
        """
        several = max(1, round(every_ms / self.delta_ms))
        starts = np.arange(0, len(self.counts), several)
        totals = np.add.reduceat(self.counts.sum(axis=1, dtype=np.int64), starts)
        lengths = np.diff(starts, append=len(self.counts)) * self.delta_ms / 1000.0
        rates: Floats = totals / lengths
        return rates


def _whole(expected: npt.NDArray[Any]) -> Counts:
    """Whole records that never fall behind the expected ones by as much as one, slot by slot."""
    # A little is added so that a sum of fractions which should be whole does not fall just short.
    by_then = np.floor(np.cumsum(expected, axis=0) + 1e-6)
    return np.diff(by_then, axis=0, prepend=0).astype(np.int32)
