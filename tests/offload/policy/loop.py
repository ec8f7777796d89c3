"""Rates over time, looked at second by second, or how often one likes: for tests of burst workers."""

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
"""Of each host, in records a second."""


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
    """What is decided while the hosts' load, without burst workers, is this from one look to the next."""
    return [
        offloader.decide(
            seen(even(load * hosts * CAPACITY, hosts, slots), hosts), BOUNDS, from_ms + n * every_ms
        )
        for n, load in enumerate(loads)
    ]


def host_load(vitals: Vitals, found: Offloading) -> Floats:
    """What hosts have to do while burst workers carry their part."""
    kept = np.bincount(vitals.owner, vitals.rate * found.kept, len(vitals.hosts))
    return np.asarray(kept / CAPACITY)


def switches(found: Sequence[Offloading]) -> int:
    """How often burst workers came into play."""
    carries = [one.carries for one in found]
    return sum(now and not before for before, now in zip([False, *carries], carries, strict=False))
