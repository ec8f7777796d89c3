"""How busy the market, and each stock, is at any time of the day: weights of its time slots."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

STEP_MS = 100
"""Weights are those of time slots of this length; within them orders arrive evenly."""
SESSION_MS = 2 * 3600 * 1000
DAY_MS = 2 * SESSION_MS
"""Two sessions, one right after the other."""

_STEPS = DAY_MS // STEP_MS
_WAVES = ((2.0, 0.20), (15.0, 0.25), (120.0, 0.25), (900.0, 0.15))
"""(seconds, size): the market's mood changes on each of these scales."""
_MARKET_BURSTS = 48
_STOCK_BURSTS = 4.0
"""In a day: of the whole market, and of a stock on average."""
_MOST_OF_A_STOCK = 0.06
"""No burst of a stock brings more than this part of what the market brings on average."""


def market(random: np.random.Generator) -> Floats:
    """The whole market without its openings, on average 1: busy at both ends of a session, most of
    all towards the close of the day, with waves and bursts of seconds to minutes."""
    mood = np.zeros(_STEPS)
    for seconds, size in _WAVES:
        knots = np.arange(0, DAY_MS / 1000 + 2 * seconds, seconds)
        times = np.arange(_STEPS) * (STEP_MS / 1000)
        mood += np.interp(times, knots, random.normal(0.0, size, len(knots)))
    busy = np.concatenate([_session(2.0, 0.4), _session(1.0, 2.0)]) * np.exp(mood)
    heights = random.lognormal(0.3, 0.5, _MARKET_BURSTS)
    busy *= 1.0 + _bursts(random, heights)
    return np.asarray(busy / busy.mean(), np.float64)


def stock(random: np.random.Generator, weight: float) -> Floats:
    """A stock beside the market: 1, and more in its own bursts. `weight` is its part of all."""
    heights = random.lognormal(2.0, 0.7, random.poisson(_STOCK_BURSTS))
    return 1.0 + _bursts(random, np.minimum(heights, _MOST_OF_A_STOCK / weight))


def opening(random: np.random.Generator) -> Floats:
    """The first seconds of a session: nearly all in the first one, the rest quickly less."""
    seconds = np.arange(0, 10, STEP_MS / 1000)
    shape = np.where(seconds < 1.0, 1.0, np.exp(-(seconds - 1.0) / 0.25) * 0.5)
    return np.asarray(shape * random.uniform(0.9, 1.1, len(shape)), np.float64)


def _session(after_open: float, before_close: float) -> Floats:
    """A U: busier by so much after the opening and before the close."""
    x = np.linspace(0.0, 1.0, _STEPS // 2)
    return 1.0 + after_open * np.exp(-x / 0.08) + before_close * np.exp((x - 1.0) / 0.12)


def _bursts(random: np.random.Generator, heights: Floats) -> Floats:
    """What bursts of these heights add: each rises at once and dies away, in seconds to minutes."""
    added = np.zeros(_STEPS)
    starts = random.integers(0, _STEPS, len(heights))
    fades = np.clip(random.lognormal(np.log(12.0), 1.0, len(heights)), 1.0, 120.0)
    for start, height, fade_s in zip(starts, heights, fades, strict=True):
        fade = fade_s * 1000 / STEP_MS
        length = min(int(5 * fade), _STEPS - start)
        added[start : start + length] += height * np.exp(-np.arange(length) / fade)
    return added
