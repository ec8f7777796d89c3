"""Arrivals without their noise: a rate that chance alone explains is taken for its mean."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numba import njit

from penstock.control.vitals import Floats, Vitals


class Calm:
    """Remembers the mean rate of every slot, and tells real changes from noise.

    Records that come independently of each other vary, over a window, by the square root of their
    number. A host whose arrivals are within `deviations` of that from their mean of late is taken to
    get the mean; one that is beyond gets what it gets. So a steady load looks steady, and a burst,
    which is many deviations at once, is seen as soon as before.

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
        """These vitals with the noise taken out of their rates. To be called with each new ones."""
        gap_ms = vitals.now_ms - self._now_ms
        if not 0 <= gap_ms <= self.mean_ms or len(self._mean) != len(vitals.rate):
            self._mean = vitals.rate.copy()
            self._since_ms, gap_ms = vitals.now_ms, 0.0
        self._now_ms = vitals.now_ms
        # At first the mean is that of all there was.
        seen_ms = vitals.now_ms - self._since_ms
        weight = min(1.0, gap_ms / min(self.mean_ms, seen_ms)) if seen_ms else 0.0
        rate = _calmed(
            vitals.rate,
            self._mean,
            vitals.owner,
            len(vitals.hosts),
            weight,
            self.deviations,
            window_s,
        )
        return replace(vitals, rate=rate)


@njit(cache=True, nogil=True)
def _calmed(rate, mean, owner, hosts, weight, deviations, window_s):  # type: ignore[no-untyped-def]
    """The rates to go by; brings `mean` up to date."""
    now, usual = np.zeros(hosts), np.zeros(hosts)
    for slot in range(len(rate)):
        mean[slot] += weight * (rate[slot] - mean[slot])
        now[owner[slot]] += rate[slot]
        usual[owner[slot]] += mean[slot]
    result = np.empty(len(rate))
    for slot in range(len(rate)):
        host = owner[slot]
        noise = deviations * np.sqrt(usual[host] / window_s)
        result[slot] = mean[slot] if abs(now[host] - usual[host]) <= noise else rate[slot]
    return result
