"""Projected latency: what a host's latency would settle at if its arrivals stayed as they are.

Every projection here has one form: `gain / (capacity - rate)`, where capacity and gain of a host
follow from its service rate. A host whose arrivals reach its capacity cannot keep up: infinite.
The form matters to the strategies: a latency is small where `slack = (capacity - rate) / gain`, its
inverse, is large, and slack is linear in the rate and goes on below zero, so that overloaded hosts
can be compared too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.control.examine.vitals import Floats, Vitals
from penstock.control.treat.decision import Bounds

_NEXT_TO_NOTHING_MS = 1e-6
"""A gain is never zero, so that slack stays finite where an epoch costs nothing."""


class Projection(ABC):
    """How latency follows from arrivals and service rate. Arrays are over hosts."""

    @abstractmethod
    def capacity(self, service_rate: Floats, bounds: Bounds) -> Floats:
        """Arrivals a second at which a host's latency would grow without end."""

    @abstractmethod
    def gain(self, service_rate: Floats, bounds: Bounds, cost_ms: float) -> Floats:
        """The projected latency, times what is left to the capacity: the same for every rate."""

    @abstractmethod
    def bound_ms(self, bounds: Bounds) -> float:
        """What the projected latency must not exceed."""

    def latency_ms(
        self,
        rate: npt.ArrayLike,
        service_rate: npt.ArrayLike,
        bounds: Bounds,
        cost_ms: float = 0.0,
    ) -> Floats:
        """The latency that each host would settle at; inf where it cannot keep up."""
        served = np.asarray(service_rate, dtype=np.float64)
        spare = self.capacity(served, bounds) - np.asarray(rate, dtype=np.float64)
        gain = self.gain(served, bounds, cost_ms)
        keeps_up = spare > 0
        return np.where(keeps_up, gain / np.where(keeps_up, spare, 1.0), np.inf)


@dataclass(frozen=True)
class Mm1(Projection):
    """StreamSwitch's form, for an engine that works on each record as it comes.

    The sojourn time of an M/M/1 queue, of whose service rate the margin is not counted on. It is
    compared with the step's own part of the bound.

    >>> from penstock.model import SLA
    >>> bounds = Bounds(SLA(1000, 1000), margin=0.1)
    >>> Mm1().latency_ms([1799.0, 1800.0], [2000.0, 2000.0], bounds).tolist()
    [1000.0, inf]
    """

    def capacity(self, service_rate: Floats, bounds: Bounds) -> Floats:
        return (1.0 - bounds.margin) * service_rate

    def gain(self, service_rate: Floats, bounds: Bounds, cost_ms: float) -> Floats:
        return np.full(np.shape(service_rate), 1000.0)

    def bound_ms(self, bounds: Bounds) -> float:
        return bounds.latency_ms


@dataclass(frozen=True)
class Epochs(Projection):
    """For an engine of epochs that follow each other without a pause.

    An epoch of length D brings what arrived during the one before: rate * D records, which take
    the host rate * D / capacity, besides the fixed cost. So D settles at cost / (1 - rate /
    capacity). A record waits for half an epoch on average and is done with the next one: 1.5 D.
    The steps of a flow run one after another within an epoch: a step has only its part of the
    time, and the result is compared with the whole bound.

    >>> from penstock.model import SLA
    >>> bounds = Bounds(SLA(1000, 1000), margin=0.0)
    >>> Epochs().latency_ms([0.0, 500.0, 1000.0], [1000.0] * 3, bounds, cost_ms=250).tolist()
    [375.0, 750.0, inf]
    """

    settle: float = 1.5
    """Latency of a record on average, in lengths of an epoch."""

    def capacity(self, service_rate: Floats, bounds: Bounds) -> Floats:
        return (1.0 - bounds.margin) * bounds.time * service_rate

    def gain(self, service_rate: Floats, bounds: Bounds, cost_ms: float) -> Floats:
        cost = max(self.settle * cost_ms, _NEXT_TO_NOTHING_MS)
        return cost * self.capacity(service_rate, bounds)

    def bound_ms(self, bounds: Bounds) -> float:
        return float(bounds.sla.latency_ms)


@dataclass(frozen=True)
class Chunks(Epochs):
    """For a live engine whose chunks follow each other: an epoch of its own for each step.

    A host works on one chunk while the next one gathers. The result is compared with the step's own part of
    the bound.

    >>> from penstock.model import SLA
    >>> bounds = Bounds(SLA(100, 1000), margin=0.0, share=0.5)
    >>> Chunks().latency_ms([0.0, 500.0], [1000.0] * 2, bounds, cost_ms=4).tolist(), Chunks().bound_ms(bounds)
    ([6.0, 12.0], 50.0)
    """

    def capacity(self, service_rate: Floats, bounds: Bounds) -> Floats:
        return (1.0 - bounds.margin) * service_rate

    def bound_ms(self, bounds: Bounds) -> float:
        return bounds.latency_ms


_MM1, _EPOCHS, _CHUNKS = Mm1(), Epochs(), Chunks()


def fitting(vitals: Vitals) -> Projection:
    """The projection for the engine that the vitals come from: by what costs something in it.

    >>> from penstock.model import StepId
    >>> fitting(Vitals.even(StepId("sum"), [1.0], hosts=1, service_rate=9.0))
    Mm1()
    """
    if vitals.epoch_cost_ms > 0:
        return _EPOCHS
    return _CHUNKS if vitals.chunk_cost_ms > 0 else _MM1
