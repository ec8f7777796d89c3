"""Removes noise from arrival rates: a rate that differs from its mean only by chance counts as the mean."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numba import njit

from penstock.control.examine.vitals import Floats, Vitals

_SURE = 1.5
"""Factor on the noise for the newest arrivals. They are checked in every time slot, so that noise has more
chances to look like a burst."""


class Calm:
    """Keeps the mean rate of every slot, and separates real changes from noise.

    The number of independent records in a window varies by its square root. If the arrivals of a host are
    within `deviations` times that of their recent mean, the mean is used; otherwise the actual rate. So a
    steady load looks steady. If the newest arrivals alone exceed all noise, a burst has begun. Their rate is
    used then, although the window contains little of the burst yet.

    >>> from penstock.model import StepId
    >>> calm, steady = Calm(mean_ms=10_000.0, deviations=4.0), [50.0, 50.0]
    >>> def look(now: float, rates: list[float]) -> list[float]:
    ...     vitals = replace(Vitals.even(StepId("sum"), rates, 1, 200.0), now_ms=now)
    ...     return calm.of(vitals, window_s=1.0).rate.round().tolist()
    >>> for second in range(30):
    ...     _ = look(1_000.0 * second, steady)
    >>> look(30_000.0, [70.0, 60.0]), look(30_100.0, [150.0, 60.0])
    ([52.0, 51.0], [150.0, 60.0])
    """

    def __init__(self, mean_ms: float = 10_000.0, deviations: float = 4.0) -> None:
        self.mean_ms, self.deviations = mean_ms, deviations
        self._mean: Floats = np.empty(0)
        self._since_ms = self._now_ms = -np.inf

    def of(self, vitals: Vitals, window_s: float) -> Vitals:
        """The vitals with noise removed from their rates. Call it with the vitals of every evaluation."""
        gap_ms = vitals.now_ms - self._now_ms
        if not 0 <= gap_ms <= self.mean_ms or len(self._mean) != len(vitals.rate):
            self._mean = vitals.rate.copy()
            self._since_ms, gap_ms = vitals.now_ms, 0.0
        self._now_ms = vitals.now_ms
        # At first, the mean is over all the time seen.
        seen_ms = vitals.now_ms - self._since_ms
        weight = min(1.0, gap_ms / min(self.mean_ms, seen_ms)) if seen_ms else 0.0
        newest, newest_s = vitals.newest_rate, vitals.newest_ms / 1000.0
        if newest is None or not newest_s:
            newest, newest_s = vitals.rate, window_s
        rate = _calmed(
            *(vitals.rate, newest, self._mean, vitals.owner, len(vitals.hosts)),
            *(weight, self.deviations, window_s, newest_s),
        )
        return replace(vitals, rate=rate)


@njit(cache=True, nogil=True)
def _calmed(  # type: ignore[no-untyped-def]
    rate, newest, mean, owner, hosts, weight, deviations, window_s, newest_s
):
    """The rates without noise. Updates `mean`."""
    now, usual, fresh = np.zeros(hosts), np.zeros(hosts), np.zeros(hosts)
    for slot in range(len(rate)):
        host = owner[slot]
        mean[slot] += weight * (rate[slot] - mean[slot])
        now[host] += rate[slot]
        usual[host] += mean[slot]
        fresh[host] += newest[slot]
    result = np.empty(len(rate))
    for slot in range(len(rate)):
        host = owner[slot]
        noise = deviations * np.sqrt(usual[host])
        beyond = fresh[host] - max(now[host], usual[host])
        if now[host] > 0 and beyond > _SURE * noise / np.sqrt(newest_s):
            # in the window's proportions, since the newest arrivals of a single slot are all noise
            result[slot] = rate[slot] * fresh[host] / now[host]
        elif abs(now[host] - usual[host]) <= noise / np.sqrt(window_s):
            result[slot] = mean[slot]
        else:
            result[slot] = rate[slot]
    return result
