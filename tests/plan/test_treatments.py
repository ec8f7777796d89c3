"""Treatments of a topology: hosts are added and removed, and only the named slots move."""

from __future__ import annotations

import pytest

from penstock.errors import SettingError
from penstock.plan.placement import Handover
from tests.plan.test_topology import LAZY, STEP, A, B, C, owners, started


def test_a_scale_out_moves_only_its_slots_and_waits_for_the_new_host() -> None:
    topology = started(A, B)
    topology.treat([A, B, C], [((1, 4), C)])
    assert topology.advance(0, [A, B], LAZY) == []
    assert (topology.pending, owners(topology)) == (2, [A, A, A, B, B, B])
    assert topology.advance(1, [A, B, C], LAZY) == [
        Handover(STEP, (1,), A, C, "scale"),
        Handover(STEP, (4,), B, C, "scale"),
    ]
    assert (topology.pending, owners(topology)) == (0, [A, C, A, B, C, B])


def test_a_scale_in_leaves_the_other_hosts_alone() -> None:
    topology = started(A, B, C)
    topology.treat([A, C], [((2, 3), A)])
    topology.advance(0, [A, B, C], LAZY)
    assert owners(topology) == [A, A, A, A, C, C]
    assert topology.retired() == [B]


def test_a_balance() -> None:
    topology = started(A, B)
    topology.treat([A, B], [((0,), B)])
    assert topology.advance(0, [A, B], LAZY) == [Handover(STEP, (0,), A, B, "move")]


def test_treatments_of_one_decision_follow_each_other() -> None:
    topology = started(A, B)
    topology.treat([A, B, C], [((0, 1), C), ((1,), B)])
    topology.advance(0, [A, B, C], LAZY)
    assert owners(topology) == [C, B, A, B, B, B]


def test_no_slot_may_stay_on_a_host_that_leaves() -> None:
    topology = started(A, B)
    with pytest.raises(SettingError, match="slot 4 would stay on a host that leaves"):
        topology.treat([A], [((3,), A)])
    assert (topology.hosts, topology.pending) == ([A, B], 0)


def test_pending_moves_can_be_dropped() -> None:
    topology = started(A, B)
    topology.treat([A, B, C], [((0, 1, 2), C), ((5,), A)])
    topology.advance(0, [A, B], LAZY)
    topology.stay()
    assert (topology.pending, topology.hosts, topology.retired()) == (0, [A, B], [C])
    assert topology.advance(1, [A, B, C], LAZY) == []
    assert owners(topology) == [A, A, A, B, B, A]


def test_a_host_that_died_while_slots_were_on_their_way_keeps_its_home() -> None:
    topology = started(A, B)
    topology.treat([A, B, C], [((0, 1), C)])
    topology.lost(A)
    topology.stay()
    topology.advance(1, [B, C], LAZY)
    assert topology.homeless == 0


def test_a_replaced_host_hands_its_slots_to_others_until_its_replacement_is_ready() -> None:
    topology = started(A, B)
    topology.replace(A, C)
    assert topology.hosts == [C, B]
    assert topology.advance(0, [A, B], LAZY) == [Handover(STEP, (0, 1, 2), None, B, "move")]
    assert (topology.retired(), topology.pending) == ([A], 3)
    topology.forget(A)
    assert topology.advance(1, [B, C], LAZY) == [Handover(STEP, (0, 1, 2), B, C, "move")]
    assert (owners(topology), topology.pending) == ([C, C, C, B, B, B], 0)


def test_a_replaced_host_keeps_its_slots_while_there_is_no_other() -> None:
    topology = started(A)
    topology.replace(A, C)
    assert topology.advance(0, [A], LAZY) == []
    assert (owners(topology), topology.homeless) == ([A] * 6, 0)
    topology.advance(1, [A, C], LAZY)
    assert (owners(topology), topology.retired()) == ([C] * 6, [A])


def test_slots_on_their_way_to_a_replaced_host_go_to_its_replacement() -> None:
    topology = started(A, B)
    topology.move([0], B)
    topology.replace(B, C)
    topology.advance(0, [A, B, C], LAZY)
    assert owners(topology) == [C, A, A, C, C, C]
