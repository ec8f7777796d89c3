"""How many couriers a live flow has, and which source partitions each reads: pure, without a clock.

Couriers tell with each checkpoint how busy they were and how many rows each partition gave. From what they
told since the crew last changed follows whether it should change again:

- *more*, when a courier was too busy in several looks in a row and its partitions can be split, or when
  rows are read later and later although hosts have time;
- *others*, when one courier has much more to do than the rest and partitions can be dealt better;
- *fewer*, when all partitions would have fitted on fewer couriers for a good while.

What makes a crew larger leaves each courier well above the load at which it would be made smaller, so a
steady load changes it once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

Partition = tuple[int, str]
"""Number of the source, name of the partition."""
P = TypeVar("P")


@dataclass(frozen=True)
class CrewLimits:
    """When and how far couriers scale."""

    at_most: int
    """Couriers at a time; there are never more than partitions."""
    at_least: int = 1
    high: float = 0.7
    """Share of its time above which a courier is too busy."""
    target: float = 0.6
    """Share of its time that the busiest courier of a new crew should have to do at most."""
    low: float = 0.5
    """Share of its time below which each courier of a smaller crew must stay."""
    looks: int = 3
    """Looks in a row that must agree before the crew grows or partitions move."""
    calm_ms: float = 30_000.0
    """Time for which fewer couriers must have been enough before the crew shrinks, in milliseconds."""
    gain: float = 0.25
    """Share by which the busiest courier's load must fall, or a change is not worth its pause."""
    lag_ms: float = 500.0
    """Milliseconds by which rows must be read later, over the looks in a row, for that to count."""

    @property
    def saturated(self) -> float:
        """Share of its time from which on a courier has more to do than its time shows."""
        return (1 + self.high) / 2


@dataclass(frozen=True)
class CourierLook:
    """One courier in the time between two checkpoints."""

    busy: float
    """Share of the time that it worked, as time on a core."""
    rows: Mapping[Partition, int]
    """Rows that each partition gave; all partitions that it reads are there."""
    lag_ms: float = 0.0
    """Age of the newest row when it was read, in milliseconds."""

    @property
    def loads(self) -> dict[Partition, float]:
        """The share of the courier's time that each of its partitions takes.

        >>> CourierLook(0.6, {(0, "a"): 2, (0, "b"): 1}).loads
        {(0, 'a'): 0.4, (0, 'b'): 0.2}
        """
        total = sum(self.rows.values())
        parts = {p: n / total if total else 1 / len(self.rows) for p, n in self.rows.items()}
        return {partition: round(self.busy * part, 6) for partition, part in parts.items()}


@dataclass(frozen=True)
class CrewLook:
    """All couriers of a run, by number, in the time between two checkpoints."""

    time_ms: float
    couriers: tuple[CourierLook, ...]
    hosts_busy: float = 0.0
    """Share of the time that the busiest host worked."""

    @property
    def loads(self) -> dict[Partition, float]:
        """What each partition costs, as a share of one courier's time."""
        return {p: load for courier in self.couriers for p, load in courier.loads.items()}

    @property
    def busiest(self) -> float:
        return max((courier.busy for courier in self.couriers), default=0.0)

    @property
    def lag_ms(self) -> float:
        return max((courier.lag_ms for courier in self.couriers), default=0.0)


@dataclass(frozen=True)
class CrewPlan:
    """How many couriers there should be, and why. Each reads what `dealt` gives it by these loads."""

    couriers: int
    loads: Mapping[Partition, float]
    reason: str


def dealt(
    partitions: Sequence[P], couriers: int, loads: Mapping[P, float] | None = None
) -> list[list[P]]:
    """Partitions handed out to couriers: the one with the most load first, each to the courier that has the
    least by then. Without loads, one after the other.

    >>> dealt(["a", "b", "c"], couriers=2)
    [['a', 'c'], ['b']]
    >>> dealt(["a", "b", "c"], couriers=2, loads={"a": 0.2, "b": 0.2, "c": 0.5})
    [['c'], ['a', 'b']]
    """
    known = loads or {}
    parts: list[list[P]] = [[] for _ in range(couriers)]
    sums = [0.0] * couriers
    for partition in sorted(partitions, key=lambda p: -known.get(p, 0.0)):
        least = min(range(couriers), key=lambda n: (sums[n], len(parts[n])))
        parts[least].append(partition)
        sums[least] += known.get(partition, 0.0)
    return parts


