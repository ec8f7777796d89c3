"""Times of events: a rate, and a shape that multiplies it.

    flat    always the rate
    burst   the rate for nine tenths of a period, then ten times the rate for one tenth
    sine    the rate times 1 + 0.8 sin(2 π t / period), in sixty pieces: from 0.2 to 1.8
    step    the rate for half a period, then twice the rate

All arithmetic is in integers: times are exact, never decrease, and are the same on any machine.
"""

from __future__ import annotations

import math
from itertools import accumulate

import numpy as np

from penstock_bench.workloads.draws import Numbers
from penstock_bench.workloads.nexmark.config import NexmarkConfig, ShapeName

_PIECES: dict[ShapeName, list[tuple[int, int]]] = {
    "flat": [(60, 1000)],
    "burst": [(54, 1000), (6, 10_000)],
    "sine": [(1, round(1000 + 800 * math.sin(math.pi * (i + 0.5) / 30))) for i in range(60)],
    "step": [(30, 1000), (30, 2000)],
}
"""Pieces of each shape: (sixtieths of a period, thousandths of the rate)."""


class EventTimes:
    """Times of events by number.

    >>> EventTimes(NexmarkConfig(events=5, rate=1000)).micros(np.arange(3)).tolist()
    [0, 1000, 2000]
    >>> step = EventTimes(NexmarkConfig(events=5, rate=1000, shape="step", period_s=2))
    >>> step.micros(np.array([999, 1000, 1001, 3000])).tolist()
    [999000, 1000000, 1000500, 2000000]
    """

    def __init__(self, config: NexmarkConfig) -> None:
        pieces = _PIECES[config.shape]
        lengths_us = [sixtieths * config.period_s * 1_000_000 // 60 for sixtieths, _ in pieces]
        pace = [config.rate * thousandths for _, thousandths in pieces]  # event / 1e9 in a µs
        counts = [us * each for us, each in zip(lengths_us, pace, strict=True)]
        self._period_us, self._per_period = sum(lengths_us), sum(counts)
        self._starts_us = np.array([0, *accumulate(lengths_us)][:-1], np.int64)
        self._starts = np.array([0, *accumulate(counts)][:-1], np.int64)
        self._pace = np.array(pace, np.int64)
        self._base_ms = config.base_ms

    def micros(self, numbers: Numbers) -> Numbers:
        """Times of these events, in microseconds after the base time."""
        periods, rest = np.divmod(numbers * 1_000_000_000, self._per_period)
        piece = np.searchsorted(self._starts, rest, side="right") - 1
        within = (rest - self._starts[piece]) // self._pace[piece]
        return periods * self._period_us + self._starts_us[piece] + within

    def millis(self, numbers: Numbers) -> Numbers:
        """Times of these events, in milliseconds since 1970: their `date_time`."""
        return self._base_ms + self.micros(numbers) // 1000
