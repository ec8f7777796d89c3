"""Effects of requests and host deaths on the topology of slots."""

from __future__ import annotations

import numpy as np
import pytest

from penstock import codec
from penstock.errors import CheckpointError, SettingError
from penstock.model import HostId, StepId
from penstock.plan.epoch import RouteTable
from penstock.plan.migration import Migration
from penstock.plan.placement import Handover, Placement, stored_placements
from penstock.plan.topology import Topology

STEP = StepId("sum")
A, B, C, D = (HostId(f"sum/{n}") for n in range(4))
LAZY, WHOLE, FLUID = (Migration.parse(text) for text in ("lazy", "all_at_once", "fluid"))


def started(*hosts: HostId, slots: int = 6) -> Topology:
    topology = Topology(STEP, slots, hosts)
    topology.advance(-1, hosts, LAZY)
    return topology


def owners(topology: Topology) -> list[str | None]:
    routes = topology.routes
    return [None if n < 0 else routes.hosts[n] for n in routes.owner.tolist()]


def test_at_a_start_every_slot_moves_to_its_host_from_the_store() -> None:
    topology = Topology(STEP, 4, [A, B])
    assert (topology.homeless, topology.pending) == (4, 4)
    assert topology.advance(-1, [A, B], LAZY) == [
        Handover(STEP, (0, 1), None, A, "start"),
        Handover(STEP, (2, 3), None, B, "start"),
    ]
    assert (topology.homeless, topology.pending) == (0, 0)
    assert topology.advance(-1, [A, B], LAZY) == []


def test_a_start_without_hosts_waits() -> None:
    topology = Topology(STEP, 4, [A, B])
    assert topology.advance(-1, [], LAZY) == []
    assert topology.homeless == 4
    assert owners(topology) == [None] * 4
    assert topology.routes.hosts == ()


def test_a_host_that_starts_late_gets_its_slots_then() -> None:
    topology = Topology(STEP, 4, [A, B])
    topology.advance(-1, [A], LAZY)
    assert owners(topology) == [A] * 4
    assert topology.advance(0, [A, B], LAZY) == [Handover(STEP, (2, 3), A, B, "start")]


def test_a_move() -> None:
    topology = started(A, B)
    topology.move([2, 0], B)
    assert topology.pending == 2
    assert topology.advance(4, [A, B], LAZY) == [Handover(STEP, (0, 2), A, B, "move")]
    assert owners(topology) == [B, A, B, B, B, B]


def test_a_move_waits_for_its_target() -> None:
    topology = started(A, B)
    topology.lost(B)
    topology.advance(3, [A], LAZY)
    topology.move([0], B)
    assert topology.advance(4, [A], LAZY) == []
    assert topology.homeless == 0
    assert set(topology.advance(5, [A, B], LAZY)) == {
        Handover(STEP, (0,), A, B, "move"),
        Handover(STEP, (3, 4, 5), A, B, "host is back"),
    }


def test_scaling_out_takes_the_fewest_slots_and_waits_for_the_new_host() -> None:
    topology = started(A, B)
    topology.scale([A, B, C])
    assert topology.advance(1, [A, B], LAZY) == []
    assert topology.pending == 2
    assert topology.advance(2, [A, B, C], LAZY) == [
        Handover(STEP, (2,), A, C, "scale"),
        Handover(STEP, (5,), B, C, "scale"),
    ]


@pytest.mark.parametrize(("migration", "source"), [(LAZY, None), (WHOLE, B)])
def test_scaling_in_asks_the_leaving_host_only_for_whole_slots(
    migration: Migration, source: HostId | None
) -> None:
    topology = started(A, B)
    topology.scale([A])
    assert topology.retired() == []
    assert topology.advance(1, [A, B], migration) == [Handover(STEP, (3, 4, 5), source, A, "scale")]
    assert topology.retired() == [B]
    topology.forget(B)
    assert topology.retired() == []
    assert topology.hosts == [A]


