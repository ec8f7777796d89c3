"""What the figures that functions go by are held to: the bound, Little's law, and noise."""

from __future__ import annotations

import numpy as np

from penstock.control.diagnose.load import service_rates
from penstock.control.diagnose.project import fitting
from penstock.control.examine.calm import Calm
from penstock.control.examine.vitals import Floats, Vitals
from penstock.control.treat.decision import Bounds
from penstock.offload.policy.observations import Observation


class BurstCalm:
    """Arrivals without noise, so that a steady load looks steady, and a burst is seen as it begins.

    Within a burst the mean that noise is told by begins anew with each real change: what was before
    it would only make it lag behind.
    """

    def __init__(self) -> None:
        self._calm = Calm()
        self._since_ms = -np.inf

    def of(self, vitals: Vitals, window_ms: float, burst: bool) -> Vitals:
        """These vitals with calm rates; `burst` says whether functions help now."""
        calm = self._calm.of(vitals, window_ms / 1000.0)
        changed = bool(np.any(np.isclose(calm.host_rate, vitals.host_rate, rtol=1e-9)))
        if burst and changed and vitals.now_ms - self._since_ms > 2 * window_ms:
            self._calm, self._since_ms = Calm(), vitals.now_ms
        return calm


def bound_part(vitals: Vitals, bounds: Bounds) -> float:
    """The load at which a host would just keep the bound, by the projection that fits the engine.

    >>> from penstock.model import SLA, StepId
    >>> vitals = Vitals.even(StepId("sum"), [1.0], hosts=1, service_rate=9e3, epoch_cost_ms=200.0)
    >>> round(bound_part(vitals, Bounds(SLA(1000, 1000))), 3)
    0.7
    """
    projection, served = fitting(vitals), service_rates(vitals)
    if served is None:
        return 1.0
    idle_ms = projection.latency_ms(np.zeros(len(served)), served, bounds, vitals.epoch_cost_ms)
    return 1.0 - float(idle_ms.max()) / projection.bound_ms(bounds)


def plausible(seen: Observation, vitals: Vitals, deadline_ms: float) -> Floats:
    """Per host: the most that can wait, by Little's law and generously.

    An integral goes astray where a capacity is not as it is taken to be: latency tells.
    """
    most = seen.rate * 2 * (vitals.latency_ms + deadline_ms) / 1000.0
    return np.where(np.isnan(most), np.inf, most)
