"""DS2 in the form of Flink's autoscaler: scales hosts to a target utilisation, whatever the latency.

Like Flink's autoscaler, it averages arrivals over a window and plans to process the backlog within a set
time. Near the target it does nothing, and after a change it waits for some time. It removes hosts only after
fewer have been enough for a while, and never more than could be spared all that time. After each change it
assigns slots to hosts in contiguous ranges of equal size, whatever their arrivals.

Two settings differ. Flink's times are minutes, and here they are seconds, because no job is restarted for a
change. And Flink acts only outside of 0.3 around the target, which is when hosts are busy all the time.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace

import numpy as np

from penstock.control.diagnose.diagnosis import observed
from penstock.control.diagnose.load import service_rates
from penstock.control.examine.vitals import Vitals
from penstock.control.policies.moves import moves
from penstock.control.treat.decision import Bounds, Decision, Treatment, new_host
from penstock.errors import SettingError


class Ds2:
    """Scales so that hosts are busy for a share of `target` of their time. Ignores latency and skew.

    Nothing is done while that share is within `boundary` of the target, or for `settle_ms` after a change or
    the start. Arrivals are averaged over `window_ms`. The backlog should be processed within `catch_up_ms`.
    Fewer hosts must have been enough for `scale_in_ms` before hosts are removed.

    >>> from dataclasses import replace
    >>> from penstock.model import SLA, StepId
    >>> vitals = Vitals.even(StepId("sum"), [300.0] * 4, hosts=1, service_rate=1_000.0)
    >>> policy, bounds = Ds2(), Bounds(SLA(1000, 1000))
    >>> policy.decide(vitals, bounds).treatments
    ()
    >>> decision = policy.decide(replace(vitals, now_ms=5_000.0), bounds)
    >>> print(decision.treatments[0])
    scale out: slots 2-3 from sum/0 to new/1
    >>> print(decision.reasons[0])
    arrivals of 1,200/s, plus 0/s for the backlog, are 120 % of the capacity (hosts: 1 at 1,000/s); a \
target of 70 % needs 2, 1 to 4 are allowed
    """

    def __init__(
        self,
        target: float = 0.7,
        boundary: float = 0.1,
        window_ms: float = 15_000.0,
        settle_ms: float = 5_000.0,
        scale_in_ms: float = 60_000.0,
        catch_up_ms: float = 30_000.0,
    ) -> None:
        if not (0 < target <= 1 and 0 <= boundary < target):
            raise SettingError(
                f"ds2 has a target of {target:g} and a boundary of {boundary:g}",
                hint="use a target above 0 and up to 1, such as ds2(0.7), and a boundary below it",
            )
        if not (window_ms > 0 and catch_up_ms > 0):
            raise SettingError(
                f"window_ms is {window_ms:g} and catch_up_ms is {catch_up_ms:g}",
                hint="use more than 0 for both",
            )
        self.target, self.boundary = target, boundary
        self.settle_ms, self.scale_in_ms, self.catch_up_ms = settle_ms, scale_in_ms, catch_up_ms
        self._arrivals = _Mean(window_ms)
        self._changed_ms: float | None = None
        """Time of the last change of the number of hosts, or of the first decision."""
        self._fewer: tuple[float, int] | None = None
        """Time since which fewer hosts have been enough, and the most that were needed since then."""

    def __str__(self) -> str:
        return f"ds2({self.target:g})"

    def decide(self, vitals: Vitals, bounds: Bounds) -> Decision:
        decision, served = observed(vitals, bounds), service_rates(vitals)
        now, present = vitals.now_ms, len(vitals.hosts)
        arrivals = self._arrivals.add(now, float(vitals.rate.sum()))
        waiting = float(vitals.backlog.sum()) * 1000.0 / self.catch_up_ms
        if self._changed_ms is None:
            self._changed_ms = now
        if served is None:
            return decision
        service_rate = float(served.mean())
        busy = (arrivals + waiting) / (service_rate * present)
        near = abs(busy - self.target) <= self.boundary
        needed = present if near else math.ceil(present * busy / self.target)
        most = min(bounds.at_most, len(vitals.owner))
        wanted = min(max(needed, bounds.at_least), most)
        if present <= most:
            wanted = self._patiently(now, present, wanted)
        if now - self._changed_ms < self.settle_ms or wanted == present >= needed:
            return decision
        reason = (
            f"arrivals of {arrivals:,.0f}/s, plus {waiting:,.0f}/s for the backlog, are {100 * busy:.0f} % "
            f"of the capacity (hosts: {present} at {service_rate:,.0f}/s); a target of "
            f"{100 * self.target:.0f} % needs {needed}, {bounds.at_least} to {most} are allowed"
        )
        if wanted == present:
            return replace(decision, reasons=(reason,))
        if self._fewer is not None:
            reason += f", and {wanted} were enough for the last {self.scale_in_ms / 1000:g} s"
        self._changed_ms, self._fewer = now, None
        treatments = _spread(vitals, wanted, reason)
        return replace(decision, treatments=treatments, reasons=(reason,))

    def _patiently(self, now: float, present: int, wanted: int) -> int:
        """The number of hosts to scale to. Fewer than `present` only after `scale_in_ms`."""
        if wanted >= present:
            self._fewer = None
            return wanted
        since, highest = self._fewer or (now, wanted)
        self._fewer = since, max(highest, wanted)
        return self._fewer[1] if now - since >= self.scale_in_ms else present


class _Mean:
    """The mean of the values within a window."""

    def __init__(self, window_ms: float) -> None:
        self._window_ms = window_ms
        self._values: deque[tuple[float, float]] = deque()
        self._sum = 0.0

    def add(self, now_ms: float, value: float) -> float:
        self._values.append((now_ms, value))
        self._sum += value
        while self._values[0][0] <= now_ms - self._window_ms:
            self._sum -= self._values.popleft()[1]
        return max(self._sum, 0.0) / len(self._values)


def _spread(vitals: Vitals, wanted: int, reason: str) -> tuple[Treatment, ...]:
    """Reassign all slots in contiguous ranges. If there are too many hosts, the last ones leave."""
    present, slots = vitals.hosts, len(vitals.owner)
    new = (new_host(number) for number in range(1, 1 + wanted - len(present)))
    owner = np.arange(slots) * wanted // slots
    return moves(vitals, (*present[:wanted], *new), owner, reason)