def test_a_leaving_host_stays_until_its_last_slot_has_moved() -> None:
    topology = started(A, B)
    topology.scale([A])
    for version in range(3):
        assert topology.retired() == []
        topology.forget(B)
        assert len(topology.advance(version, [A, B], FLUID)) == 1
    assert topology.retired() == [B]


def test_a_leaving_host_that_dies_is_retired_too() -> None:
    topology = started(A, B)
    topology.scale([A])
    topology.lost(B)
    assert topology.retired() == [B]
    assert topology.advance(1, [A], FLUID) == [Handover(STEP, (3, 4, 5), None, A, "host lost")]


def test_a_second_scaling_starts_from_where_slots_are() -> None:
    topology = started(A, B)
    topology.scale([A, B, C])
    topology.scale([A, B])
    assert topology.pending == 0
    assert topology.retired() == [C]


def test_a_scaling_keeps_slots_that_have_not_moved_yet() -> None:
    topology = started(A, B, C)
    topology.move(range(6), C)
    topology.scale([A, B, C])
    assert topology.pending == 0
    assert owners(topology) == [A, A, B, B, C, C]


def test_lost_slots_are_spread_and_return() -> None:
    topology = started(A, B, C)
    topology.lost(C)
    assert topology.homeless == 2
    assert topology.advance(7, [A, B], FLUID) == [
        Handover(STEP, (4,), None, A, "host lost"),
        Handover(STEP, (5,), None, B, "host lost"),
    ]
    assert (topology.homeless, topology.pending) == (0, 2)
    assert topology.advance(8, [A, B, C], FLUID) == [Handover(STEP, (4,), A, C, "host is back")]
    assert topology.advance(9, [A, B, C], FLUID) == [Handover(STEP, (5,), B, C, "host is back")]


def test_a_host_that_is_back_at_once_gets_its_slots_from_the_store() -> None:
    topology = started(A, B)
    topology.lost(B)
    assert topology.advance(2, [A, B], LAZY) == [Handover(STEP, (3, 4, 5), None, B, "host lost")]


def test_all_hosts_are_lost() -> None:
    topology = started(A, B)
    topology.lost(A)
    topology.lost(B)
    assert topology.advance(2, [], LAZY) == []
    assert topology.homeless == 6
    topology.advance(2, [B], LAZY)
    assert owners(topology) == [B] * 6
    topology.advance(3, [A, B], LAZY)
    assert owners(topology) == [A] * 3 + [B] * 3


def test_a_leaving_host_helps_while_no_other_is_ready() -> None:
    topology = started(A, B)
    topology.scale([C])
    topology.lost(A)
    assert topology.advance(1, [B], WHOLE) == [Handover(STEP, (0, 1, 2), None, B, "host lost")]
    assert topology.advance(2, [B, C], WHOLE) == [
        Handover(STEP, tuple(range(6)), B, C, "scale"),
    ]
    assert topology.retired() == [A, B]


def test_a_host_that_is_not_ready_is_not_asked() -> None:
    topology = started(A, B)
    topology.move([0], B)
    assert topology.advance(1, [B], LAZY) == [Handover(STEP, (0,), None, B, "move")]
    assert topology.homeless == 2


def test_a_failed_epoch_moves_no_second_batch() -> None:
    topology = started(A, B)
    topology.move([0, 1], B)
    assert len(topology.advance(1, [A, B], FLUID)) == 1
    assert topology.advance(1, [A, B], FLUID) == []
    assert len(topology.advance(2, [A, B], FLUID)) == 1


def test_invalid_requests_are_rejected() -> None:
    topology = started(A, B)
    with pytest.raises(SettingError, match="no host 'sum/2'"):
        topology.move([0], C)
    with pytest.raises(SettingError, match="no slot 6"):
        topology.move([0, 6], B)
    for hosts in ([], [A, A], [HostId(f"sum/{n}") for n in range(7)]):
        with pytest.raises(SettingError, match="cannot have"):
            topology.scale(hosts)
    assert topology.pending == 0
    assert topology.hosts == [A, B]
    topology.scale([A])
    with pytest.raises(SettingError, match="no host"):
        topology.move([0], B)


