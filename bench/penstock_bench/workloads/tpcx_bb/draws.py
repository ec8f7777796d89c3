"""Random draws of both streams: related items, small numbers, Zipf's law, and the hours of a day."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from penstock.sim.skews import Zipf
from penstock_bench.workloads.draws import Draws, Floats, Numbers
from penstock_bench.workloads.tpcx_bb.config import TpcxBbConfig

_COMPANIONS = 6
"""Number of related items of an item, in the same category."""


def lengths(draws: Draws, what: str, mean: float, most: int) -> Numbers:
    """Random numbers from 1 to `most` with a geometric distribution."""
    return 1 + _geometric(mean, most).searchsorted(draws.unit(what), side="right")


@lru_cache(maxsize=16)
def _geometric(mean: float, most: int) -> Floats:
    reached: Floats = np.cumsum((1.0 - 1.0 / mean) ** np.arange(most, dtype=np.float64))
    inner: Floats = reached[:-1] / reached[-1]
    return inner


def popular_items(config: TpcxBbConfig, draws: Draws, what: str) -> Numbers:
    """Random items by Zipf's law: 1 is the most popular."""
    return 1 + Zipf(config.item_exponent).ranks(config.items, draws.unit(what))


def companions(config: TpcxBbConfig, items: Numbers, draws: Draws, what: str) -> Numbers:
    """For each item, a random one of its related items."""
    apart = config.categories * (1 + draws.below(_COMPANIONS, what))
    return 1 + (items - 1 + apart) % config.items


def category_of(config: TpcxBbConfig, items: Numbers) -> Numbers:
    """The category of each item, starting at 1."""
    return 1 + (items - 1) % config.categories


_HOURS = np.array(
    [2, 1, 1, 1, 1, 2, 4, 7, 10, 12, 14, 15, 16, 15, 14, 14, 15, 17, 19, 20, 17, 12, 8, 4], np.int64
)
"""Weight of each hour of a day."""
_WHOLE = int(_HOURS.sum())
_UNTIL = np.cumsum(_HOURS) - _HOURS
"""Sum of the weights of the hours before each hour."""
_FINE = 1_000_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def begins_ms(numbers: Numbers, per_day: int) -> Numbers:
    """Start times of the sessions or tickets with these numbers, in milliseconds after the first day's start.

    >>> begins_ms(np.array([0, 1, 2, 3, 4]), 4).tolist()
    [0, 40860000, 55414285, 68535000, 86400000]
    """
    day, place = np.divmod(numbers, per_day)
    come = place * (_WHOLE * _FINE) // per_day
    hour = np.searchsorted(_UNTIL * _FINE, come, side="right") - 1
    within = (come - _UNTIL[hour] * _FINE) * HOUR_MS // (_HOURS[hour] * _FINE)
    begins: Numbers = day * DAY_MS + hour * HOUR_MS + within
    return begins


def most_in(span_ms: int, per_day: int) -> int:
    """Upper bound of the number of sessions or tickets that start within `span_ms`."""
    return -(-span_ms * int(_HOURS.max()) * per_day // (_WHOLE * HOUR_MS)) + 1
