"""The limits that couriers react to, from hosts' capacity, the cost of epochs, and rows per partition."""

from __future__ import annotations

import pytest

from penstock.control.examine.vitals import Vitals
from penstock.control.treat.offloading import OffloadSettings
from penstock.model import StepId
from penstock.offload.policy.reflexes import Reflexes

SETTINGS = OffloadSettings(at_most=10)


def vitals(rates: list[float], hosts: int = 2, cost_ms: float = 200.0) -> Vitals:
    return Vitals.even(StepId("sum"), rates, hosts, service_rate=1_000.0, epoch_cost_ms=cost_ms)


def noted(
    rows: list[int], records: float, combined: bool = False, trigger_ms: float = 0.0
) -> Reflexes:
    made = Reflexes(trigger_ms)
    made.note(rows, records, combined)
    return made


def test_rows_at_the_target_load_cause_no_reaction() -> None:
    made = noted([467, 466], 933.0)
    reflex = made.reflex(vitals([700.0, 700.0]), SETTINGS, 1.0, 0.0)
    assert reflex is not None
    # at a load of 70 % and a cost of 200 ms, an epoch has the rows of 667 ms
    assert reflex.share(933) == 0.0
    assert reflex.room == pytest.approx(933, rel=0.01)
    assert reflex.share(3_000) == pytest.approx(1 - 933 / 3_000, abs=0.01)


def test_the_busiest_host_decides() -> None:
    made = noted([900], 900.0)
    even = made.reflex(vitals([500.0, 500.0]), SETTINGS, 1.0, 0.0)
    uneven = made.reflex(vitals([900.0, 100.0]), SETTINGS, 1.0, 0.0)
    assert even is not None
    assert uneven is not None
    assert uneven.room == pytest.approx(even.room * 0.5 / 0.9)


def test_a_trigger_makes_room_for_all_rows_of_its_interval() -> None:
    made = noted([20_000], 20_000.0, trigger_ms=10_000.0)
    reflex = made.reflex(vitals([1_000.0] * 2), SETTINGS, 1.0, 0.0)
    assert reflex is not None
    assert reflex.room == pytest.approx(0.7 * 10 * 2_000)


def test_limits_are_in_rows_even_if_a_row_is_many_records() -> None:
    reflex = noted([100], 500.0).reflex(vitals([700.0] * 2), SETTINGS, 1.0, 0.0)
    assert reflex is not None
    assert reflex.room == pytest.approx(933 / 5, rel=0.01)


def test_each_partition_has_its_part() -> None:
    made = noted([900, 100, 0, 0], 1_000.0)
    reflex = made.reflex(vitals([700.0, 700.0]), SETTINGS, 1.0, 0.0)
    assert reflex is not None
    rooms = [reflex.of(n, 4).room for n in range(4)]
    assert rooms[0] > 5 * rooms[1] > 5 * rooms[2] == 5 * rooms[3] > 0
    assert sum(rooms) == pytest.approx(reflex.room)


def test_no_reflex_if_couriers_combine_which_is_checked_now_and_then() -> None:
    made = noted([9_000], 40.0, combined=True)
    reflexes = [made.reflex(vitals([700.0, 700.0]), SETTINGS, 1.0, 0.0) for _ in range(100)]
    looks = [reflex for reflex in reflexes if reflex is not None]
    assert len(looks) == 1
    assert looks[0].share(1e12) == 0.0


@pytest.mark.parametrize("merge", [1.0, 2.0])
def test_no_reflex_if_merging_costs_as_much_as_the_rows(merge: float) -> None:
    made = noted([900], 900.0)
    reflex = made.reflex(vitals([700.0, 700.0]), SETTINGS, 1.0, merge)
    assert reflex is not None
    assert reflex.share(1e12) == 0.0
