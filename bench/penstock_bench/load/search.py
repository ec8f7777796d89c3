"""The search for the highest rate that holds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Bounds:
    """The rates that are tried."""

    least: float
    most: float
    factor: float
    """From one rate to the next, as long as only one side of the highest is known."""
    within: float
    """The search is over when the lowest rate that failed is at most so much above: 0.1 is 10 %."""


def highest(
    holds: Callable[[float], bool],
    start: float,
    bounds: Bounds,
    enough: Callable[[], bool] = lambda: False,
) -> float:
    """The highest rate that was seen to hold; 0 if none was, not even the least.

    Goes up or down from `start` by the factor until it has a rate that holds and one that does not,
    then tries the (geometric) middle of the two until they are near. Takes for granted that what
    holds at a rate holds at a lower one: no rate is tried twice, and where the answers are noisy the
    result still is a rate that held, below one that did not. `enough` is asked after each rate: when it
    says so, the search ends with what it has.

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
