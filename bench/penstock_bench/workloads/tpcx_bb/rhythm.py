"""When the n-th ticket or session begins: every day has busy and quiet hours.

All in integers: exact, never going back, the same on any machine.
"""

from __future__ import annotations

import numpy as np

from penstock_bench.workloads.draws import Numbers

_HOURS = np.array(
    [2, 1, 1, 1, 1, 2, 4, 7, 10, 12, 14, 15, 16, 15, 14, 14, 15, 17, 19, 20, 17, 12, 8, 4], np.int64
)
"""What share of a day's begins in each hour of it."""
_WHOLE = int(_HOURS.sum())
_UNTIL = np.cumsum(_HOURS) - _HOURS
"""What has come when an hour begins."""
_FINE = 1_000_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def begins_ms(numbers: Numbers, per_day: int) -> Numbers:
    """When these begin, in milliseconds after the first day began.

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
    """More cannot begin in so long a time."""
    return -(-span_ms * int(_HOURS.max()) * per_day // (_WHOLE * HOUR_MS)) + 1
