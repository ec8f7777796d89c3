"""What is known of one step at one moment: the input of every policy."""

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
    """What one host did since it was last asked."""

    completed: int
    """Records taken in: rows, or partial states of them where couriers combine."""
    useful_ms: float
    """Time spent on them: deserialising, processing, serialising; not waiting."""


@dataclass(frozen=True, eq=False)
class Vitals:
    """One step as it was examined. Arrays are over slots, or over hosts in the order of `hosts`.

    >>> import numpy as np
    >>> vitals = Vitals.even(StepId("sum"), rates=[3.0, 1.0, 2.0, 2.0], hosts=2, service_rate=10.0)
    >>> vitals.host_rate.tolist(), vitals.slots_of(1).tolist()
    ([4.0, 4.0], [2, 3])
    """

    step: StepId
    now_ms: float
    hosts: tuple[HostId, ...]
    """All hosts that may be given slots, also those that own none."""
    owner: Ints
    """Per slot: which of the hosts owns it."""
    rate: Floats
    """Per slot: records a second that arrived over the SLA's window."""
    slot_latency_ms: Floats
    """Per slot: average latency of what completed in the window; nan where nothing did."""
    latency_ms: Floats
    """Per host: the same, over the slots that it owned when they completed. By the FIFO estimator."""
    measured_ms: Floats
    """Per host: the same, measured directly; nan where nobody measures."""
    service_rate: Floats
    """Per host: records a second of useful time, smoothed; nan until the host has worked."""
    backlog: Floats
    """Per slot: records that are known to have arrived and have not completed."""
    peak_rate: Floats
    """Per slot: the highest `rate` of late (see `Examiner`); for who must not be hasty."""
    newest_rate: Floats | None = None
    """Per slot: `rate` over the newest few time slots alone: noisy, but the first to tell of a burst.
    None: the same as `rate`."""
    newest_ms: float = 0.0
    """The time that `newest_rate` is of."""
    epoch_cost_ms: float = 0.0
    """What an epoch costs however little it brings; 0 for an engine without epochs."""
    chunk_cost_ms: float = 0.0
    """What a chunk costs however little it brings, in a live flow whose latency follows from that; 0: M/M/1
    predicts it better."""
    valid: bool = True
    missing: str = ""
    """Why nothing should be decided on these, if they are not valid."""

    @property
    def cost_ms(self) -> float:
        """What an epoch, or a chunk, costs however little it brings."""
        return self.epoch_cost_ms or self.chunk_cost_ms

    @property
    def host_rate(self) -> Floats:
        """Per host: records a second that arrive for its slots."""
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
        """Equal hosts with contiguous slots and one latency for all: for examples and tests."""
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
