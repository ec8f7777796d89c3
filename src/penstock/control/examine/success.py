"""Success rates: shares of the SLA's windows that were kept, by a flow, its steps and their slots. Pure."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from penstock.control.examine.vitals import Floats
from penstock.model import LatencyBound

_BIN_MS = 10_000.0
"""Length of the bins that windows are counted in, in milliseconds."""
_MINUTE, _HOUR = 6, 360
"""Bins in a minute and in an hour."""
_LATE = 0.01
"""Share of records that may take longer than a bound on the 99th percentile."""
_ROUNDING = 1e-9
_MOST = 1 << 20
"""Windows that count at a time at most. There are more only after a pause of days, or if a clock was set."""


@dataclass(frozen=True)
class Success:
    """Share of windows that were kept, from 0 to 1; None if none has ended."""

    minute: float | None = None
    """In the last minute."""
    hour: float | None = None
    """In the last hour."""
    run: float | None = None
    """Since the start."""


class Windows:
    """Counts of windows by time, for one place or for many, such as the slots of a step.

    >>> windows = Windows(2)
    >>> for second in range(120):
    ...     windows.add(1000.0 * second, 1, np.array([True, second >= 60]))
    >>> [windows.rates(place) for place in (0, 1)]
    [Success(minute=1.0, hour=1.0, run=1.0), Success(minute=1.0, hour=0.5, run=0.5)]
    >>> windows.rates()
    Success(minute=1.0, hour=0.75, run=0.75)
    >>> windows.by_place()[1]
    Success(minute=1.0, hour=0.5, run=0.5)
    """

    def __init__(self, places: int) -> None:
        self.windows = 0
        """Windows that have ended since the start, the same for all places."""
        self.kept: npt.NDArray[np.int64] = np.zeros(places, np.int64)
        """Windows that each place kept."""
        self._bins: deque[_Bin] = deque(maxlen=_HOUR)
        """The last hour, oldest first."""

    def add(self, now_ms: float, windows: int, kept: npt.NDArray[np.bool_]) -> None:
        """Add windows that ended at this time, all kept by a place or all missed."""
        number, places = now_ms // _BIN_MS, kept.astype(np.int32) * np.int32(min(windows, _MOST))
        before = _Bin(number, 0, np.zeros_like(places), 0.0)
        if self._bins and self._bins[-1].number == number:
            before = self._bins.pop()
        mean = before.mean + (float(places.mean()) if len(places) else 0.0)
        self._bins.append(_Bin(number, before.windows + windows, before.kept + places, mean))
        self.windows += windows
        self.kept += kept * windows

    def renumber(self, origins: npt.NDArray[np.int64]) -> None:
        """Have other places from now on. Each begins with the counts of the place that it was part of."""
        self.kept = self.kept[origins]
        bins = [replace(one, kept=one.kept[origins]) for one in self._bins]
        self._bins.clear()
        self._bins.extend(bins)

    def rates(self, place: int | None = None) -> Success:
        """Rates of a place, or the mean over all places."""
        if not self.windows:
            return Success()
        total = float(self.kept.mean() if place is None else self.kept[place])
        return Success(
            self._recent(_MINUTE, place), self._recent(_HOUR, place), total / self.windows
        )

    def by_place(self) -> list[Success]:
        """Rates of each place."""
        if not self.windows:
            return [Success()] * len(self.kept)
        spans = (self._recent_by_place(_MINUTE), self._recent_by_place(_HOUR))
        shares = [*spans, self.kept / self.windows]
        return [Success(*rates) for rates in zip(*(s.tolist() for s in shares), strict=True)]

    def _newest(self, many: int) -> list[_Bin]:
        """The bins of the newest time of this length, up to the newest window."""
        after = self._bins[-1].number - many
        return [one for one in self._bins if one.number > after]

    def _recent(self, many: int, place: int | None) -> float | None:
        bins = self._newest(many)
        windows = sum(one.windows for one in bins)
        kept = sum(one.mean if place is None else float(one.kept[place]) for one in bins)
        return kept / windows if windows else None

    def _recent_by_place(self, many: int) -> Floats:
        bins = self._newest(many)
        total = np.sum([one.kept for one in bins], axis=0, dtype=np.float64)
        return np.asarray(total / max(1, sum(one.windows for one in bins)))


@dataclass(frozen=True, eq=False)
class _Bin:
    """Windows that ended in a few seconds."""

    number: float
    windows: int
    kept: npt.NDArray[np.int32]
    """Windows that each place kept."""
    mean: float
    """Mean of these."""


class FlowMeter:
    """Judges consecutive windows of one bound on a flow's latency, which begin with the first epoch.

    A window is kept if the average latency of the rows that reached the sink in it is within the bound. For a
    bound on the 99th percentile, it is kept if that of each epoch in it is. A window in which no row reached
    the sink is missed if the next rows had already waited for longer than the bound when it ended. Nothing is
    judged before its window has ended.

    >>> meter = FlowMeter(LatencyBound(latency_ms=1000, window_ms=1000))
    >>> for done_ms, latency_ms in ((500, 200), (900, 300), (3_100, 2_400), (4_200, 100)):
    ...     meter.take(done_ms, rows=10, latency_ms=latency_ms)
    >>> meter.windows, meter.kept
    (3, 1)
    """

    def __init__(self, bound: LatencyBound) -> None:
        self.bound = bound
        """The bound. It may be changed at any time; from then on windows are judged by the new one."""
        self._counts = Windows(1)
        self._ends_ms: float | None = None
        """End of the current window, in milliseconds; None before the first epoch."""
        self._rows, self._sum_ms, self._worst_ms = 0, 0.0, 0.0

    @property
    def windows(self) -> int:
        """Windows that were judged."""
        return self._counts.windows

    @property
    def kept(self) -> int:
        """Those of them in which the bound was kept."""
        return int(self._counts.kept[0])

    @property
    def success(self) -> Success:
        return self._counts.rates()

    def take(self, done_ms: float, rows: int, latency_ms: float) -> None:
        """Take in an epoch whose rows reached the sink at `done_ms`, with this average latency, or this 99th
        percentile if the bound is on that."""
        if rows == 0:
            return
        if self._ends_ms is None:
            self._ends_ms = done_ms + self.bound.window_ms
        if done_ms > self._ends_ms:
            self._judge(done_ms, arrived_ms=done_ms - latency_ms)
        self._rows += rows
        self._sum_ms += rows * latency_ms
        self._worst_ms = max(self._worst_ms, latency_ms)

    def _judge(self, now_ms: float, arrived_ms: float) -> None:
        """End the current window, and those without rows until now. The next rows came at `arrived_ms`."""
        assert self._ends_ms is not None
        window_ms, bound_ms = self.bound.window_ms, self.bound.latency_ms
        if self._rows:
            reached_ms = self._worst_ms if self.bound.p99 else self._sum_ms / self._rows
            self._count(1, reached_ms <= bound_ms)
            self._rows, self._sum_ms, self._worst_ms = 0, 0.0, 0.0
        empty = math.ceil((now_ms - self._ends_ms) / window_ms)
        in_time = math.floor((arrived_ms + bound_ms - self._ends_ms) / window_ms) + 1
        kept = min(max(in_time, 0), empty)
        self._count(kept, True)
        self._count(empty - kept, False)

    def _count(self, windows: int, kept: bool) -> None:
        """Add the next windows, all of them kept or all missed."""
        assert self._ends_ms is not None
        if windows > 0:
            self._ends_ms += windows * self.bound.window_ms
            self._counts.add(self._ends_ms, min(windows, _MOST), np.array([kept]))


class SlotMeter:
    """Judges the slots of a step by one bound, at the end of each window.

    A slot keeps a bound on the average if the mean latency of the records that completed in it is within the
    bound. It keeps one on the 99th percentile if at most one in a hundred of them took longer. If none
    completed, it keeps the bound if its records have not waited for longer.

    >>> meter = SlotMeter(2, p99=True)
    >>> meter.due(0.0, window_ms=1000.0)
    0
    >>> meter.take(np.array([200.0, 100.0]), np.array([2.0, 2.0]))  # two late ones of each
    >>> meter.judge(1000.0, meter.due(1000.0, 1000.0), np.zeros(2), bound_ms=500.0)
    >>> [one.run for one in meter.counts.by_place()]
    [1.0, 0.0]
    """

    def __init__(self, slots: int, p99: bool = False) -> None:
        self.counts = Windows(slots)
        self._p99 = p99
        self._records, self._amounts = np.zeros(slots), np.zeros(slots)
        """Records that completed since the last window ended, and what was taken in of them."""
        self._judged_ms: float | None = None
        """End of the last window; None before the first."""

    def take(self, records: Floats, amounts: Floats) -> None:
        """Take in completed records, by slot, and their `amounts`: the sums of their latencies in
        milliseconds or, for the 99th percentile, the numbers of those that took longer than the bound."""
        self._records, self._amounts = self._records + records, self._amounts + amounts

    def renumber(self, origins: npt.NDArray[np.int64]) -> None:
        """Have other slots from now on, each of them a part of the one at its place in `origins`."""
        self.counts.renumber(origins)
        self._records, self._amounts = self._records[origins], self._amounts[origins]

    def due(self, now_ms: float, window_ms: float) -> int:
        """Windows that have ended since the last call that returned some. The first one begins with the first
        call; what was taken in before does not count."""
        if self._judged_ms is None:
            self._clear()
        if self._judged_ms is None or now_ms < self._judged_ms:  # the clock was set back
            self._judged_ms = now_ms
        windows = int((now_ms - self._judged_ms) // window_ms)
        self._judged_ms += windows * window_ms
        return min(windows, _MOST)

    def judge(self, now_ms: float, windows: int, waiting_ms: Floats, bound_ms: float) -> None:
        """Judge these windows, in which everything that was taken in has completed."""
        most = self._records * (_LATE if self._p99 else bound_ms)
        over = self._amounts > most * (1 + _ROUNDING)
        missed = np.where(self._records > 0, over, waiting_ms > bound_ms)
        self.counts.add(now_ms, windows, ~missed)
        self._clear()

    def _clear(self) -> None:
        self._records, self._amounts = np.zeros_like(self._records), np.zeros_like(self._amounts)
