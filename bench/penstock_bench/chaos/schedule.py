"""The schedule of a run's faults: a pure function of a seed."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from penstock_bench.chaos.kinds import KINDS, DueFault, Kind, Need

_RARE = 150
"""Faults per death of the driver's process, which is rare because it costs the start of a JVM."""


@dataclass(frozen=True)
class ChaosPlan:
    """Parameters of a run, from which its faults follow."""

    seed: int
    seconds: float
    """Length of the load in seconds."""
    calm_s: float = 5.0
    """Seconds without faults at the beginning, and at the end."""
    every_s: float = 1.2
    """Mean seconds from one fault to the next."""
    allows: tuple[Need, ...] = ("burst", "process")
    """Needs of fault kinds that this run meets; other kinds are left out."""
    burst_s: float = 5.0
    """Length of a burst of rows in seconds."""
    burst_every_s: float = 30.0
    """Seconds from the end of one burst to the end of the next."""

    def bursting(self, at_s: float) -> bool:
        """Whether a burst of rows is in progress at a time. Each period ends with its burst.

        >>> plan = ChaosPlan(1, 100)
        >>> [plan.bursting(at_s) for at_s in (0, 24, 25, 29, 30)]
        [False, False, True, True, False]
        """
        return at_s % self.burst_every_s >= self.burst_every_s - self.burst_s


def schedule(plan: ChaosPlan) -> tuple[DueFault, ...]:
    """The faults of a run, in order.

    >>> schedule(ChaosPlan(7, 60)) == schedule(ChaosPlan(7, 60)) != schedule(ChaosPlan(8, 60))
    True
    """
    chance, faults = random.Random(plan.seed), list[DueFault]()
    at_s = plan.calm_s
    while at_s < plan.seconds - plan.calm_s:
        number = len(faults)
        rare = "process" in plan.allows and number % _RARE == _RARE // 2
        kind = _drawn(chance, plan.allows, plan.bursting(at_s), rare)
        faults.append(DueFault(number, round(at_s, 3), kind.name, chance.getrandbits(32)))
        at_s += plan.every_s * chance.uniform(0.4, 1.6)
    return tuple(faults)


def _drawn(chance: random.Random, allows: Collection[Need], burst: bool, rare: bool) -> Kind:
    have = set(allows) - (set() if burst else {"burst"})
    able: Sequence[Kind] = [kind for kind in KINDS.values() if kind.needs <= have]
    if rare:
        return chance.choice([kind for kind in able if not kind.weight])
    return chance.choices(able, [kind.weight for kind in able])[0]
