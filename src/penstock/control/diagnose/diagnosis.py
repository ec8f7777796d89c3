"""How healthy each host of a step is, by its latency now and by what it would settle at.

    severe      late now (above the alert) and late to be (projected above the bound)
    good        neither
    moderate    one of both: the latency may go down again by itself, or the load may

A step is as healthy as the worst of its hosts.
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
    """The hosts of a step with the figures that they are judged by. Arrays are over hosts."""

    vitals: Vitals
    service_rate: Floats
    capacity: Floats
    gain: Floats
    level: Ints
    """0: good, 1: moderate, 2: severe."""
    alert_ms: float
    bound_ms: float
    """What projected latencies must not exceed."""
    drain_s: float
    """The time in which an excess should be worked off."""
    health: Health
    hot: bool
    """Whether there are slots that bring more than any host can take."""
    slots: Floats
    """Slots that the host owns."""
    rate: Floats
    """Records a second that arrive."""
    waiting: Floats
    """Records that wait."""
    latency_ms: Floats
    """As examined; where nothing completed, by Little's law from backlog and arrivals."""
    projected_ms: Floats
    """What the latency would settle at."""
    excess: Floats
    """Records of the backlog that count as load, since they would not go by themselves."""

    @property
    def late(self) -> Flags:
        """Whether the latency is above the alert."""
        return self.latency_ms > self.alert_ms

    @property
    def floor(self) -> float:
        """The slack that a host needs so as to keep the bound."""
        return 1.0 / self.bound_ms

    @property
    def arrivals(self) -> Load:
        """What the hosts are up against, but for their backlogs."""
        owner, slot_rate = self.vitals.owner, self.vitals.rate
        latency_ms = self.vitals.slot_latency_ms
        return Load(owner, slot_rate, latency_ms, self.rate, self.capacity, self.gain)

    @cached_property
    def load(self) -> Load:
        """What the hosts are up against: arrivals, and backlogs that must be worked off."""
        if not self.excess.any():
            return self.arrivals
        # Each slot of a host counts with its part of the host's backlog.
        drained = self.excess / self.drain_s
        share = drained / np.where(self.waiting > 0, self.waiting, 1.0)
        slot_rate = self.vitals.rate + self.vitals.backlog * share[self.vitals.owner]
        return replace(self.arrivals, slot_rate=slot_rate, rate=self.rate + drained)

    @property
    def hot_slots(self) -> tuple[int, ...]:
        """Slots that bring more than any host can take, as it is counted on."""
        if not self.hot:
            return ()
        return tuple(np.flatnonzero(self.vitals.rate > self.capacity.max()).tolist())

    def told(self) -> tuple[HostHealth, ...]:
        """For the decision."""
        words = map(_HEALTH.__getitem__, self.level.tolist())
        slots = self.slots.astype(np.int64)
        figures = (slots, self.rate, self.service_rate, self.latency_ms, self.projected_ms)
        columns = (figure.tolist() for figure in figures)
        return tuple(map(HostHealth, self.vitals.hosts, words, *columns))


def diagnose(
    vitals: Vitals, bounds: Bounds, projection: Projection, drain: float = 2.0
) -> Diagnosis | None:
    """Judge each host; None if no host's service rate is known.

    A host that just keeps the bound has, by Little's law, rate * bound records waiting. What is more
    than that is in excess. Where a host would not get rid of its excess within the time of one bound
    by its spare rate, it counts as arrivals: so many a second as work it off within `drain` times the
    bound. So a burst that is over still calls for the hosts that its backlog needs.

    Where an idle host would not keep the bound, no number of hosts could: then a host is held to
    twice its idle latency instead, that is to half its capacity, rather than to what is in vain.

    >>> from penstock.control.diagnose.project import Mm1
    >>> from penstock.model import SLA, StepId
    >>> vitals = Vitals.even(StepId("sum"), [700.0, 900.0], 2, service_rate=1000.0, latency_ms=700.0)
    >>> diagnosis = diagnose(vitals, Bounds(SLA(1000, 1000)), Mm1())
    >>> diagnosis.health, [(host.health, host.projected_ms) for host in diagnosis.told()]
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
    """A decision to do nothing as long as no host's service rate is known."""
    why = f"no host of {vitals.step} has worked yet, so it is not known how fast they are"
    return Decision("moderate", (), reasons=(why,))


def observed(vitals: Vitals, bounds: Bounds) -> Decision:
    """A decision to do nothing, with the health of the step and its hosts as switch would see it.

    As long as no host's service rate is known, that is all there is to tell.

    >>> from penstock.model import SLA, StepId
    >>> vitals = Vitals.even(StepId("sum"), [99.0, 1.0], hosts=2, service_rate=100.0, latency_ms=700)
    >>> decision = observed(vitals, Bounds(SLA(1000, 1000)))
    >>> decision.health, [(one.host, one.health) for one in decision.hosts]
    ('severe', [('sum/0', 'severe'), ('sum/1', 'moderate')])
    """
    found = diagnose(vitals, bounds, fitting(vitals))
    if found is None:
        return nothing_known(vitals)
    return Decision(found.health, found.told(), hot_slots=found.hot_slots)


@njit(cache=True, nogil=True)
def _judge(  # type: ignore[no-untyped-def]
    owner, slot_rate, backlog, latency_ms, capacity, gain, alert_ms, bound_ms, drain
):
    """The figures of hosts, one row each in the order of `Diagnosis`, and what follows from them."""
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
