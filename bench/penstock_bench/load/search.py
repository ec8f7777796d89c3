"""The search for the highest rate that holds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Bounds:
    """Limits and precision of a search. Rates are in rows per second."""

    least: float
    most: float
    factor: float
    """Factor between successive rates until one rate holds and one fails."""
    within: float
    """Relative precision: the search ends when the lowest rate that failed is at most this far above the
    highest that held; 0.1 is 10 %."""


def highest(
    holds: Callable[[float], bool],
    start: float,
    bounds: Bounds,
    enough: Callable[[], bool] = lambda: False,
) -> float:
    """The highest rate that held; 0 if none did, not even the least.

    Goes up or down from `start` by the factor until one rate holds and one fails, then bisects
    (geometrically) until the two are near. Assumes that if a rate holds, lower ones do, so no rate is tried
    twice. With noisy answers the result is still a rate that held, below one that failed. `enough` is
    called after each rate; if it returns True, the search ends with its best rate so far.

    >>> round(highest(lambda rate: rate <= 750, 100, Bounds(1, 10_000, factor=2, within=0.1)))
    734
    >>> highest(lambda rate: True, 100, Bounds(1, 1_000, 2, 0.1))
    1000
    """
    rate = min(max(start, bounds.least), bounds.most)
    good, bad = 0.0, math.inf
    while True:
        if holds(rate):
            good = rate
        else:
            bad = rate
        ended = good >= bounds.most or bad <= bounds.least or bad <= good * (1 + bounds.within)
        if ended or enough():
            return good
        if not good:
            rate = max(bounds.least, bad / bounds.factor)
        elif bad == math.inf:
            rate = min(bounds.most, good * bounds.factor)
        else:
            rate = math.sqrt(good * bad)
