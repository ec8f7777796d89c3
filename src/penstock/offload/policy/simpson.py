"""Integrals of what was observed at uneven times, by Simpson's rule."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.control.examine.vitals import Floats

_UNEVEN = 2.0


def integral(times: npt.ArrayLike, values: npt.ArrayLike) -> Floats:
    """The integral of `values` over `times`, along the first axis.

    The composite rule: a parabola through each three neighbours. An odd interval at the end takes its
    part of the parabola through the last three. Two values are joined by a line; so are neighbours
    of which one is more than twice as far away as the other: a parabola through what lies close
    together says nothing of what is far from it. Times must increase.

    >>> times = np.array([0.0, 1.0, 3.0, 4.0])
    >>> round(float(integral(times, times**2)), 9) == round(4.0**3 / 3, 9)
    True
    >>> integral([0.0, 2.0], [[1.0, 0.0], [3.0, 1.0]]).tolist()
    [4.0, 1.0]
    """
    at = np.asarray(times, dtype=np.float64)
    seen = np.asarray(values, dtype=np.float64)
    total: Floats = np.zeros(seen.shape[1:])
    gaps = np.diff(at)
    if len(gaps) == 1:
        return np.asarray(total + gaps[0] * (seen[0] + seen[1]) / 2)
    for first in range(0, len(gaps) - 1, 2):
        left, right = gaps[first], gaps[first + 1]
        both = left + right
        if not _alike(left, right):
            total = total + left * (seen[first] + seen[first + 1]) / 2
            total = total + right * (seen[first + 1] + seen[first + 2]) / 2
            continue
        total = total + both / 6 * (
            (2 - right / left) * seen[first]
            + both**2 / (left * right) * seen[first + 1]
            + (2 - left / right) * seen[first + 2]
        )
    if len(gaps) % 2:
        left, right = gaps[-2], gaps[-1]
        if not _alike(left, right):
            return np.asarray(total + right * (seen[-2] + seen[-1]) / 2)
        total = total + (
            (2 * right**2 + 3 * left * right) / (6 * (left + right)) * seen[-1]
            + (right**2 + 3 * left * right) / (6 * left) * seen[-2]
            - right**3 / (6 * left * (left + right)) * seen[-3]
        )
    return np.asarray(total)


def _alike(left: float, right: float) -> bool:
    """Whether Simpson's rule gives none of three values a weight below 0."""
    return bool(max(left, right) <= _UNEVEN * min(left, right))
