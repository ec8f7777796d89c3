"""Computes how many rows go to burst workers, and to how many: equations 1 to 3 of Sponge, and shares of
slots.

Burst workers take the rows that hosts cannot, so that each host is left at a certain load. Their rows come
back as partial states, which cost the host something too: as much as `merge` records per row.
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
"""A host's load is skewed if its heaviest slots, a fraction `_FEW` of all, bring more than `_MOST` of it."""
_HALVINGS = 50
_NEARLY = 1e-9
"""Distance from a whole number that counts as a rounding error."""


def recovery_rate(rate: Floats, backlog: Floats, deadline_ms: float) -> Floats:
    """Equation 1: records per second needed to keep up and to clear the backlog within the deadline.

    >>> recovery_rate(np.array([300.0]), np.array([500.0]), 10_000.0).tolist()
    [350.0]
    """
    return rate + backlog * (1000.0 / deadline_ms)


def workers_needed(rate: float, per_core: float, speed: float, target: float = 0.7) -> int:
    """Equation 3: burst workers needed for `rate` records per second at the target load.

    >>> workers_needed(2_100.0, per_core=1_000.0, speed=1.0), workers_needed(2_100.0, 1_000.0, 0.5)
    (3, 6)
    """
    return math.ceil(max(rate, 0.0) / (target * speed * per_core) - _NEARLY)


@dataclass(frozen=True, eq=False)
class Relief:
    """Shares for burst workers, and the resulting load of hosts and burst workers."""

    shares: Floats
    workers: int
    level: float
    """Load of hosts and burst workers with these shares; above the target if there are too few workers."""


def relieve(
    slot_rate: Floats,
    owner: Ints,
    capacity: Floats,
    relieved: Flags,
    merge: float,
    settings: OffloadSettings,
) -> Relief:
    """Compute shares for the slots of relieved hosts, such that each of these hosts is left at the target
    load.

    If there are too few burst workers for that, hosts and burst workers are left at a higher level, the same
    for both, so that neither waits for the other.

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
        """Records per second that must leave each host to bring it down to the level, as far as possible."""
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
    """Share of each slot, such that the shares of a host's slots make up its amount.

    All slots of a host get the same share. If a few of them bring most of its load, the heaviest slots are
    offloaded first, up to all of their rows.

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
    # Each slot's rank among its host's slots, heaviest first, and the rate of all heavier ones.
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
    """The lowest level that is enough, by bisection; `high` must be enough."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def kept_warm(stable: float, capacity: Floats, merge: float, settings: OffloadSettings) -> int:
    """Burst workers to keep warm: enough for `warm_for` times the stable rate, minus the part that hosts
    take.

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
    """Number of burst workers that each courier may keep busy, such that all have equal work.

    `rows` holds the recent rows of each courier for burst workers. If only `together` couriers run at the
    same time, each may use more than its part, since the others wait for their turn. Each courier gets at
    least one. But if `at_most` is lower than the number of couriers at work, only those with the most rows
    get one; the others would be refused.

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
    """One burst worker for some couriers, such that no more ask at the same time than there are."""
    count = len(rows)
    some = workers if at_work == count else math.floor(count * workers / at_work)
    chosen = np.zeros(count, np.int64)
    chosen[np.argsort(-rows, kind="stable")[:some]] = 1
    return tuple(chosen.tolist())