def restarted(topology: Topology, *hosts: HostId) -> Topology:
    routes = codec.from_plain(codec.to_plain(topology.routes), RouteTable)
    return Topology(
        STEP, topology.slots, hosts, routes, stored_placements(topology.placements_json())
    )


def test_a_restart_keeps_the_homes() -> None:
    topology = started(A, B)
    topology.move(range(6), A)
    topology.advance(3, [A, B], LAZY)
    again = restarted(topology, A, B)
    again.advance(5, [A, B], LAZY)
    assert owners(again) == [A] * 6
    assert again.placements == topology.placements
    assert again.placements[-1] == Placement((), B, -1, "start", None, home=B)


def test_a_restart_moves_slots_home() -> None:
    topology = started(A, B)
    topology.lost(B)
    topology.advance(3, [A], LAZY)
    again = restarted(topology, A, B)
    assert again.advance(3, [A, B], LAZY) == [
        Handover(STEP, (0, 1, 2), None, A, "start"),
        Handover(STEP, (3, 4, 5), None, B, "start"),
    ]
    assert [p.since for p in again.placements] == [-1, 3]


def test_a_restart_with_fewer_hosts_moves_only_orphans() -> None:
    topology = started(A, B, C)
    topology.move([0], B)
    topology.advance(1, [A, B, C], LAZY)
    again = restarted(topology, A, B)
    again.advance(2, [A, B], LAZY)
    assert owners(again) == [B, A, B, B, A, A]


def test_a_restart_with_more_hosts_gives_them_a_share() -> None:
    again = restarted(started(A, B), A, B, C)
    again.advance(2, [A, B, C], LAZY)
    assert owners(again) == [A, A, C, B, B, C]


def test_a_restart_under_other_names() -> None:
    again = restarted(started(A, B), C, D)
    again.advance(2, [C, D], LAZY)
    assert owners(again) == [C, C, C, D, D, D]
    assert again.retired() == []


def test_routes_of_a_checkpoint_without_placements() -> None:
    routes = RouteTable((A, B), np.array([0, 1, 0, 1], dtype=np.int32))
    topology = Topology(STEP, 4, [A, B], routes)
    topology.advance(9, [A, B], LAZY)
    assert owners(topology) == [A, B, A, B]
    assert {p.since for p in topology.placements} == {9}


def test_a_checkpoint_with_another_number_of_slots() -> None:
    with pytest.raises(CheckpointError, match="8 slots, but 6"):
        Topology(STEP, 8, [A, B], started(A, B).routes)


def test_placements_record_how_slots_moved() -> None:
    topology = started(A, B, C)
    topology.move([0], B)
    topology.advance(4, [A, B, C], LAZY)
    topology.lost(C)
    topology.advance(6, [A, B], LAZY)
    assert topology.placements == [
        Placement((0,), B, 4, "move", A, home=B),
        Placement((1,), A, -1, "start", None, home=A),
        Placement((2, 3), B, -1, "start", None, home=B),
        Placement((4, 5), A, 6, "host lost", None, home=C),
    ]
    assert stored_placements(topology.placements_json()) == topology.placements


@pytest.mark.parametrize(
    "change",
    [{"slots": "9-1"}, {"slots": 3}, {"why": "magic"}, {"since": None}, {"home": None}],
)
def test_a_damaged_placement_is_named(change: dict[str, object]) -> None:
    facts = Placement((1,), A, 1, "move", B, home=A).as_stored()
    with pytest.raises(CheckpointError, match="placement"):
        stored_placements([facts | change])


