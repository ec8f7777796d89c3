"""Burst workers shared out among couriers, by the rows that each has for them."""

from __future__ import annotations

import math

import numpy as np

from penstock.control.examine.vitals import Floats

_NEARLY = 1e-9
"""So little below a whole number is taken for an error of arithmetic."""


def apportioned(
    functions: int, rows: Floats, together: int | None = None, at_most: int | None = None
) -> tuple[int, ...]:
    """How many of the functions each courier may keep busy: so that all have as much to do.

    `rows` tells what each courier had for them of late. Where only so many couriers are at work
    `together`, one has more than its part of all functions, since others wait for their turn
    meanwhile. Each gets one at least; but where there are `at_most` fewer than couriers at work, those
    with the most rows get one, and the others must do without, since they would be refused.

    >>> apportioned(10, np.array([300.0, 100.0, 100.0, 0.0]))
    (6, 2, 2, 1)
    >>> apportioned(8, np.ones(3)), apportioned(2, np.ones(3))
    ((3, 3, 2), (1, 1, 1))
    >>> apportioned(8, np.ones(100), together=4)[:3]
    (2, 2, 2)
    >>> apportioned(2, np.array([5.0, 9.0, 1.0, 7.0]), at_most=2)
    (0, 1, 0, 1)
    """
    count = len(rows)
    if not rows.any():
        rows = np.ones(count)
    at_work = min(count, together or count)
    if at_most is not None and at_most < at_work:
        return _scarce(rows, at_work, at_most)
    exact = functions * rows / rows.sum() * (count / at_work)
    parts = np.floor(exact + _NEARLY)
    if at_work == count:
        left = functions - int(parts.sum())
        parts[np.argsort(parts - exact, kind="stable")[: max(left, 0)]] += 1
    return tuple(np.clip(parts, 1, functions).astype(int).tolist())


def _scarce(rows: Floats, at_work: int, functions: int) -> tuple[int, ...]:
    """One for some couriers, such that no more ask at a time than there are functions."""
    count = len(rows)
    some = functions if at_work == count else math.floor(count * functions / at_work)
    chosen = np.zeros(count, np.int64)
    chosen[np.argsort(-rows, kind="stable")[:some]] = 1
    return tuple(chosen.tolist())
