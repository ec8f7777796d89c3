"""The maximum number of rows per epoch that keeps the SLA. Pure; times are in milliseconds.

An epoch of N rows takes N / rate, so a burst that becomes one epoch is late whatever control does. Where
epochs follow each other without a pause, a row waits for the end of the epoch before its own, and then for
its own. So each epoch may take half of the latency bound. The fixed cost of an epoch is part of that half.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

LEAST_ROWS = 2_000
"""Rows that an epoch may always take. A smaller bound would cost more time than it saves."""
_EPOCHS = 32
"""Number of past epochs to measure the pace from."""
_ENOUGH = 6
"""Minimum number of epochs of similar size to measure a pace from."""
_WARM = 3
"""Number of epochs to ignore after a start: they are slower than others."""
_APART = 2.5
"""Minimum ratio between the sizes of large and small epochs."""
_TELLS = 4.0
"""Ratio to the bound below which epochs are too small to be compared with full ones."""
_TOO_FEW, _TOO_MANY = 2.0, 1.3
"""Factors by which a bound may be too low or too high before it changes. A change pauses for a second."""


@dataclass(frozen=True)
class Pace:
    """Duration of epochs: a fixed time, and a rate in rows per second."""

    fixed_ms: float
    rows_per_s: float

    def epoch_ms(self, rows: float) -> float:
        """Duration of an epoch of `rows` rows, in milliseconds.

        >>> Pace(200, 50_000).epoch_ms(10_000)
        400.0
        """
        return self.fixed_ms + rows * 1000.0 / self.rows_per_s

    def is_like(self, other: Pace) -> bool:
        """Whether epochs take about the same time at both paces."""
        few, many = (
            self.epoch_ms(rows) / other.epoch_ms(rows) for rows in (LEAST_ROWS, 50 * LEAST_ROWS)
        )
        return 0.8 < few < 1.25 and 0.8 < many < 1.25


FIRST = Pace(fixed_ms=200.0, rows_per_s=25_000.0)
"""The pace to assume before epochs are measured. It is cautious, because an epoch that is too small costs
less than one that is too large. A courier decodes some 350,000 JSON messages per second (docs/results.md).
On two cores under twenty times the load they can take, a keyed sum still ran at about half of this rate."""


def rows_within(latency_ms: float, pace: Pace) -> int:
    """Number of rows in an epoch that takes half of this latency.

    At least a quarter of that half is for rows, even if the fixed time leaves less. The latency bound cannot
    be kept then, and smaller epochs would only make it worse.

    >>> rows_within(1000, Pace(fixed_ms=200, rows_per_s=50_000))
    15000
    >>> rows_within(1000, Pace(fixed_ms=900, rows_per_s=50_000))
    6250
    >>> rows_within(100, Pace(fixed_ms=200, rows_per_s=1_000)) == LEAST_ROWS
    True
    """
    half_ms = latency_ms / 2
    room_ms = max(half_ms - pace.fixed_ms, half_ms / 4)
    return max(LEAST_ROWS, int(room_ms * pace.rows_per_s / 1000))


def pace_of(
    epochs: Sequence[tuple[int, float]], before: Pace, earlier: Sequence[tuple[float, float]] = ()
) -> Pace | None:
    """The pace of these epochs, which are pairs of (rows, milliseconds); None if there are too few.

    Epochs of two sizes give both the rate and the fixed time. The second size is that of the small epochs or,
    if there are too few of them, that of `earlier` epochs under another bound. Epochs of one size give only
    the rate; the fixed time of `before` is used then.

    >>> pace_of([(1_000, 220.0)] * 6 + [(21_000, 620.0)] * 6, FIRST)
    Pace(fixed_ms=200.0, rows_per_s=50000.0)
    >>> pace_of([(10_000, 400.0)] * 6, FIRST)
    Pace(fixed_ms=200.0, rows_per_s=50000.0)
    >>> pace_of([(10_000, 400.0)] * 6, FIRST, earlier=[(30_000, 600.0)])
    Pace(fixed_ms=300.0, rows_per_s=100000.0)
    >>> pace_of([(10, 200.0)] * 20, FIRST) is None
    True
    """
    most = max((rows for rows, _ in epochs), default=0)
    large = [(rows, ms) for rows, ms in epochs if rows >= most / 2]
    if most < LEAST_ROWS / 2 or len(large) < _ENOUGH:
        return None
    rows, ms = _middle(large)
    small = [(n, took) for n, took in epochs if n <= rows / _APART]
    others = [_middle(small)] if len(small) >= _ENOUGH else _apart(earlier, rows)
    for few, least_ms in others:
        each_ms = (ms - least_ms) / (rows - few)
        if each_ms > 0:
            return Pace(max(0.0, ms - each_ms * rows), 1000.0 / each_ms)
    fixed_ms = min(before.fixed_ms, 0.75 * ms)
    return Pace(fixed_ms, 1000.0 * rows / (ms - fixed_ms))


def _middle(epochs: Sequence[tuple[int, float]]) -> tuple[float, float]:
    return median(rows for rows, _ in epochs), median(ms for _, ms in epochs)


def _apart(epochs: Sequence[tuple[float, float]], rows: float) -> list[tuple[float, float]]:
    """The epochs that had many more or many fewer rows than `rows`, newest first."""
    return [epoch for epoch in reversed(epochs) if not rows / _APART < epoch[0] < rows * _APART]


class EpochBound:
    """The bound on rows per epoch of a running flow. It measures epochs and suggests a better bound.

    >>> bound = EpochBound(latency_ms=1000, pace=FIRST)
    >>> bound.rows
    7500
    >>> for n in range(12):  # a backlog: each epoch is full, and takes less time than it may
    ...     bound.note(7_500, started_ms=n * 310, done_ms=n * 310 + 300)
    >>> bound.due
    20454
    """

    def __init__(self, latency_ms: float, pace: Pace) -> None:
        self.latency_ms, self.pace, self._before = latency_ms, pace, pace
        self.rows = rows_within(latency_ms, pace)
        """Maximum number of rows per epoch."""
        self._epochs: deque[tuple[int, float]] = deque(maxlen=_EPOCHS)
        self._pauses: deque[float] = deque(maxlen=_EPOCHS)
        self._full_ms: float | None = None
        """Time when the last epoch ended if it was full, so that the next one need not wait for rows."""
        self._skip = _WARM
        self._earlier: deque[tuple[float, float]] = deque(maxlen=4)
        """Rows and milliseconds of full epochs under earlier bounds."""
        self._telling: deque[int] = deque(maxlen=_EPOCHS)
        """Rows of epochs under the present bound that are large enough to judge it by."""

    def note(self, rows: int, started_ms: float, done_ms: float) -> None:
        """Record an epoch of `rows` rows that ended in its first run."""
        if self._skip:
            self._skip -= 1
            return
        if self._full_ms is not None:
            self._pauses.append(max(0.0, started_ms - self._full_ms))
        self._full_ms = done_ms if rows >= 0.9 * self.rows else None
        self._epochs.append((rows, done_ms - started_ms + min(self._pauses, default=0.0)))
        if rows >= self.rows / _TELLS:
            self._telling.append(rows)
        self.pace = pace_of(self._epochs, self._before, self._earlier) or self.pace

    @property
    def due(self) -> int | None:
        """The bound that the flow should have, in rows, if it differs much from `rows`; else None.

        The bound is raised only after full epochs. Without them, nothing is known of larger epochs.
        """
        wanted = rows_within(self.latency_ms, self.pace)
        if len(self._telling) < _ENOUGH:
            return None
        if wanted * _TOO_MANY <= self.rows:
            return wanted
        full = sum(rows >= self.rows / 2 for rows in self._telling)
        return wanted if wanted >= self.rows * _TOO_FEW and full >= _ENOUGH else None

    def change(self, rows: int) -> None:
        """Set the bound to `rows` rows per epoch from now on."""
        full = [epoch for epoch in self._epochs if epoch[0] >= self.rows / 2]
        if len(full) >= _ENOUGH:
            self._earlier.append(_middle(full))
        self.rows, self._before, self._skip, self._full_ms = rows, self.pace, 1, None
        self._epochs.clear()
        self._telling.clear()
