from __future__ import annotations

import numpy as np
import pytest

from penstock.control.examine.vitals import Work
from penstock.control.treat.decision import Kind, Treatment, new_host
from penstock.errors import ProtocolError
from penstock.model import HostId, StepId
from penstock.sim.fleet import SimFleet
from penstock.sim.plane import Plane


def fleet_of(hosts: int, plane: Plane | None = None, slots: int = 8, seed: int = 1) -> SimFleet:
    random = np.random.default_rng(seed)
    return SimFleet(StepId("sum"), slots, hosts, plane or Plane(), random)


def treatment(kind: Kind, slots: tuple[int, ...], source: str, target: str) -> Treatment:
    return Treatment(kind, slots, HostId(source), HostId(target), "")


def test_a_balance_moves_at_once_and_is_done_after_the_pause() -> None:
    fleet = fleet_of(2, Plane(switch_ms=300, move_slot_ms=10))
    fleet.begin([treatment("balance", (0, 1), "sum/0", "sum/1")], 1000)
    assert not fleet.settle(1000)
    assert fleet.owner.tolist() == [1, 1, 0, 0, 1, 1, 1, 1]
    assert fleet.paused_ms.tolist() == [1320.0, 1320.0]
    assert not fleet.settle(1300)
    assert fleet.settle(1400)
    assert not fleet.treating
    assert not fleet.settle(1500), "it returns True only once"


def test_a_host_that_is_scaled_in_leaves_after_the_pause() -> None:
    fleet = fleet_of(3, Plane(switch_ms=300))
    fleet.worked = np.array([1.0, 2.0, 3.0])
    fleet.begin([treatment("scale_in", (0, 1, 2), "sum/0", "sum/2")], 0)
    assert not fleet.settle(0)
    assert HostId("sum/0") in fleet.hosts
    assert fleet.settle(300)
    assert fleet.hosts == ("sum/1", "sum/2")
    assert fleet.owner.tolist() == [1, 1, 1, 0, 0, 0, 1, 1]
    assert fleet.worked.tolist() == [2.0, 3.0]


def test_moves_to_present_hosts_do_not_wait_for_new_ones() -> None:
    fleet = fleet_of(2, Plane(start_host_ms=1000, switch_ms=300))
    begun = fleet.begin(
        [
            treatment("scale_out", (0,), "sum/0", new_host(1)),
            treatment("scale_out", (4,), "sum/1", new_host(2)),
            treatment("balance", (1,), "sum/0", new_host(1)),
            treatment("balance", (5,), "sum/1", "sum/0"),
        ],
        0,
    )
    assert [t.target for t in begun] == ["sum/2", "sum/3", "sum/2", "sum/0"]
    assert fleet.size == 4
    fleet.settle(0)
    assert fleet.owner.tolist() == [0, 0, 0, 0, 1, 0, 1, 1]
    assert not fleet.settle(300)
    assert not fleet.settle(1000)
    assert fleet.owner.tolist() == [2, 2, 0, 0, 3, 0, 1, 1]
    assert fleet.settle(1300)
    assert fleet.size == len(fleet.hosts) == 4


def test_slots_may_change_their_home_twice_in_one_decision() -> None:
    fleet = fleet_of(2, Plane(start_host_ms=500))
    fleet.begin(
        [
            treatment("balance", (0, 1), "sum/0", "sum/1"),
            treatment("scale_out", (0, 4), "sum/1", new_host(1)),
        ],
        0,
    )
    fleet.settle(0)
    fleet.settle(500)
    assert fleet.owner.tolist() == [2, 1, 0, 0, 2, 1, 1, 1]


def test_slots_cannot_be_taken_from_another_owner() -> None:
    with pytest.raises(ProtocolError, match="owner of slot 7 is sum/1"):
        fleet_of(2).begin([treatment("balance", (7,), "sum/0", "sum/1")], 0)


def test_one_thing_at_a_time() -> None:
    fleet = fleet_of(2)
    fleet.begin([treatment("balance", (0,), "sum/0", "sum/1")], 0)
    with pytest.raises(ProtocolError, match="under way"):
        fleet.begin([treatment("balance", (1,), "sum/0", "sum/1")], 0)


def test_work_is_reported_in_whole_records_and_none_is_lost() -> None:
    fleet = fleet_of(2, Plane(service_rate=500.0))
    fleet.worked += [10.75, 3.0]
    assert fleet.work({HostId("sum/1")}) == {"sum/0": Work(10, 20.0)}
    fleet.worked += [0.25, 1.0]
    assert fleet.work() == {"sum/0": Work(1, 2.0), "sum/1": Work(4, 8.0)}


def test_hosts_of_the_other_kind_are_as_frequent_as_wanted() -> None:
    plane = Plane(service_rate=100.0, alpha=1.5, beta=0.3)
    rates = fleet_of(2000, plane, slots=2000).service_rate
    assert set(rates.tolist()) == {100.0, 150.0}
    assert np.mean(rates == 150.0) == pytest.approx(0.3, abs=0.04)


def test_treatments_that_wait_for_hosts_can_be_replaced() -> None:
    fleet = fleet_of(2, Plane(start_host_ms=1000, switch_ms=300))
    fleet.begin([treatment("scale_out", (0,), "sum/0", new_host(1))], 0)
    assert not fleet.settle(0)
    assert fleet.waits
    begun = fleet.begin(
        [
            treatment("scale_out", (0, 1), "sum/0", new_host(1)),
            treatment("scale_out", (4,), "sum/1", new_host(2)),
        ],
        600,
    )
    assert [t.target for t in begun] == ["sum/2", "sum/3"]
    assert (fleet.placement.coming, fleet.size) == (2, 4)
    fleet.settle(1000)
    assert fleet.owner.tolist() == [2, 2, 0, 0, 1, 1, 1, 1], "the first host comes up as planned"
    assert not fleet.waits
    fleet.settle(1600)
    assert fleet.owner.tolist() == [2, 2, 0, 0, 3, 1, 1, 1]
    assert fleet.settle(1900)


def test_treatments_that_moved_slots_cannot_be_replaced() -> None:
    fleet = fleet_of(2, Plane(start_host_ms=1000))
    both = [
        treatment("scale_out", (0,), "sum/0", new_host(1)),
        treatment("balance", (1,), "sum/0", "sum/1"),
    ]
    fleet.begin(both, 0)
    fleet.settle(0)
    assert not fleet.waits
    with pytest.raises(ProtocolError, match="under way"):
        fleet.begin([treatment("balance", (2,), "sum/0", "sum/1")], 400)


def test_getting_a_slot_may_take_longer_than_giving_one() -> None:
    fleet = fleet_of(2, Plane(switch_ms=100, move_slot_ms=10, take_slot_ms=200))
    fleet.begin([treatment("balance", (0, 1), "sum/0", "sum/1")], 0)
    fleet.settle(0)
    assert fleet.paused_ms.tolist() == [120.0, 500.0]
