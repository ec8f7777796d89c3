"""Every slot gets an owner at an epoch boundary, even if hosts die or are avoided."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from penstock.driver.fleet import Fleet
from penstock.driver.relocation import Relocation
from penstock.model import HostId
from penstock.plan.migration import Migration
from penstock.settings import Settings
from tests.trials.ledger import SLOTS, SUMS

(STEP,) = SUMS.keyed
A, B = (HostId(f"{STEP.id}/{n}") for n in range(2))


@dataclass
class PretendedFleet:
    """Hosts that are up or not, as the test sets it."""

    up: set[HostId] = field(default_factory=set)
    avoids: set[str] = field(default_factory=set)
    gone: list[HostId] = field(default_factory=list)
    dies: list[HostId] = field(default_factory=list)
    """Hosts that die right after a check which hosts are up."""
    owned: dict[HostId, tuple[int, ...]] = field(default_factory=dict)
    going: set[HostId] = field(default_factory=set)
    """Hosts whose executors are being decommissioned."""
    started: set[HostId] = field(default_factory=lambda: {A, B})

    def ready(self, hosts: Iterable[HostId]) -> list[HostId]:
        up = [host for host in hosts if host in self.up]
        self.up -= set(self.dies)
        return up

    def lost(self) -> list[HostId]:
        gone, self.gone = self.gone, []
        return gone

    def wait_for(self, hosts: Sequence[HostId], enough: int) -> None:
        assert len([host for host in hosts if host in self.up]) >= enough, "it would wait forever"

    def avoided(self, epoch: int) -> set[str]:
        return self.avoids

    def assign(self, orders: dict[HostId, Any], sources: object, wait: bool) -> None:
        self.owned |= {host: order.owned for host, order in orders.items()}

    def was_told(self, host: HostId, order: Any) -> bool:
        return self.owned.get(host) == order.owned

    def add(self, host: HostId, step: object) -> None:
        self.started.add(host)

    def revive(self, hosts: object) -> None: ...

    def leaving(self, hosts: Iterable[HostId]) -> list[HostId]:
        return [host for host in hosts if host in self.going]

    def knows(self, host: HostId) -> bool:
        return host in self.started

    def remove(self, host: HostId) -> None:
        self.started.discard(host)
        self.up.discard(host)


def relocation(fleet: PretendedFleet) -> Relocation:
    hosts = {STEP.id: 2}
    made = Relocation([STEP], hosts, cast("Fleet", fleet), Settings(), Migration.parse("lazy"))
    made.begin(None)
    return made


def test_an_avoided_host_that_had_to_take_all_slots_does_not_hold_the_flow() -> None:
    fleet = PretendedFleet({A, B})
    moving = relocation(fleet)
    moving.settle(-1, 0, 0)
    fleet.gone, fleet.up, fleet.avoids = [B], {A}, {A}
    moving.settle(0, 1, 0)
    assert fleet.owned[A] == tuple(range(SLOTS))
    fleet.up = {A, B}
    moving.settle(1, 2, 0)
    assert sorted((*fleet.owned[A], *fleet.owned[B])) == list(range(SLOTS))


def test_an_owner_that_dies_at_the_boundary_loses_its_slots_there() -> None:
    fleet = PretendedFleet({A, B})
    moving = relocation(fleet)
    moving.settle(-1, 0, 0)
    fleet.dies = [B]
    moving.settle(0, 1, 0)
    assert fleet.owned[A] == tuple(range(SLOTS))
    assert [one.host for one in moving.take_lost()] == [B]


def test_a_host_whose_executor_is_decommissioned_is_replaced_before_it_is_gone() -> None:
    fleet = PretendedFleet({A, B})
    moving = relocation(fleet)
    moving.settle(-1, 0, 0)
    fleet.going, slots = {A}, list(fleet.owned[A])
    moving.settle(0, 1, 0)
    (left,) = moving.take_leaving()
    next_one = HostId(f"{STEP.id}/2")
    assert left == (A, STEP.id, slots, next_one)
    assert fleet.owned[B] == tuple(range(SLOTS))
    assert fleet.started == {B, next_one}, "the host that leaves has ended"
    fleet.up.add(next_one)
    moving.settle(1, 2, 0)
    assert list(fleet.owned[next_one]) == slots
    assert (moving.take_lost(), moving.take_leaving()) == ([], [])
