"""Projected latency: the latency that a host would settle at if its arrivals stayed as they are.

Every projection has the form `gain / (capacity - rate)`, where capacity and gain of a host follow from its
service rate. If arrivals reach the capacity, the host cannot keep up and its projected latency is infinite.
Strategies use the inverse, `slack = (capacity - rate) / gain`. It is linear in the rate and continues below
zero, so that overloaded hosts can be compared too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.control.examine.vitals import Floats, Vitals
from penstock.control.treat.decision import Bounds

_NEXT_TO_NOTHING_MS = 1e-6
"""Minimum cost of an epoch in milliseconds, so that the gain is never 0 and slack stays finite."""


class Projection(ABC):
    """A model of latency as a function of arrivals and service rate. Arrays are over hosts."""

    @abstractmethod
    def capacity(self, service_rate: Floats, bounds: Bounds) -> Floats:
        """Arrivals in records per second at which a host's latency would grow without limit."""

    @abstractmethod
    def gain(self, service_rate: Floats, bounds: Bounds, cost_ms: float) -> Floats:
        """The projected latency times (capacity - rate), which is the same for every rate."""

    @abstractmethod
    def bound_ms(self, bounds: Bounds) -> float:
        """Maximum projected latency in milliseconds that keeps the SLA."""

    def latency_ms(
        self,
        rate: npt.ArrayLike,
        service_rate: npt.ArrayLike,
        bounds: Bounds,
        cost_ms: float = 0.0,
    ) -> Floats:
        """The latency that each host would settle at; inf if it cannot keep up."""
        served = np.asarray(service_rate, dtype=np.float64)
        spare = self.capacity(served, bounds) - np.asarray(rate, dtype=np.float64)
        gain = self.gain(served, bounds, cost_ms)
        keeps_up = spare > 0
        return np.where(keeps_up, gain / np.where(keeps_up, spare, 1.0), np.inf)


@dataclass(frozen=True)
class Mm1(Projection):
    """StreamSwitch's projection, for an engine that processes each record as it comes.

    It is the sojourn time of an M/M/1 queue whose service rate is reduced by the margin. It is compared with
    the step's own part of the bound.

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
    """Projection for an engine whose epochs follow each other without a pause.

    An epoch of length D brings the rate * D records that arrived during the one before. They take the host
    rate * D / capacity, in addition to the fixed cost. So D settles at cost / (1 - rate / capacity). A
    record waits for half an epoch on average and is done with the next one: 1.5 D. The steps of a flow run
    one after another within an epoch, so a step has only its part of the time, and the result is compared
    with the whole bound.

    >>> from penstock.model import SLA
    >>> bounds = Bounds(SLA(1000, 1000), margin=0.0)
    >>> Epochs().latency_ms([0.0, 500.0, 1000.0], [1000.0] * 3, bounds, cost_ms=250).tolist()
    [375.0, 750.0, inf]
    """

    settle: float = 1.5
    """Mean latency of a record, in epoch lengths."""

    def capacity(self, service_rate: Floats, bounds: Bounds) -> Floats:
        return (1.0 - bounds.margin) * bounds.time * service_rate

    def gain(self, service_rate: Floats, bounds: Bounds, cost_ms: float) -> Floats:
        cost = max(self.settle * cost_ms, _NEXT_TO_NOTHING_MS)
        return cost * self.capacity(service_rate, bounds)

    def bound_ms(self, bounds: Bounds) -> float:
        return bounds.whole_ms


@dataclass(frozen=True)
class Chunks(Epochs):
    """Projection for a live engine, where a chunk takes the place of an epoch, in each step by itself.

    A host processes one chunk while the next one fills. The result is compared with the step's own part of
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
    """The projection for the engine of these vitals, chosen by the fixed costs that it has.

    >>> from penstock.model import StepId
    >>> fitting(Vitals.even(StepId("sum"), [1.0], hosts=1, service_rate=9.0))
    Mm1()
    """
    if vitals.epoch_cost_ms > 0:
        return _EPOCHS
    return _CHUNKS if vitals.chunk_cost_ms > 0 else _MM1
