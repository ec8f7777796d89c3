"""Health of each host of a step, by its present latency and its projected latency.

    severe      the latency is above the alert, and the projected latency is above the bound
    good        neither
    moderate    one of both: latency or load may go down again by itself

The health of a step is that of its worst host.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numba import njit

from penstock.control.diagnose.load import Flags, Load, service_rates
from penstock.control.diagnose.project import Projection, fitting
from penstock.control.examine.vitals import Floats, Ints, Vitals
from penstock.control.treat.decision import Bounds, Decision, Health, HostHealth

_HEALTH: tuple[Health, ...] = ("good", "moderate", "severe")


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """Health of a step's hosts, with the figures behind it. Arrays are over hosts."""

    vitals: Vitals
    service_rate: Floats
    capacity: Floats
    gain: Floats
    level: Ints
    """Health of each host as a number. 0: good, 1: moderate, 2: severe."""
    alert_ms: float
    bound_ms: float
    """Maximum projected latency in milliseconds."""
    drain_s: float
    """Seconds in which an excess backlog should be processed."""
    health: Health
    """Health of the step."""
    hot: bool
    """Whether a slot has more arrivals than any host can process."""
    slots: Floats
    """Number of slots that each host owns."""
    rate: Floats
    """Arrivals per host in records per second."""
    waiting: Floats
    """Backlog per host in records."""
    latency_ms: Floats
    """Latency per host. If nothing completed, it follows from backlog and arrivals by Little's law."""
    projected_ms: Floats
    """Latency that each host would settle at."""
    excess: Floats
    """Records of each host's backlog that count as load, since they would not go away by themselves."""

    @property
    def late(self) -> Flags:
        """Whether each host's latency is above the alert."""
        return self.latency_ms > self.alert_ms

    @property
    def floor(self) -> float:
        """Slack that a host needs to keep the bound."""
        return 1.0 / self.bound_ms

    @property
    def arrivals(self) -> Load:
        """Load of the hosts without their backlogs."""
        owner, slot_rate = self.vitals.owner, self.vitals.rate
        latency_ms = self.vitals.slot_latency_ms
        return Load(owner, slot_rate, latency_ms, self.rate, self.capacity, self.gain)

    @cached_property
    def load(self) -> Load:
        """Load of the hosts: their arrivals, and their excess backlogs."""
        if not self.excess.any():
            return self.arrivals
        # Each slot gets its part of the host's excess backlog.
        drained = self.excess / self.drain_s
        share = drained / np.where(self.waiting > 0, self.waiting, 1.0)
        slot_rate = self.vitals.rate + self.vitals.backlog * share[self.vitals.owner]
        return replace(self.arrivals, slot_rate=slot_rate, rate=self.rate + drained)

    @property
    def hot_slots(self) -> tuple[int, ...]:
        """Slots with more arrivals than the capacity of any host."""
        if not self.hot:
            return ()
        return tuple(np.flatnonzero(self.vitals.rate > self.capacity.max()).tolist())

    def host_health(self) -> tuple[HostHealth, ...]:
        """Health of each host, for a `Decision`."""
        words = map(_HEALTH.__getitem__, self.level.tolist())
        slots = self.slots.astype(np.int64)
        figures = (slots, self.rate, self.service_rate, self.latency_ms, self.projected_ms)
        columns = (figure.tolist() for figure in figures)
        return tuple(map(HostHealth, self.vitals.hosts, words, *columns))


