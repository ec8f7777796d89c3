"""Load of a step's hosts, in the form that the search for strategies needs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from penstock.control.diagnose.project import Projection
from penstock.control.examine.vitals import Floats, Ints, Vitals
from penstock.control.treat.decision import Bounds

Flags = npt.NDArray[np.bool_]


def service_rates(vitals: Vitals) -> Floats | None:
    """Service rate of each host, with the mean for hosts that have not worked yet; None if none has.

    >>> from penstock.model import StepId
    >>> service_rates(Vitals.even(StepId("sum"), [1.0, 1.0], hosts=2, service_rate=9.0)).tolist()
    [9.0, 9.0]
    """
    known = vitals.service_rate
    if known.min() > 0:  # nan is not
        return known
    missing = ~(known > 0)
    if missing.all():
        return None
    return np.where(missing, known[~missing].mean(), known)


@dataclass(frozen=True, eq=False)
class Load:
    """Owners of slots, arrivals, and capacities of hosts. Never changed in place.

    >>> from penstock.control.diagnose.project import Mm1
    >>> from penstock.model import SLA, StepId
    >>> vitals = Vitals.even(StepId("sum"), [6.0, 1.0, 1.0], hosts=1, service_rate=10.0)
    >>> load = Load.of(vitals, Bounds(SLA(1000, 1000)), Mm1())
    >>> load.rate.tolist(), load.capacity.tolist(), load.latency_ms.tolist()
    ([8.0], [8.0], [inf])
    >>> load.with_host(like=0).moved(np.array([1, 2]), 0, 1).latency_ms.tolist()
    [500.0, 166.66666666666666]
    """

    owner: Ints
    """Index of each slot's host."""
    slot_rate: Floats
    """Arrivals per slot in records per second."""
    slot_latency_ms: Floats
    rate: Floats
    """Arrivals per host in records per second."""
    capacity: Floats
    """Arrivals per host at which it can no longer keep up, in records per second."""
    gain: Floats
    """Gain of each host's projected latency: see `penstock.control.diagnose.project`."""

    @staticmethod
    def of(vitals: Vitals, bounds: Bounds, projection: Projection) -> Load | None:
        """The load of a step; None if no host's service rate is known."""
        served = service_rates(vitals)
        if served is None:
            return None
        return Load(
            vitals.owner,
            vitals.rate,
            vitals.slot_latency_ms,
            vitals.host_rate,
            projection.capacity(served, bounds),
            projection.gain(served, bounds, vitals.cost_ms),
        )

    @property
    def hosts(self) -> int:
        return len(self.rate)

    @property
    def slack(self) -> Floats:
        """Inverse of each host's projected latency; below zero for a host that cannot keep up."""
        slack: Floats = (self.capacity - self.rate) / self.gain
        return slack

    @property
    def latency_ms(self) -> Floats:
        """Projected latency of each host in milliseconds; inf if it cannot keep up."""
        slack = self.slack
        latency: Floats = np.divide(1.0, slack, out=np.full(len(slack), np.inf), where=slack > 0)
        return latency

    def movable(self, source: int) -> tuple[Ints, int]:
        """The slots of a host that may move, in the order in which they should, and the maximum number.

        Slots with the least latency come first, since they can best afford the pause of a move. Slots
        without arrivals stay, because moving them changes nothing. A slot that overloads any host would
        overload the target too. Such slots come last, and the largest of them stays. A host keeps at least
        one slot.
        """
        slots = np.flatnonzero(self.owner == source)
        rates = self.slot_rate[slots]
        hot = rates >= self.capacity.max()
        order = np.lexsort((self.slot_latency_ms[slots], hot))
        if hot.any():
            order = order[order != rates.argmax()]
        movable = slots[order[rates[order] > 0]]
        return movable, min(len(movable), len(slots) - 1)

    def hottest(self, host: int) -> float:
        """Arrivals of a host's busiest slot in records per second."""
        return float(self.slot_rate[self.owner == host].max(initial=0.0))

    def moved(self, slots: Ints, source: int, target: int) -> Load:
        """The load after these slots have moved from source to target."""
        owner, rate = self.owner.copy(), self.rate.copy()
        owner[slots] = target
        amount = self.slot_rate[slots].sum()
        rate[source] -= amount
        rate[target] += amount
        return replace(self, owner=owner, rate=rate)

    def with_host(self, like: int) -> Load:
        """The load with one more host, which owns no slots and is as fast as host `like`."""
        return replace(
            self,
            rate=np.append(self.rate, 0.0),
            capacity=np.append(self.capacity, self.capacity[like]),
            gain=np.append(self.gain, self.gain[like]),
        )
