"""Invariants of a topology under any sequence of requests and host deaths."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock import codec
from penstock.model import HostId, StepId
from penstock.plan.epoch import RouteTable
from penstock.plan.migration import Migration
from penstock.plan.placement import stored_placements
from penstock.plan.topology import Topology

STEP = StepId("sum")
HOSTS = [HostId(f"sum/{n}") for n in range(6)]
SLOTS = st.integers(6, 24)
CHOSEN = st.lists(st.sampled_from(HOSTS), min_size=1, max_size=6, unique=True)
READY = st.sets(st.sampled_from(HOSTS))
MIGRATION = st.sampled_from(
    ["lazy", "all_at_once", "batched(2)", "batched(5)", "fluid", "pause"]
).map(Migration.parse)


def owners(topology: Topology) -> list[HostId | None]:
    routes = topology.routes
    return [None if n < 0 else routes.hosts[n] for n in routes.owner.tolist()]


def homes(topology: Topology) -> dict[int, HostId]:
    return {slot: placed.home for placed in topology.placements for slot in placed.slots}


def restarted(topology: Topology, hosts: list[HostId]) -> Topology:
    return Topology(
        STEP,
        topology.slots,
        hosts,
        codec.from_plain(codec.to_plain(topology.routes), RouteTable),
        stored_placements(topology.placements_json()),
    )


class Life(RuleBasedStateMachine):
    """A step's life, tracked by a plain list of owners that only handovers and deaths change."""

    @initialize(slots=SLOTS, hosts=CHOSEN)
    def begin(self, slots: int, hosts: list[HostId]) -> None:
        self.topology = Topology(STEP, slots, hosts)
        self.followed: list[HostId | None] = [None] * slots
        self.ready: set[HostId] = set()
        self.version, self.moved = -1, 0

    def advance(self, ready: set[HostId], migration: Migration) -> None:
        topology, self.ready = self.topology, set(ready)
        before, meant = list(self.followed), homes(topology)
        handovers = topology.advance(self.version, ready, migration)
        moving = [slot for handover in handovers for slot in handover.slots]
        assert len(moving) == len(set(moving)), "a slot moves at most once"
        for handover in handovers:
            assert handover.step == STEP
            assert handover.target in ready
            for slot in handover.slots:
                owner = before[slot]
                asked = owner in ready and (migration.whole or owner in topology.hosts)
                assert handover.source == (owner if asked else None)
                assert owner != handover.target
                if owner is None:
                    assert handover.why in ("start", "host lost")
                else:
                    assert handover.target == meant[slot], "an owned slot moves only to its home"
                    assert handover.why != "host lost"
                self.followed[slot] = handover.target
        planned = sum(before[slot] is not None for slot in moving)
        if migration.slots_at_once is not None:
            assert planned <= max(0, migration.slots_at_once - self.moved)
        self.moved += planned
        if ready & set(topology.hosts):
            assert None not in self.followed, "a ready host takes unowned slots"
        assert topology.advance(self.version, ready, migration) == []

    @rule(ready=READY, migration=MIGRATION)
    def the_next_boundary(self, ready: set[HostId], migration: Migration) -> None:
        self.version, self.moved = self.version + 1, 0
        self.advance(ready, migration)

    @rule(ready=READY, migration=MIGRATION)
    def the_epoch_runs_again(self, ready: set[HostId], migration: Migration) -> None:
        self.advance(ready, migration)

    @rule(data=st.data())
    def a_move(self, data: st.DataObject) -> None:
        slots = data.draw(st.sets(st.integers(0, self.topology.slots - 1)))
        self.topology.move(slots, data.draw(st.sampled_from(self.topology.hosts)))

    @rule(hosts=CHOSEN)
    def a_scaling(self, hosts: list[HostId]) -> None:
        self.topology.scale(hosts)
        assert self.topology.hosts == hosts

    @rule(host=st.sampled_from(HOSTS))
    def a_death(self, host: HostId) -> None:
        self.topology.lost(host)
        self.ready.discard(host)
        self.followed = [None if owner == host else owner for owner in self.followed]

    @rule()
    def the_retired_are_ended(self) -> None:
        for host in self.topology.retired():
            self.topology.forget(host)
            self.ready.discard(host)
        assert self.topology.retired() == []

    @precondition(lambda self: None not in self.followed)
    @rule(hosts=CHOSEN, same=st.booleans())
    def a_restart(self, hosts: list[HostId], same: bool) -> None:
        meant, before = homes(self.topology), set(self.topology.hosts)
        hosts = self.topology.hosts if same else hosts
        self.topology = restarted(self.topology, hosts)
        self.followed, self.ready, self.moved = [None] * self.topology.slots, set(), 0
        self.advance(set(hosts), Migration.parse("lazy"))
        assert self.topology.pending == 0
        if set(hosts) <= before:
            gone = before - set(hosts)
            kept = {slot: home for slot, home in meant.items() if home not in gone}
            assert kept.items() <= homes(self.topology).items()

    @invariant()
    def every_slot_has_the_owner_that_handovers_gave_it(self) -> None:
        topology = self.topology
        assert owners(topology) == self.followed
        assert topology.homeless == sum(owner not in self.ready for owner in self.followed)
        assert not set(topology.retired()) & {*self.followed, *topology.hosts}
        routes = topology.routes
        assert set(routes.hosts) == set(self.followed) - {None}
        placed = {s: p.host for p in topology.placements for s in p.slots}
        assert placed == {s: owner for s, owner in enumerate(self.followed) if owner is not None}
        assert stored_placements(topology.placements_json()) == topology.placements

    def teardown(self) -> None:
        """Check that all slots reach their homes once all hosts are ready and there are no more requests."""
        if not hasattr(self, "topology"):
            return
        topology = self.topology
        ready = set(topology.hosts) | {owner for owner in self.followed if owner}
        for _ in range(topology.pending + 1):
            self.version, self.moved = self.version + 1, 0
            self.advance(ready, Migration.parse("fluid"))
        assert (topology.pending, topology.homeless) == (0, 0)
        assert set(self.followed) <= set(topology.hosts)


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=150, stateful_step_count=30, derandomize=True)


@given(SLOTS, CHOSEN, CHOSEN, st.data(), MIGRATION)
@settings(derandomize=True)
def test_scaling_ends_equal_with_the_fewest_moves(
    slots: int, hosts: list[HostId], others: list[HostId], data: Any, migration: Migration
) -> None:
    place = data.draw(st.lists(st.integers(0, len(hosts) - 1), min_size=slots, max_size=slots))
    topology = Topology(STEP, slots, hosts, RouteTable(tuple(hosts), np.array(place, np.int32)))
    topology.advance(0, hosts, migration)
    before = owners(topology)

    topology.scale(others)
    version, moved = 1, []
    while topology.pending:
        moved += topology.advance(version, [*hosts, *others], migration)
        version += 1
    after = owners(topology)

    counts = [after.count(host) for host in others]
    assert max(counts) - min(counts) <= 1
    assert topology.retired() == [host for host in hosts if host not in others]
    share, more = divmod(slots, len(others))
    had = sorted((before.count(host) for host in others), reverse=True)
    kept = sum(min(n, share + (rank < more)) for rank, n in enumerate(had))
    assert sum(len(handover.slots) for handover in moved) == slots - kept
    batch = migration.slots_at_once or slots
    assert version - 1 == -(-(slots - kept) // batch)
    for handover in moved:
        if handover.source in others:
            assert before.count(handover.source) > share, (
                "a staying host hands over only its surplus"
            )
