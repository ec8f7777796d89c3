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
from penstock.control.treat.offloading import OffloadSettings

_FEW, _MOST = 0.1, 0.5
"""The load of a host is skewed if this part of its slots, the heaviest, brings more than that part of it."""
_HALVINGS = 50
_NEARLY = 1e-9
"""Distance from a whole number that is taken for an error of arithmetic."""


def recovery_rate(rate: Floats, backlog: Floats, deadline_ms: float) -> Floats:
    """Equation 1: the throughput that works off a backlog within the deadline, beside what arrives.

    >>> recovery_rate(np.array([300.0]), np.array([500.0]), 10_000.0).tolist()
    [350.0]
    """
    return rate + backlog * (1000.0 / deadline_ms)


def workers_needed(rate: float, per_core: float, speed: float, target: float = 0.7) -> int:
    """Equation 3: burst workers that take so many records a second and are busy to the target.

    >>> workers_needed(2_100.0, per_core=1_000.0, speed=1.0), workers_needed(2_100.0, 1_000.0, 0.5)
    (3, 6)
    """
    return math.ceil(max(rate, 0.0) / (target * speed * per_core) - _NEARLY)


@dataclass(frozen=True, eq=False)
class Relief:
    """What burst workers shall take, and the load that this leaves hosts, and them, with."""

    shares: Floats
    workers: int
    level: float
    """More than the target where no more can be done."""


def relieve(
    slot_rate: Floats,
    owner: Ints,
    capacity: Floats,
    relieved: Flags,
    merge: float,
    settings: OffloadSettings,
) -> Relief:
    """Shares for the slots of relieved hosts, such that each of these is left at the target.

    If there are too few burst workers for that, hosts and burst workers are left at a higher level, the
    same for both: so neither waits for the other.

    >>> both, settings = np.array([True, True]), OffloadSettings(at_most=100)
    >>> rates, owner = np.full(4, 700.0), np.array([0, 0, 1, 1])
    >>> relief = relieve(rates, owner, np.full(2, 1000.0), both, 0.0, settings)
    >>> relief.shares.tolist(), relief.workers, relief.level
    ([0.5, 0.5, 0.5, 0.5], 2, 0.7)
    """
    target, at_most = settings.target, settings.at_most
    rate = np.bincount(owner, slot_rate, len(capacity)).astype(np.float64)
    nothing = Relief(np.zeros(len(slot_rate)), 0, target)
    if not relieved.any():
        return nothing
    if merge >= 1 or at_most == 0:
        return replace(nothing, level=max(target, float((rate / capacity)[relieved].max())))
    per_worker = settings.speed * float(capacity[relieved].mean())

    def beyond(level: float) -> Floats:
        """Per host: what must go so that it is left at the level, as far as that can be."""
        amount = np.clip((rate - level * capacity) / (1.0 - merge), 0.0, rate)
        return np.where(relieved, amount, 0.0)

    level = target
    if beyond(level).sum() > at_most * level * per_worker:
        level = _least(
            lambda u: bool(beyond(u).sum() <= at_most * u * per_worker),
            target,
            max(target, float((rate / capacity).max())),
        )
    amount = beyond(level)
    left = (rate - (1.0 - merge) * amount) / capacity
    workers = workers_needed(float(amount.sum()), per_worker, 1.0, level)
    if workers == 0:
        return nothing
    shares = spread(amount, slot_rate, owner, rate)
    return Relief(shares, min(workers, at_most), max(level, float(left[relieved].max())))


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


def kept_warm(stable: float, capacity: Floats, merge: float, settings: OffloadSettings) -> int:
    """Burst workers for some times the stable rate, less what the hosts take of it.

    >>> kept_warm(1_400.0, np.array([1_000.0, 1_000.0]), 0.0, OffloadSettings(warm_for=5.0))
    8
    """
    beyond = settings.warm_for * stable - settings.target * float(capacity.sum())
    if beyond <= 0 or merge >= 1:
        return 0
    per_core = float(capacity.mean())
    wanted = workers_needed(beyond / (1.0 - merge), per_core, settings.speed, settings.target)
    return min(wanted, settings.at_most)


def apportioned(
    workers: int, rows: Floats, together: int | None = None, at_most: int | None = None
) -> tuple[int, ...]:
    """How many of the burst workers each courier may keep busy: so that all have as much to do.

    `rows` tells what each courier had for them of late. Where only so many couriers are at work
    `together`, one has more than its part of all burst workers, since others wait for their turn
    meanwhile. Each gets one at least; but where there are `at_most` fewer than couriers at work, those
    with the most rows get one, and the others must do without, since they would be refused.

    >>> apportioned(10, np.array([300.0, 100.0, 100.0, 0.0]))
    (6, 2, 2, 1)
    >>> apportioned(8, np.ones(3)), apportioned(2, np.ones(3))
    ((3, 3, 2), (1, 1, 1))
    >>> apportioned(8, np.ones(100), together=4)[:3]
    (2, 2, 2)
    >>> apportioned(2, np.array([5.0, 9.0, 1.0, 7.0]), at_most=2)
    (0, 1, 0, 1)
    """
    count = len(rows)
    if not rows.any():
        rows = np.ones(count)
    at_work = min(count, together or count)
    if at_most is not None and at_most < at_work:
        return _scarce(rows, at_work, at_most)
    exact = workers * rows / rows.sum() * (count / at_work)
    parts = np.floor(exact + _NEARLY)
    if at_work == count:
        left = workers - int(parts.sum())
        parts[np.argsort(parts - exact, kind="stable")[: max(left, 0)]] += 1
    return tuple(np.clip(parts, 1, workers).astype(int).tolist())


def _scarce(rows: Floats, at_work: int, workers: int) -> tuple[int, ...]:
    """One for some couriers, such that no more ask at a time than there are burst workers."""
    count = len(rows)
    some = workers if at_work == count else math.floor(count * workers / at_work)
    chosen = np.zeros(count, np.int64)
    chosen[np.argsort(-rows, kind="stable")[:some]] = 1
    return tuple(chosen.tolist())
