"""The number of couriers: plans for any load, and that a steady load settles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.control.crew_size import (
    CourierLook,
    CrewLimits,
    CrewLook,
    CrewPlan,
    Partition,
    dealt,
    planned,
)

LIMITS = CrewLimits(at_most=6)
Crew = Sequence[Sequence[Partition]]
ROWS = 10_000
"""Number of rows from a partition that takes all of a courier's time."""


def names(count: int) -> list[Partition]:
    return [(n % 2, f"p{n}") for n in range(count)]


def look(
    crew: Crew, loads: Mapping[Partition, float], time_ms: float, lag_ms: float = 0.0
) -> CrewLook:
    """The report of couriers with these loads. None is busy for more than 100 % of its time."""
    couriers = []
    for part in crew:
        wanted = sum(loads[p] for p in part)
        share = min(1.0, 1 / wanted) if wanted else 1.0
        rows = {p: int(ROWS * loads[p] * share) for p in part}
        couriers.append(CourierLook(wanted * share, rows, lag_ms))
    return CrewLook(time_ms, tuple(couriers))


def settle(
    loads: Mapping[Partition, float],
    limits: CrewLimits = LIMITS,
    seconds: int = 100,
    couriers: int = 1,
) -> tuple[list[CrewPlan], Crew]:
    """All plans under a steady load, each carried out at once, and the crew at the end."""
    crew: Crew = dealt(list(loads), couriers)
    looks: list[CrewLook] = []
    plans = []
    for second in range(seconds):
        looks.append(look(crew, loads, 1_000.0 * second))
        if (plan := planned(looks, limits)) is not None:
            plans.append(plan)
            crew, looks = dealt(list(loads), plan.couriers, plan.loads), []
    return plans, crew


def busiest(crew: Crew, loads: Mapping[Partition, float]) -> float:
    return max(sum(loads[p] for p in part) for part in crew)


some_loads = st.integers(1, 12).flatmap(
    lambda n: st.tuples(*[st.floats(0, 0.6) for _ in range(n)]).map(
        lambda drawn: dict(zip(names(len(drawn)), drawn, strict=True))
    )
)


@given(some_loads, st.integers(1, 12))
def test_each_partition_is_assigned_once_and_no_courier_is_idle(
    loads: dict[Partition, float], couriers: int
) -> None:
    couriers = min(couriers, len(loads))
    crew = dealt(list(loads), couriers, loads)
    assert sorted(p for part in crew for p in part) == sorted(loads)
    assert all(crew)
    assert len(crew) == couriers
    assert busiest(crew, loads) <= sum(loads.values()) / couriers + max(loads.values()) + 1e-9


@given(some_loads, st.integers(1, 6))
def test_a_steady_load_settles(loads: dict[Partition, float], couriers: int) -> None:
    """Any crew settles after a few changes, within the limits, and then relieves all couriers it can."""
    couriers = min(couriers, len(loads))
    plans, crew = settle(loads, couriers=couriers)
    assert len(plans) <= 5, [plan.reason for plan in plans]
    assert all(1 <= plan.couriers <= min(LIMITS.at_most, len(loads)) for plan in plans)
    assert settle(loads, couriers=len(crew), seconds=60)[0][1:] == []
    best = min(
        busiest(dealt(list(loads), n, loads), loads) for n in range(1, min(6, len(loads)) + 1)
    )
    assert busiest(crew, loads) <= max(LIMITS.high, best / (1 - LIMITS.gain)) + 0.01


def test_it_grows_within_three_looks_and_shrinks_after_half_a_minute() -> None:
    heavy = dict.fromkeys(names(4), 0.25)
    plans, crew = settle(heavy, seconds=3)
    assert [plan.couriers for plan in plans] == [4]
    assert busiest(crew, heavy) <= LIMITS.target
    light = dict.fromkeys(names(4), 0.1)
    assert settle(light, seconds=30, couriers=2)[0] == []
    plans, crew = settle(light, seconds=32, couriers=2)
    assert [plan.couriers for plan in plans] == [1]
    assert plans[0].reason == (
        "in the last 30 s the busiest would have been busy for at most 40 % of its time"
    )


def test_one_busy_look_in_half_a_minute_keeps_the_crew() -> None:
    loads = dict.fromkeys(names(4), 0.05)
    crew = dealt(list(loads), 2)
    looks = [look(crew, loads, 1_000.0 * n) for n in range(40)]
    assert planned(looks, LIMITS) is not None
    looks[20] = look(crew, dict.fromkeys(names(4), 0.2), 20_000.0)
    assert planned(looks, LIMITS) is None


def test_a_partition_that_alone_is_too_much_changes_nothing() -> None:
    loads = dict(zip(names(3), (0.95, 0.0, 0.0), strict=True))
    assert settle(loads, couriers=1)[0] == []


def test_partitions_are_reassigned_among_the_same_couriers() -> None:
    loads = dict(zip(names(4), (0.3, 0.02, 0.3, 0.02), strict=True))
    plans, crew = settle(loads, seconds=5, couriers=2)
    assert [plan.couriers for plan in plans] == [2]
    assert busiest(crew, loads) == pytest.approx(0.32)
    assert "the others for 4 %" in plans[0].reason


@pytest.mark.parametrize(
    ("hosts_busy", "partitions", "grows"), [(0.2, 2, 1), (0.9, 2, 0), (0.2, 1, 0)]
)
def test_a_growing_read_lag_adds_a_courier(hosts_busy: float, partitions: int, grows: int) -> None:
    """More couriers help if hosts are not busy and the courier has more than one partition."""
    loads = dict.fromkeys(names(partitions), 0.1)
    looks = [
        CrewLook(1_000.0 * n, look([list(loads)], loads, 0, 400.0 * n).couriers, hosts_busy)
        for n in range(3)
    ]
    plan = planned(looks, LIMITS)
    assert (plan is not None) == bool(grows)
    if plan is not None:
        assert (plan.couriers, plan.reason) == (
            2, "the read lag grew by 0.8 s while hosts had spare time",
        )  # fmt: skip


def test_it_stays_within_the_limits() -> None:
    heavy = dict.fromkeys(names(8), 0.4)
    assert len(settle(heavy, CrewLimits(at_most=2))[1]) == 2
    light = dict.fromkeys(names(8), 0.01)
    assert len(settle(light, CrewLimits(at_most=4, at_least=3), couriers=4)[1]) == 3