def test_an_avoided_host_keeps_what_it_owns_and_gets_no_more() -> None:
    topology = Topology(STEP, 4, [A, B])
    topology.advance(-1, [A], LAZY, [A])
    assert topology.slots_of(A) == [0, 1, 2, 3]
    topology.move([0], A)
    topology.advance(0, [A, B], LAZY, [A])
    assert topology.homeless == 0
    assert topology.slots_of(B) == [2, 3]
    topology.lost(B)
    topology.advance(1, [A], LAZY, [A])
    assert topology.slots_of(A) == [0, 1, 2, 3]
    topology.lost(A)
    topology.advance(2, [A, B], LAZY, [A])
    assert topology.slots_of(B) == [0, 1, 2, 3]


# -- slots that are split

KEYS = [(1 << 62) + n for n in range(4)]
"""Hashes of four keys of slot 1 of 4."""


def key_hosts(topology: Topology) -> list[HostId]:
    """The hosts of the four keys."""
    routes = topology.routes
    return [routes.hosts[routes.owner[slot]] for slot in routes.slots.of(np.array(KEYS, np.uint64))]


def test_keys_move_without_their_slot() -> None:
    topology = started(A, B, slots=4)
    topology.move_keys(KEYS[:2], B)
    assert topology.pending == 1
    (moved,) = topology.advance(0, [A, B], LAZY)
    assert (moved.slots, moved.source, moved.target) == ((4,), A, B)
    assert key_hosts(topology) == [B, B, A, A]
    topology.move_keys(KEYS[1:3], A)  # one returns to its slot, the other is there
    topology.advance(1, [A, B], LAZY)
    assert key_hosts(topology) == [B, A, A, A]
    again = Topology(STEP, 4, [A, B], topology.routes, topology.placements)
    again.advance(1, [A, B], LAZY)
    assert key_hosts(again) == [B, A, A, A], "a restart keeps exceptions"


def test_a_whole_slot_takes_its_keys_along() -> None:
    topology = started(A, B, slots=4)
    topology.move_keys(KEYS[:1], B)
    topology.advance(0, [A, B], LAZY)
    topology.move([1], B)
    topology.advance(1, [A, B], LAZY)
    assert key_hosts(topology) == [B] * 4
    topology.advance(2, [A, B], LAZY)
    assert topology.map.count == 4


def test_splits_take_effect_between_the_runs_of_a_live_flow() -> None:
    topology = started(A, B, slots=4)
    topology.move_keys(KEYS[:1], B)
    assert topology.could_split()
    assert topology.advance(0, [A, B], LAZY, durable=0) == []
    assert topology.map.count == 4
    topology.advance(1, [A, B], LAZY)
    assert not topology.could_split()
    topology.unite([1])
    (back,) = topology.advance(5, [A, B], LAZY, durable=4)
    assert (back.slots, back.target) == ((4,), A)
    assert topology.could_split()
    topology.advance(6, [A, B], LAZY)
    assert topology.map.count == 4


def test_a_host_with_keys_of_others_leaves() -> None:
    topology = started(A, B, slots=4)
    topology.move_keys(KEYS[:2], B)
    topology.advance(0, [A, B], LAZY)
    topology.scale([A])
    topology.advance(1, [A, B], LAZY)
    assert key_hosts(topology) == [A] * 4
    assert topology.retired() == [B]


def test_a_lost_host_loses_its_keys_only() -> None:
    topology = started(A, B, slots=4)
    topology.move_keys(KEYS[:2], B)
    topology.advance(0, [A, B], LAZY)
    topology.lost(B)
    moved = topology.advance(0, [A], LAZY)
    assert sorted(slot for handover in moved for slot in handover.slots) == [2, 3, 4]
    assert key_hosts(topology) == [A] * 4


def test_parts_of_different_slots_are_refused() -> None:
    topology = started(A, B, slots=4)
    with pytest.raises(SettingError, match="hashes of one slot"):
        topology.split([[(0, 5), (1 << 62, 1 << 62)]])
    with pytest.raises(SettingError, match="has no host"):
        topology.move_keys(KEYS, HostId("sum/9"))
