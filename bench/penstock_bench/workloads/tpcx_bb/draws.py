"""What both streams draw from: items that go together, small numbers, Zipf's law."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from penstock.sim.skews import Zipf
from penstock_bench.workloads.draws import Draws, Floats, Numbers
from penstock_bench.workloads.tpcx_bb.config import TpcxBbConfig

_COMPANIONS = 6
"""Items of the same category that go with an item."""


def lengths(draws: Draws, what: str, mean: float, most: int) -> Numbers:
    """From 1 to `most`, each by the same factor rarer than the one before."""
    return 1 + _geometric(mean, most).searchsorted(draws.unit(what), side="right")


@lru_cache(maxsize=16)
def _geometric(mean: float, most: int) -> Floats:
    reached: Floats = np.cumsum((1.0 - 1.0 / mean) ** np.arange(most, dtype=np.float64))
    inner: Floats = reached[:-1] / reached[-1]
    return inner


def popular_items(config: TpcxBbConfig, draws: Draws, what: str) -> Numbers:
    """Items by Zipf's law: 1 is the favourite of all."""
    return 1 + Zipf(config.item_exponent).ranks(config.items, draws.unit(what))


def companions(config: TpcxBbConfig, items: Numbers, draws: Draws, what: str) -> Numbers:
    """For each item one of the few of its category that go with it."""
    apart = config.categories * (1 + draws.below(_COMPANIONS, what))
    return 1 + (items - 1 + apart) % config.items


def category_of(config: TpcxBbConfig, items: Numbers) -> Numbers:
    """From 1 on."""
    return 1 + (items - 1) % config.categories
