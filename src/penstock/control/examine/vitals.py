"""Vitals: the measurements of one step at one moment, and the input of every policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.model import HostId, StepId

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Work:
    """Work of one host since the last report."""

    completed: int
    """Number of records processed: rows, or partial states where couriers combine rows."""
    useful_ms: float
    """Milliseconds spent on deserialising, processing and serialising them, without waiting."""
    cpu: float | None = None
    """CPU load of the host's process, measured; 1 if all its cores were busy. None: not measured."""


@dataclass(frozen=True, eq=False)
class Vitals:
    """Measurements of one step. Arrays are over slots, or over hosts in the order of `hosts`.

    >>> import numpy as np
    >>> vitals = Vitals.even(StepId("sum"), rates=[3.0, 1.0, 2.0, 2.0], hosts=2, service_rate=10.0)
    >>> vitals.host_rate.tolist(), vitals.slots_of(1).tolist()
    ([4.0, 4.0], [2, 3])
    """

    step: StepId
    now_ms: float
    hosts: tuple[HostId, ...]
    """All hosts that can own slots, including those that own none."""
    owner: Ints
    """Index into `hosts` of each slot's owner."""
    rate: Floats
    """Arrivals per slot in records per second, over the SLA's window."""
    slot_latency_ms: Floats
    """Mean latency per slot of records completed in the window; nan if there are none."""
    latency_ms: Floats
    """Mean latency per host, over the slots it owned at completion. Estimated from counts (FIFO)."""
    measured_ms: Floats
    """Mean latency per host, measured directly; nan if it is not measured."""
    service_rate: Floats
    """Service rate per host in records per second of useful time, smoothed; nan before any work."""
    backlog: Floats
    """Records per slot that have arrived and are not completed, as far as it is known."""
    peak_rate: Floats
    """Recent peak of `rate` per slot, for decisions that must not be hasty. See `Examiner`."""
    newest_rate: Floats | None = None
    """Arrivals per slot over the newest few time slots only, in records per second. It is noisy, but
    shows a burst first. None: the same as `rate`."""
    newest_ms: float = 0.0
    """Milliseconds that `newest_rate` covers."""
    epoch_cost_ms: float = 0.0
    """Fixed cost of an epoch in milliseconds; 0 for an engine without epochs."""
    chunk_cost_ms: float = 0.0
    """Fixed cost of a chunk in milliseconds, in a live flow whose latency depends on it. 0: the M/M/1 model
    predicts the latency better."""
    cpu: Floats | None = None
    """CPU load per host, measured; nan where it is not. None: nowhere."""
    valid: bool = True
    """Whether decisions may use these vitals."""
    missing: str = ""
    """Missing measurements, if the vitals are not valid."""

    @property
    def cost_ms(self) -> float:
        """Fixed cost of an epoch, or of a chunk, in milliseconds."""
        return self.epoch_cost_ms or self.chunk_cost_ms

    @property
    def host_rate(self) -> Floats:
        """Arrivals per host in records per second."""
        rates: Floats = np.bincount(self.owner, self.rate, len(self.hosts)).astype(np.float64)
        return rates

    def slots_of(self, host: int) -> Ints:
        """The slots that the host of this index owns."""
        return np.flatnonzero(self.owner == host)

    @staticmethod
    def even(
        step: StepId,
        rates: npt.ArrayLike,
        hosts: int,
        service_rate: float,
        latency_ms: float = 50.0,
        epoch_cost_ms: float = 0.0,
    ) -> Vitals:
        """Vitals of equal hosts with contiguous slots and the same latency, for examples and tests."""
        rate = np.asarray(rates, dtype=np.float64)
        slots = len(rate)
        every = np.full(hosts, latency_ms)
        return Vitals(
            step=step,
            now_ms=0.0,
            hosts=tuple(HostId(f"{step}/{n}") for n in range(hosts)),
            owner=np.arange(slots) * hosts // slots,
            rate=rate,
            slot_latency_ms=np.full(slots, latency_ms),
            latency_ms=every,
            measured_ms=every,
            service_rate=np.full(hosts, service_rate),
            backlog=np.zeros(slots),
            peak_rate=rate,
            epoch_cost_ms=epoch_cost_ms,
        )
