"""Runs an offloader over a sequence of loads, for tests of burst workers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from penstock.control.examine.vitals import Floats, Vitals
from penstock.control.treat.decision import Bounds
from penstock.control.treat.offloading import Offloading
from penstock.model import SLA, StepId
from penstock.offload.policy.offloader import Offloader

STEP = StepId("sum")
BOUNDS = Bounds(SLA(1000, 1000))
CAPACITY = 1_000.0
"""Capacity of each host, in records per second."""


def seen(slot_rates: Sequence[float] | Floats, hosts: int, now_ms: float = 0.0) -> Vitals:
    return replace(Vitals.even(STEP, slot_rates, hosts, CAPACITY), now_ms=now_ms)


def even(total: float, hosts: int, slots: int = 8) -> Floats:
    return np.full(slots, total / slots)


def follow(
    offloader: Offloader,
    loads: Iterable[float],
    hosts: int = 2,
    every_ms: float = 1_000.0,
    from_ms: float = 0.0,
    slots: int = 8,
) -> list[Offloading]:
    """The decisions for a sequence of loads, one for each observation. Loads are those without burst
    workers."""
    return [
        offloader.decide(
            seen(even(load * hosts * CAPACITY, hosts, slots), hosts), BOUNDS, from_ms + n * every_ms
        )
        for n, load in enumerate(loads)
    ]


def host_load(vitals: Vitals, offloading: Offloading) -> Floats:
    """Load of hosts while burst workers take their part."""
    kept = np.bincount(vitals.owner, vitals.rate * offloading.kept, len(vitals.hosts))
    return np.asarray(kept / CAPACITY)


def switches(decisions: Sequence[Offloading]) -> int:
    """Number of times that burst workers were switched on."""
    carries = [decision.carries for decision in decisions]
    return sum(now and not before for before, now in zip([False, *carries], carries, strict=False))
