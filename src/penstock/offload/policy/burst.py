"""One burst after another: what its figures are held to, when it began, and whether it lasts."""

from __future__ import annotations

import numpy as np

from penstock.control.diagnose.load import service_rates
from penstock.control.diagnose.project import fitting
from penstock.control.examine.calm import Calm
from penstock.control.examine.vitals import Floats, Vitals
from penstock.control.money import BreakEven
from penstock.control.treat.decision import Bounds
from penstock.control.treat.offloading import OffloadSettings
from penstock.offload.policy.observations import Observation

_RELAPSE_MS = 60_000.0
"""Who needs burst workers again so soon after it did without them was let go of too early."""
_LONGEST_ROW = 32
"""So many observations in a row are asked for at most, however often that happened."""


class Burst:
    """Follows the bursts of one step.

    >>> burst = Burst(OffloadSettings(patience_ms=10_000.0))
    >>> for second in (0, 5, 11):
    ...     burst.note(1000.0 * second, helped=True, busy=2.0, hosts=2)
    ...     print(burst.lasts)
    False
    False
    True
    """

    def __init__(self, settings: OffloadSettings) -> None:
        self.settings = settings
        self.row = settings.in_a_row
        """Observations in a row after which a host is on its own again. More of them each time that
        this was too early: so who is at the edge does not go to and fro."""
        self.lasts = False
        """Whether it is time for hosts. So until the burst is over."""
        self.since_ms: float | None = None
        """When burst workers began to carry this burst; None if there is none."""
        self.ended_ms = self._time_ms = float("-inf")
        self._even = BreakEven(settings.costs)
        self._spent = self._function_seconds = self._busy = 0.0

    def note(
        self, now_ms: float, helped: bool, busy: float, hosts: int, spent: float | None = None
    ) -> None:
        """Whether burst workers help any host from now on, with so much work as keeps `busy` of them
        busy, or so many hosts; `spent` is what burst workers have cost so far, if known."""
        if not helped:
            if self.since_ms is not None:
                self.ended_ms = now_ms
            self.since_ms, self.lasts = None, False
            return
        if self.since_ms is None:
            soon = now_ms - self.ended_ms < _RELAPSE_MS
            self.row = (
                min(2 * self.row, _LONGEST_ROW)
                if soon
                else max(self.row // 2, self.settings.in_a_row)
            )
            self.since_ms, self._even = now_ms, BreakEven(self.settings.costs)
            self._spent, self._function_seconds = spent or 0.0, 0.0
        else:
            self._function_seconds += self._busy * (now_ms - self._time_ms) / 1000.0
        self._time_ms, self._busy = now_ms, busy
        cost = None if spent is None else spent - self._spent
        self._even.note(now_ms, hosts, self._function_seconds, cost)
        if busy > 0 and (self.dearer or now_ms - self.since_ms > self.settings.patience_ms):
            self.lasts = True

    @property
    def dearer(self) -> bool:
        """Whether burst workers have cost more than hosts would have."""
        return self._even.reached


class BurstCalm:
    """Arrivals without noise, so that a steady load looks steady, and a burst is seen as it begins.

    Within a burst the mean that noise is told by begins anew with each real change: what was before
    it would only make it lag behind.
    """

    def __init__(self) -> None:
        self._calm = Calm()
        self._since_ms = -np.inf

    def of(self, vitals: Vitals, window_ms: float, burst: bool) -> Vitals:
        """These vitals with calm rates; `burst` says whether burst workers help now."""
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