def diagnose(
    vitals: Vitals, bounds: Bounds, projection: Projection, drain: float = 2.0
) -> Diagnosis | None:
    """Find the health of each host; None if no host's service rate is known.

    A host that just keeps the bound has rate * bound records waiting, by Little's law. A larger backlog is an
    excess. If a host's spare rate would not clear the excess within the time of one bound, the excess counts
    as arrivals, at the rate that clears it within `drain` times the bound. So after a burst, the step still
    gets the hosts that its backlog needs.

    If even an idle host would not keep the bound, no number of hosts could. Then the bound of a host is twice
    its idle latency, which allows half of its capacity.

    >>> from penstock.control.diagnose.project import Mm1
    >>> from penstock.model import SLA, StepId
    >>> vitals = Vitals.even(StepId("sum"), [700.0, 900.0], 2, service_rate=1000.0, latency_ms=700.0)
    >>> diagnosis = diagnose(vitals, Bounds(SLA(1000, 1000)), Mm1())
    >>> diagnosis.health, [(host.health, host.projected_ms) for host in diagnosis.host_health()]
    ('severe', [('moderate', 10.0), ('severe', inf)])
    """
    served = service_rates(vitals)
    if served is None:
        return None
    capacity = projection.capacity(served, bounds)
    gain = projection.gain(served, bounds, vitals.cost_ms)
    alert_ms, bound_ms = bounds.alert_ms, projection.bound_ms(bounds)
    figures, level, bound_ms, hot = _judge(
        *(vitals.owner, vitals.rate, vitals.backlog, vitals.latency_ms),
        *(capacity, gain, alert_ms, bound_ms, drain),
    )
    drain_s, health = drain * bound_ms / 1000.0, _HEALTH[level.max()]
    judged = (level, alert_ms, bound_ms, drain_s, health, hot)
    return Diagnosis(vitals, served, capacity, gain, *judged, *figures)


def nothing_known(vitals: Vitals) -> Decision:
    """A decision to do nothing while no host's service rate is known."""
    why = f"no host of {vitals.step} has worked yet, so their service rates are unknown"
    return Decision("moderate", (), reasons=(why,))


def observed(vitals: Vitals, bounds: Bounds) -> Decision:
    """A decision to do nothing, with the health of the step and its hosts.

    While no host's service rate is known, it has no hosts, and a reason that says so.

    >>> from penstock.model import SLA, StepId
    >>> vitals = Vitals.even(StepId("sum"), [99.0, 1.0], hosts=2, service_rate=100.0, latency_ms=700)
    >>> decision = observed(vitals, Bounds(SLA(1000, 1000)))
    >>> decision.health, [(host.host, host.health) for host in decision.hosts]
    ('severe', [('sum/0', 'severe'), ('sum/1', 'moderate')])
    """
    diagnosis = diagnose(vitals, bounds, fitting(vitals))
    if diagnosis is None:
        return nothing_known(vitals)
    return Decision(diagnosis.health, diagnosis.host_health(), hot_slots=diagnosis.hot_slots)


@njit(cache=True, nogil=True)
def _judge(  # type: ignore[no-untyped-def]
    owner, slot_rate, backlog, latency_ms, capacity, gain, alert_ms, bound_ms, drain
):
    """Figures of hosts in the order of `Diagnosis`, their health as numbers, the bound, and `hot`."""
    figures = np.zeros((6, len(capacity)))
    slots, rates, waiting = figures[0], figures[1], figures[2]
    latencies, projections, excess = figures[3], figures[4], figures[5]
    level = np.zeros(len(capacity), np.int64)
    hottest = 0.0
    for slot in range(len(owner)):
        host = owner[slot]
        slots[host] += 1
        rates[host] += slot_rate[slot]
        waiting[host] += backlog[slot]
        hottest = max(hottest, slot_rate[slot])
    bound_ms = max(bound_ms, 2.0 * (gain / capacity).min())
    bound_s = bound_ms / 1000.0
    for host in range(len(capacity)):
        rate, spare = rates[host], capacity[host] - rates[host]
        beyond = waiting[host] - rate * bound_s
        if beyond > max(spare, 0.0) * bound_s:
            excess[host] = beyond
            spare -= beyond / (drain * bound_s)
        projected = gain[host] / spare if spare > 0 else np.inf
        latency = latency_ms[host]
        if np.isnan(latency) and waiting[host] > 0:
            latency = 1000.0 * waiting[host] / rate if rate > 0 else np.inf
        latencies[host] = latency
        projections[host] = projected
        level[host] = (latency > alert_ms) + (projected > bound_ms)
    return figures, level, bound_ms, hottest > capacity.max()
