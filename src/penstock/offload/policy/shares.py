"""How much goes to burst workers, and to how many: equations 1 to 3 of Sponge, and shares of slots.

Burst workers take what hosts cannot, so that each host is left at a level of load. Rows that burst workers
take come back as partial states, which cost the host something too: `merge` records for a row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from penstock.control.diagnose.load import Flags
from penstock.control.examine.vitals import Floats, Ints

_FEW, _MOST = 0.1, 0.5
"""The load of a host is skewed if so few of its slots, the heaviest, bring more than so much of it."""
_HALVINGS = 50
_NEARLY = 1e-9
"""So much above a whole number is taken for an error of arithmetic."""


def recovery_rate(rate: Floats, backlog: Floats, deadline_ms: float) -> Floats:
    """Equation 1: the throughput that works off a backlog within the deadline, beside what arrives.

    >>> recovery_rate(np.array([300.0]), np.array([500.0]), 10_000.0).tolist()
    [350.0]
    """
    return rate + backlog * (1000.0 / deadline_ms)


def rate_per_core(rate: float, load: float) -> float:
    """Equation 2: the throughput of a host that is busy all the time, from means of stable times.

    >>> rate_per_core(600.0, 0.5)
    1200.0
    """
    return rate / load


def functions_needed(rate: float, per_core: float, speed: float, target: float = 0.7) -> int:
    """Equation 3: functions that take so many records a second and are busy to the target.

    >>> functions_needed(2_100.0, per_core=1_000.0, speed=1.0), functions_needed(2_100.0, 1_000.0, 0.5)
    (3, 6)
    """
    return math.ceil(max(rate, 0.0) / (target * speed * per_core) - _NEARLY)


@dataclass(frozen=True, eq=False)
class Relief:
    """What burst workers shall take, and the load that this leaves hosts, and them, with."""

    shares: Floats
    functions: int
    level: float
    """More than the target where no more can be done."""


def relieve(
    slot_rate: Floats,
    owner: Ints,
    capacity: Floats,
    relieved: Flags,
    *,
    merge: float,
    target: float,
    speed: float,
    at_most: int,
) -> Relief:
    """Shares for the slots of relieved hosts, such that each of these is left at the target.

    If there are too few functions for that, hosts and functions are left at a higher level, the
    same for both: so neither waits for the other.

    >>> some = dict(merge=0.0, target=0.7, speed=1.0, at_most=100)
    >>> both = np.array([True, True])
    >>> relief = relieve(np.full(4, 700.0), np.array([0, 0, 1, 1]), np.full(2, 1000.0), both, **some)
    >>> relief.shares.tolist(), relief.functions, relief.level
    ([0.5, 0.5, 0.5, 0.5], 2, 0.7)
    """
    rate = np.bincount(owner, slot_rate, len(capacity)).astype(np.float64)
    nothing = Relief(np.zeros(len(slot_rate)), 0, target)
    if not relieved.any():
        return nothing
    if merge >= 1 or at_most == 0:
        return replace(nothing, level=max(target, float((rate / capacity)[relieved].max())))
    per_function = speed * float(capacity[relieved].mean())

    def beyond(level: float) -> Floats:
        """Per host: what must go so that it is left at the level, as far as that can be."""
        amount = np.clip((rate - level * capacity) / (1.0 - merge), 0.0, rate)
        return np.where(relieved, amount, 0.0)

    level = target
    if beyond(level).sum() > at_most * level * per_function:
        level = _least(
            lambda u: bool(beyond(u).sum() <= at_most * u * per_function),
            target,
            max(target, float((rate / capacity).max())),
        )
    amount = beyond(level)
    left = (rate - (1.0 - merge) * amount) / capacity
    functions = functions_needed(float(amount.sum()), per_function, 1.0, level)
    if functions == 0:
        return nothing
    shares = spread(amount, slot_rate, owner, rate)
    return Relief(shares, min(functions, at_most), max(level, float(left[relieved].max())))


def spread(amount: Floats, slot_rate: Floats, owner: Ints, rate: Floats) -> Floats:
    """Per slot: the share that makes up the amount of its host.

    All slots of a host give alike; where a few of them bring most of its load, the heaviest give
    first, all they have, as a histogram of the keys would say: the others are left alone.

    >>> one = np.zeros(3, np.int64)
    >>> spread(np.array([3.0]), np.array([4.0, 4.0, 4.0]), one, np.array([12.0])).tolist()
    [0.25, 0.25, 0.25]
    >>> spread(np.array([9.0]), np.array([2.0, 8.0, 2.0]), one, np.array([12.0])).tolist()
    [0.5, 1.0, 0.0]
    """
    hosts = len(rate)
    busy = np.bincount(owner, slot_rate > 0, hosts)
    order = np.lexsort((-slot_rate, owner))
    first = np.searchsorted(owner[order], np.arange(hosts))
    # Each slot's rank among those of its host, the heaviest first, and what heavier ones bring.
    rank, before = np.empty(len(order), np.int64), np.empty(len(order))
    rank[order] = np.arange(len(order)) - first[owner[order]]
    heavier = np.concatenate(([0.0], np.cumsum(slot_rate[order])))
    before[order] = heavier[:-1] - heavier[first[owner[order]]]
    few = rank < np.ceil(_FEW * busy)[owner]
    skewed = np.bincount(owner, slot_rate * few, hosts) > _MOST * rate
    evenly = np.divide(amount, rate, out=np.zeros(hosts), where=rate > 0)[owner]
    left = np.clip(amount[owner] - before, 0.0, slot_rate)
    heaviest = np.divide(left, slot_rate, out=np.zeros(len(owner)), where=slot_rate > 0)
    shares: Floats = np.clip(np.where(skewed[owner], heaviest, evenly), 0.0, 1.0)
    return shares


def _least(enough: Callable[[float], bool], low: float, high: float) -> float:
    """The least level that is enough; `high` is."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