def planned(looks: Sequence[CrewLook], limits: CrewLimits) -> CrewPlan | None:
    """What should change, given the looks since the crew last changed; None: nothing.

    >>> busy = [CrewLook(n * 1e3, (CourierLook(0.9, {(0, "a"): 1, (0, "b"): 1}),)) for n in range(3)]
    >>> plan = planned(busy, CrewLimits(at_most=4))
    >>> plan.couriers, plan.reason
    (2, 'courier 0 was busy for 90 % of its time')
    """
    if len(looks) < limits.looks or not looks[-1].loads:
        return None
    return _larger(looks[-limits.looks :], limits) or _smaller(looks, limits)


def _larger(recent: Sequence[CrewLook], limits: CrewLimits) -> CrewPlan | None:
    """More couriers, or other partitions for those that there are."""
    loads, now = _mean([look.loads for look in recent]), len(recent[-1].couriers)
    most = max(now, min(limits.at_most, len(loads)))
    mean = [sum(look.couriers[n].busy for look in recent) / len(recent) for n in range(now)]
    number = mean.index(max(mean))
    busy = min(look.couriers[number].busy for look in recent)
    if busy > limits.high:
        reason = f"courier {number} was busy for {_percent(mean[number])} of its time"
        more = 1 / limits.high if busy >= limits.saturated else 1.0
        loads = {partition: load * more for partition, load in loads.items()}
        before = mean[number] * more
        enough = [n for n in range(now, most + 1) if _busiest(loads, n) <= limits.target]
        best = min(range(now, most + 1), key=lambda n: (round(_busiest(loads, n), 3), n))
        count = enough[0] if enough else best
        if _busiest(loads, count) <= (1 - limits.gain) * before:
            return CrewPlan(count, loads, reason)
    elif busy > limits.low and _busiest(loads, now) <= (1 - limits.gain) * mean[number]:
        others = (sum(mean) - mean[number]) / max(1, now - 1)
        reason = (
            f"courier {number} was busy for {_percent(mean[number])} of its time, "
            f"the others for {_percent(others)}"
        )
        return CrewPlan(now, loads, reason)
    if now < most and _falls_behind(recent, limits):
        by = (recent[-1].lag_ms - recent[0].lag_ms) / 1000
        reason = f"rows were read {by:.1f} s later and later while hosts had time"
        return CrewPlan(now + 1, loads, reason)
    return None


def _falls_behind(recent: Sequence[CrewLook], limits: CrewLimits) -> bool:
    lags, last = [look.lag_ms for look in recent], recent[-1].couriers
    if len(max(last, key=lambda courier: courier.lag_ms).rows) < 2:
        return False  # another courier would have nothing to take from it
    grows = all(a < b for a, b in pairwise(lags))
    idle = all(look.hosts_busy < limits.high for look in recent)
    return grows and idle and lags[-1] - lags[0] >= limits.lag_ms


def _smaller(looks: Sequence[CrewLook], limits: CrewLimits) -> CrewPlan | None:
    """Fewer couriers, if they would have been enough at each look of a good while."""
    began_ms, now = looks[-1].time_ms - limits.calm_ms, len(looks[-1].couriers)
    if looks[0].time_ms > began_ms or now <= limits.at_least:
        return None
    calm = [look.loads for look in looks if look.time_ms > began_ms]
    loads = _mean(calm)
    for count in range(limits.at_least, now):
        crew = dealt(sorted(loads), count, loads)
        most = max(sum(each.get(p, 0.0) for p in part) for each in calm for part in crew)
        if most < limits.low:
            while_s = limits.calm_ms / 1000
            reason = f"for {while_s:.0f} s no courier of so few would have been busier than {_percent(most)}"
            return CrewPlan(count, loads, reason)
    return None


def _mean(each: Sequence[Mapping[Partition, float]]) -> dict[Partition, float]:
    return {p: sum(loads.get(p, 0.0) for loads in each) / len(each) for p in each[-1]}


def _busiest(loads: Mapping[Partition, float], couriers: int) -> float:
    return max(sum(loads[p] for p in part) for part in dealt(sorted(loads), couriers, loads))


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
