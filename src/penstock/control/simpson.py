"""Integrals of what was observed at uneven times, by Simpson's rule."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.control.vitals import Floats


def integral(times: npt.ArrayLike, values: npt.ArrayLike) -> Floats:
    """The integral of `values` over `times`, along the first axis.

    The composite rule: a parabola through each three neighbours, whatever lies between their times.
    An odd interval at the end takes its part of the parabola through the last three; two values are
    joined by a line. Times must increase.

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
        total = total + both / 6 * (
            (2 - right / left) * seen[first]
            + both**2 / (left * right) * seen[first + 1]
            + (2 - left / right) * seen[first + 2]
        )
    if len(gaps) % 2:
        left, right = gaps[-2], gaps[-1]
        total = total + (
            (2 * right**2 + 3 * left * right) / (6 * (left + right)) * seen[-1]
            + (right**2 + 3 * left * right) / (6 * left) * seen[-2]
            - right**3 / (6 * left * (left + right)) * seen[-3]
        )
    return np.asarray(total)
