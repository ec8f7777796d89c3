"""The number of couriers of a live flow, and the source partitions each one reads. Pure, without a clock.

Couriers report with each checkpoint how busy they were and how many rows they read from each partition. One
such report is a *look*. The looks since the last change of the crew decide whether it changes again:

- *more* couriers, when one was too busy in several looks in a row and its partitions can be split, or when
  the read lag grows although hosts are not busy;
- *other* partitions for the same couriers, when one has much more to do than the rest and partitions can be
  spread better;
- *fewer* couriers, when fewer would have been enough for some time.

A larger crew leaves each courier well above the load at which the crew would shrink, so a steady load
changes it only once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

Partition = tuple[int, str]
"""A source partition: the number of the source and the name of the partition."""
P = TypeVar("P")


@dataclass(frozen=True)
class CrewLimits:
    """Limits and thresholds for scaling couriers."""

    at_most: int
    """Maximum number of couriers. There are never more couriers than partitions."""
    at_least: int = 1
    high: float = 0.7
    """Busy share of a courier's time above which it is too busy."""
    target: float = 0.6
    """Maximum busy share of the busiest courier in a larger crew."""
    low: float = 0.5
    """Maximum busy share of any courier in a smaller crew."""
    looks: int = 3
    """Number of looks in a row that must agree before the crew grows or partitions move."""
    calm_ms: float = 30_000.0
    """Milliseconds for which fewer couriers must have been enough before the crew shrinks."""
    gain: float = 0.25
    """Minimum relative drop of the busiest courier's load that is worth the pause of a change."""
    lag_ms: float = 500.0
    """Minimum growth of the read lag over the looks in a row that counts, in milliseconds."""

    @property
    def saturated(self) -> float:
        """Busy share from which on a courier may have more work than its busy time shows."""
        return (1 + self.high) / 2


@dataclass(frozen=True)
class CourierLook:
    """One courier between two checkpoints."""

    busy: float
    """Share of the time that the courier was busy, as CPU time."""
    rows: Mapping[Partition, int]
    """Rows read from each partition, for all partitions of the courier."""
    lag_ms: float = 0.0
    """Read lag: the age of the newest row when it was read, in milliseconds."""

    @property
    def loads(self) -> dict[Partition, float]:
        """Share of the courier's time that each of its partitions takes.

        >>> CourierLook(0.6, {(0, "a"): 2, (0, "b"): 1}).loads
        {(0, 'a'): 0.4, (0, 'b'): 0.2}
        """
        total = sum(self.rows.values())
        parts = {p: n / total if total else 1 / len(self.rows) for p, n in self.rows.items()}
        return {partition: round(self.busy * part, 6) for partition, part in parts.items()}


@dataclass(frozen=True)
class CrewLook:
    """All couriers of a run, by number, between two checkpoints."""

    time_ms: float
    couriers: tuple[CourierLook, ...]
    hosts_busy: float = 0.0
    """Share of the time that the busiest host was busy."""

    @property
    def loads(self) -> dict[Partition, float]:
        """Load of each partition, as a share of one courier's time."""
        return {p: load for courier in self.couriers for p, load in courier.loads.items()}

    @property
    def busiest(self) -> float:
        """Busy share of the busiest courier."""
        return max((courier.busy for courier in self.couriers), default=0.0)

    @property
    def lag_ms(self) -> float:
        """Read lag of the courier that is furthest behind, in milliseconds."""
        return max((courier.lag_ms for courier in self.couriers), default=0.0)


@dataclass(frozen=True)
class CrewPlan:
    """The number of couriers there should be, and why. `dealt` assigns partitions by these loads."""

    couriers: int
    loads: Mapping[Partition, float]
    reason: str


def dealt(
    partitions: Sequence[P], couriers: int, loads: Mapping[P, float] | None = None
) -> list[list[P]]:
    """Assign partitions to couriers: highest load first, each to the courier with the least load so far.

    Without loads, partitions are assigned in turn.

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
    """The change to make after these looks, the ones since the last change; None for no change.

    >>> busy = [CrewLook(n * 1e3, (CourierLook(0.9, {(0, "a"): 1, (0, "b"): 1}),)) for n in range(3)]
    >>> plan = planned(busy, CrewLimits(at_most=4))
    >>> plan.couriers, plan.reason
    (2, 'courier 0 was busy for 90 % of its time')
    """
    if len(looks) < limits.looks or not looks[-1].loads:
        return None
    return _larger(looks[-limits.looks :], limits) or _smaller(looks, limits)


def _larger(recent: Sequence[CrewLook], limits: CrewLimits) -> CrewPlan | None:
    """More couriers, or other partitions for the present ones."""
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
        reason = f"the read lag grew by {by:.1f} s while hosts had spare time"
        return CrewPlan(now + 1, loads, reason)
    return None


def _falls_behind(recent: Sequence[CrewLook], limits: CrewLimits) -> bool:
    lags, last = [look.lag_ms for look in recent], recent[-1].couriers
    if len(max(last, key=lambda courier: courier.lag_ms).rows) < 2:
        return False  # it has a single partition, which cannot be split
    grows = all(a < b for a, b in pairwise(lags))
    idle = all(look.hosts_busy < limits.high for look in recent)
    return grows and idle and lags[-1] - lags[0] >= limits.lag_ms


def _smaller(looks: Sequence[CrewLook], limits: CrewLimits) -> CrewPlan | None:
    """Fewer couriers, if they would have been enough at each look of the last `calm_ms`."""
    began_ms, now = looks[-1].time_ms - limits.calm_ms, len(looks[-1].couriers)
    if looks[0].time_ms > began_ms or now <= limits.at_least:
        return None
    calm = [look.loads for look in looks if look.time_ms > began_ms]
    loads = _mean(calm)
    for count in range(limits.at_least, now):
        crew = dealt(sorted(loads), count, loads)
        most = max(sum(each.get(p, 0.0) for p in part) for each in calm for part in crew)
        if most < limits.low:
            calm_s = limits.calm_ms / 1000
            reason = (
                f"in the last {calm_s:.0f} s the busiest would have been busy for "
                f"at most {_percent(most)} of its time"
            )
            return CrewPlan(count, loads, reason)
    return None


def _mean(each: Sequence[Mapping[Partition, float]]) -> dict[Partition, float]:
    return {p: sum(loads.get(p, 0.0) for loads in each) / len(each) for p in each[-1]}


def _busiest(loads: Mapping[Partition, float], couriers: int) -> float:
    return max(sum(loads[p] for p in part) for part in dealt(sorted(loads), couriers, loads))


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
