"""Which fault comes when: a pure function of a seed."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from penstock_bench.chaos.kinds import KINDS, DueFault, Kind, Need

_RARE = 150
"""Of so many faults one is the death of a driver in a process of its own, which costs a JVM's start."""


@dataclass(frozen=True)
class ChaosPlan:
    """What a run is like, but for its faults."""

    seed: int
    seconds: float
    """Length of the load."""
    calm_s: float = 5.0
    """Seconds without faults at the beginning, and at the end."""
    every_s: float = 1.2
    """Mean time from one fault to the next."""
    allows: tuple[Need, ...] = ("burst", "process")
    """What kinds may need."""
    burst_s: float = 5.0
    """Length of a burst of rows."""
    burst_every_s: float = 30.0

    def bursting(self, at_s: float) -> bool:
        """Whether rows come in a burst then; each ends the time from one to the next.

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
    chance, found = random.Random(plan.seed), list[DueFault]()
    at_s = plan.calm_s
    while at_s < plan.seconds - plan.calm_s:
        number = len(found)
        rare = "process" in plan.allows and number % _RARE == _RARE // 2
        kind = _drawn(chance, plan.allows, plan.bursting(at_s), rare)
        found.append(DueFault(number, round(at_s, 3), kind.name, chance.getrandbits(32)))
        at_s += plan.every_s * chance.uniform(0.4, 1.6)
    return tuple(found)


def _drawn(chance: random.Random, allows: Collection[Need], burst: bool, rare: bool) -> Kind:
    have = set(allows) - (set() if burst else {"burst"})
    able: Sequence[Kind] = [kind for kind in KINDS.values() if kind.needs <= have]
    if rare:
        return chance.choice([kind for kind in able if not kind.weight])
    return chance.choices(able, [kind.weight for kind in able])[0]
