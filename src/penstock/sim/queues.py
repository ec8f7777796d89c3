"""A simulated engine without epochs: hosts process records as they come, first come, first served."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.sim import kernels
from penstock.sim.fleet import SimFleet
from penstock.sim.ledger import Ledger

Array = npt.NDArray[Any]


class Queues:
    """Waiting records of one step, by slot. Writes completions and latencies to the ledger.

    >>> from penstock.model import StepId
    >>> from penstock.sim.plane import Plane
    >>> ledger = Ledger(np.array([[150], [0]]), delta_ms=100.0)
    >>> fleet = SimFleet(StepId("sum"), 1, 1, Plane(service_rate=1000.0), np.random.default_rng(1))
    >>> queues = Queues(ledger, fleet)
    >>> queues.advance(0, 1), queues.completed.tolist(), queues.arrived.tolist()
    (None, [100.0], [150.0])
    >>> queues.advance(1, 2), queues.completed.tolist()
    (None, [150.0])
    """

    def __init__(self, ledger: Ledger, fleet: SimFleet) -> None:
        slots = ledger.arrived.shape[1]
        self._ledger, self._fleet = ledger, fleet
        self._head = np.zeros(slots, dtype=np.int64)
        self._left, self._before = np.zeros(slots), np.zeros(slots)
        self.arrived, self.completed = np.zeros(slots), np.zeros(slots)
        """Total of records so far, by slot."""

    def advance(self, first: int, last: int) -> None:
        """Simulate the time slots from `first` to before `last`. `first` follows those simulated so far."""
        ledger, fleet = self._ledger, self._fleet
        kernels.advance(
            ledger.arrived, ledger.age_ms, first, last, ledger.delta_ms, ledger.series_ms,
            self._head, self._left, self._before, fleet.owner, fleet.service_rate, fleet.paused_ms,
            ledger.completed, ledger.latency, ledger.carried, fleet.worked, ledger.histogram,
            self.arrived, self.completed,
        )  # fmt: skip
