"""The owner of each slot of a step, the host it should be on, and the changes at the next boundary.

Each slot has an owner, the host that processes it now, and a home, the host it should be on. Requests
(`move`, `scale`) change homes. A dead host's slots lose their owner. `advance`, called between two
epochs, moves slots towards their homes. A slot is

    settled     its owner is its home
    pending     its owner is another host; it moves when its home is ready and it is its turn
    unowned     its owner died, or nothing has started yet; it moves to a ready host at once

Slots can be split (`split`, `move_keys`). A split takes effect between two epochs, or two runs of a live
flow. The extra slot has the owner of the slot that it was part of, and is from then on a slot like any other.
It ends (`unite`) when it is with its hash slot again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from penstock.errors import CheckpointError, SettingError
from penstock.model import HostId, StepId
from penstock.plan.epoch import RouteTable
from penstock.plan.migration import Migration
from penstock.plan.placement import Handover, Placement, Why
from penstock.plan.slots import slots_to_text
from penstock.plan.splitting import SplitRequests
from penstock.plan.spread import adopted, balanced
from penstock.state.arrays import Array
from penstock.state.keys.slot_map import Range, SlotMap

_WHY: tuple[Why, ...] = get_args(Why)
_START, _MOVE, _SCALE, _LOST, _BACK = range(len(_WHY))
_NONE = -1
_BY_SLOT = (
    "_moved_at", "_owner", "_reason", "_was_owned", "_placed", "_since", "_why", "_source", "_home",
)  # fmt: skip
"""Names of the arrays with one value for each slot."""


@dataclass(frozen=True)
class SlotsMark:
    """A snapshot of a step's topology, for `Topology.go_back`."""

    routes: RouteTable
    placements: list[dict[str, Any]]
    """Placements of the slots, as a manifest stores them."""
    arrays: tuple[Array, ...]
    """Copies of the topology's arrays, in the order of `Topology._columns`."""


class Topology:
    """The owners and homes of one keyed step's slots. Has no I/O and no clock. Used by one thread.

    It starts from the last manifest (`routes`, `placements`), although the hosts may differ now. Slots of
    hosts that no longer exist go to the hosts with the fewest slots. New hosts get their share, with the
    fewest moves. At the start no host is ready and no slot is owned.

    >>> a, b = HostId("sum/0"), HostId("sum/1")
    >>> topology = Topology(StepId("sum"), 4, [a, b])
    >>> lazy = Migration.parse("lazy")
    >>> [(h.slots, h.target, h.why) for h in topology.advance(-1, [a, b], lazy)]
    [((0, 1), 'sum/0', 'start'), ((2, 3), 'sum/1', 'start')]
    >>> topology.move([0], b)
    >>> topology.pending, topology.advance(0, [a, b], lazy)[0].source
    (1, 'sum/0')
    """

    def __init__(
        self,
        step: StepId,
        slots: int,
        hosts: Sequence[HostId],
        routes: RouteTable | None = None,
        placements: Sequence[Placement] = (),
    ) -> None:
        self.step = step
        self.map = SlotMap(slots, () if routes is None else routes.splits)
        """The step's slots, with the extra ones."""
        self._splits = SplitRequests(step)
        slots = self.map.count
        self._names: list[HostId] = []
        self._numbers: dict[HostId, int] = {}
        self._wanted = self._checked(hosts)
        self._known = set(self._wanted)
        self._ready: set[int] = set()
        self._able: set[int] = set()
        """Hosts that can get slots. Avoided hosts are among them only if there are no others."""
        self._going: set[int] = set()
        """Hosts that were replaced and will be gone soon."""
        self._version: int | None = None
        self._moved = 0
        self._moved_at = np.full(slots, _NONE - 1, dtype=np.int64)
        """Version at which each slot last moved."""
        self._owner = np.full(slots, _NONE, dtype=np.int32)
        self._reason = np.full(slots, _START, dtype=np.int8)
        """Reason for each slot's present home, reported when the slot moves there."""
        self._was_owned = np.zeros(slots, dtype=np.bool_)
        # Each slot's last move: where, when, why and from where.
        self._placed = np.full(slots, _NONE, dtype=np.int32)
        self._since = np.full(slots, _NONE, dtype=np.int64)
        self._why = np.full(slots, _START, dtype=np.int8)
        self._source = np.full(slots, _NONE, dtype=np.int32)
        self._home = self._homes(routes, placements)
        self._placements_json: list[dict[str, Any]] | None = None

    @property
    def slots(self) -> int:
        """Number of slots, with the extra ones."""
        return self.map.count

    @property
    def hosts(self) -> list[HostId]:
        """Hosts that the step should have."""
        return [self._names[n] for n in self._wanted]

    @property
    def routes(self) -> RouteTable:
        """Current owner of each slot, among the hosts that own slots; -1 for an unowned slot."""
        used = np.unique(self._owner[self._owner != _NONE])
        place = np.full(len(self._names) + 1, _NONE, dtype=np.int32)
        place[used] = np.arange(len(used), dtype=np.int32)
        return RouteTable(tuple(self._names[n] for n in used), place[self._owner], self.map.splits)

    def slots_of(self, host: HostId) -> list[int]:
        """Slots that a host owns now."""
        owned: list[int] = np.flatnonzero(self._owner == self._numbers.get(host, -2)).tolist()
        return owned

    @property
    def homeless(self) -> int:
        """Number of slots without a ready owner. If it is above 0, no epoch can run: wait for a host."""
        return self.slots - int(np.isin(self._owner, list(self._ready)).sum())

    @property
    def pending(self) -> int:
        """Number of slots that are not on their home yet, or not split yet."""
        return int(np.count_nonzero(self._owner != self._home)) + len(self._splits.new)

    def move(self, slots: Iterable[int], to: HostId) -> None:
        """Request that these slots move to host `to`, at one of the next boundaries.

        The extra slots of a hash slot move with it, and end.
        """
        chosen, number = self._checked_slots(slots), self._wanted_number(to)
        extra = self._splits.end(self.map, {s for s in chosen.tolist() if s < self.map.hashed})
        self._splits.ending.difference_update(set(chosen.tolist()) - extra)
        homes = self._home.copy()
        homes[chosen] = homes[sorted(extra)] = number
        self._resettle(homes, _MOVE, self._wanted)

    def move_keys(self, hashes: Iterable[int], to: HostId) -> None:
        """Request that the keys with these hashes move to host `to`, without the other keys of their slots.

        They get extra slots of their own, which last until their hash slot is moved as a whole. Keys that
        have an extra slot to themselves already take that one along.
        """
        homes = self._splits.add_keys(self.map, hashes, self._wanted_number(to), self._home)
        self._resettle(homes, _MOVE, self._wanted)

    def split(self, parts: Iterable[Sequence[Range]]) -> None:
        """Request that each part, some hashes of one slot, becomes an extra slot. None of them moves yet."""
        self._splits.add_parts(self.map, parts)

    def unite(self, slots: Iterable[int]) -> None:
        """Request that these hash slots are whole again. Their extra slots move to them, and end."""
        self._splits.end(self.map, set(self._checked_slots(slots).tolist()))
        self._follow_parents()

    def could_split(self) -> bool:
        """Whether a split would take effect, or end, at a boundary now."""
        return bool(self._splits.new or self._splits.endable(self.map, self._owner))

    def _wanted_number(self, host: HostId) -> int:
        number = self._numbers.get(host, _NONE)
        if number not in self._wanted:
            raise SettingError(
                f"step {self.step} has no host {host!r}",
                hint=f"use one of {', '.join(self.hosts)}",
            )
        return number

    def _follow_parents(self) -> None:
        """Have the extra slots that are to end follow their hash slots."""
        homes = self._home.copy()
        for extra in self._splits.ending:
            homes[extra] = homes[self.map.parent(extra)]
        if np.any(homes != self._home):
            self._resettle(homes, _MOVE, self._wanted)

    def _resplit(self) -> None:
        """Split slots as requested, and end splits, at a boundary."""
        splits = self._splits
        if not splits.new and not splits.ending:
            return
        ended = splits.endable(self.map, self._owner)
        splits.ending.difference_update(ended)
        self._change_map(self.map.without(ended))
        for split in splits.take_new():
            for ranges in self.map.by_slot(split.ranges):
                self._change_map(self.map.with_split(ranges, split.lasting))
                if split.home in self._wanted:
                    extra = int(self.map.of(np.array(ranges[0][:1], np.uint64))[0])
                    self._home[extra], self._reason[extra] = split.home, _MOVE
                    if split.home == self._home[self.map.parent(extra)]:
                        splits.ending.add(extra)
        self._follow_parents()

    def _change_map(self, slots: SlotMap) -> None:
        if slots == self.map:
            return
        origins = slots.origins(self.map)
        for name in _BY_SLOT:
            setattr(self, name, getattr(self, name)[origins])
        self.map, self._placements_json = slots, None
        self._splits.ending &= set(range(slots.count))

    def treat(self, hosts: Sequence[HostId], moves: Iterable[tuple[Iterable[int], HostId]]) -> None:
        """Request these hosts and these moves. All other slots stay where they are.

        Moves of earlier requests that have not happened yet are dropped. A host that is not in `hosts`
        leaves, so the same call must move all its slots away.
        """
        wanted = self._checked(hosts)
        homes = self._places()
        for slots, to in moves:
            homes[self._checked_slots(slots)] = self._number(to)
        stranded = np.flatnonzero(~np.isin(homes, wanted))
        if len(stranded):
            raise SettingError(
                f"step {self.step}: slot {stranded[0]} would stay on a host that leaves",
                hint="move all slots away from a host that leaves",
            )
        why = _MOVE if set(wanted) == set(self._wanted) else _SCALE
        self._resettle(homes, why, wanted)

    def stay(self) -> None:
        """Drop all pending moves: slots stay with their owners, and hosts without slots leave."""
        homes = self._places()
        self._resettle(homes, _MOVE, sorted(set(homes.tolist())))

    def scale(self, hosts: Sequence[HostId]) -> None:
        """Request these hosts, with equal numbers of slots and the fewest moves.

        Moves are planned from where slots are now, so pending moves of earlier requests may be dropped.
        Hosts that are not in `hosts` leave: they hand over all their slots, and are then `retired`.
        """
        wanted = self._checked(hosts)
        self._resettle(balanced(self._places(), np.array(wanted)), _SCALE, wanted)

    def replace(self, host: HostId, by: HostId) -> None:
        """Request that host `by` replaces a host that will be gone soon. Until `by` is ready, other hosts
        take the slots, if there are any."""
        (old,), (new,) = self._checked([host]), self._checked([by])
        homes = np.where(self._home == old, new, self._home).astype(self._home.dtype)
        self._resettle(homes, _MOVE, [new if n == old else n for n in self._wanted])
        self._going.add(old)

    def lost(self, host: HostId) -> None:
        """Record that a host died and its memory is gone. Its slots get other owners at the next `advance`.

        Call this too when the host is back as a new incarnation.
        """
        number = self._numbers.get(host, _NONE)
        if number == _NONE:
            return
        owned = self._owner == number
        self._reason[owned & (self._home == number)] = _BACK
        self._owner[owned] = _NONE
        self._placements_json = None

    def advance(
        self,
        version: int,
        ready: Collection[HostId],
        migration: Migration,
        avoided: Collection[str] = (),
        durable: int | None = None,
    ) -> list[Handover]:
        """Move the slots that can move at this epoch boundary, and return the handovers.

        `version` is the version of all state. `ready` are the hosts that can take slots and serve state.
        Unowned slots go at once to their homes or, if these are not ready, to the ready hosts with the
        fewest slots. At most `migration.slots_at_once` pending slots move per version, even if a failed
        epoch leads to several calls. A leaving host serves its state only if slots arrive whole: with
        lazy migration it may be gone by then.

        Hosts in `avoided` get no slots while a wanted host can take them. They keep the slots they own.

        In a live flow, slots move within the epoch after `version`, and `durable` is the newest version
        in the store. State is then always fetched from the host that a slot leaves, since the store does
        not have that host's latest changes. A slot moves again only when the epoch of its last move is
        durable: its new host may still be waiting for entries from the old one.
        """
        if version != self._version:
            self._version, self._moved = version, 0
        if durable is None:
            self._resplit()
        self._ready = {self._numbers[host] for host in ready if host in self._numbers}
        able = self._ready - {n for host, n in self._numbers.items() if host in avoided}
        able -= self._going
        self._able = able if able & set(self._wanted) else self._ready
        target = self._owner.copy()
        self._move_pending(target, migration, durable)
        self._leave_going(target, durable)
        self._house_unowned(target)
        changed = np.flatnonzero(target != self._owner)
        if not len(changed):
            return []
        source = self._sources(changed, lazy=not migration.whole and durable is None)
        why = np.where(
            self._owner[changed] != _NONE,
            self._reason[changed],
            np.where(self._was_owned[changed], _LOST, _START),
        )
        self._record(version, changed, target[changed], source, why)
        return [
            Handover(
                self.step,
                tuple(changed[rows].tolist()),
                None if s == _NONE else self._names[s],
                self._names[t],
                _WHY[w],
            )
            for (s, t, w), rows in _groups(source, target[changed], why)
        ]

    def could_move(self, ready: Collection[HostId]) -> bool:
        """Whether a pending slot could move to its home now, with these hosts ready."""
        able = {self._numbers[host] for host in ready if host in self._numbers}
        return bool(len(self._could_reach(able)))

    def helpers(self, ready: Collection[HostId]) -> dict[HostId, list[HostId]]:
        """Owner of pending slots -> the homes of these slots that are among these hosts."""
        slots = self._could_reach({self._numbers[host] for host in ready if host in self._numbers})
        return {
            self._names[owner]: [self._names[home] for home in np.unique(homes)]
            for owner in np.unique(self._owner[slots])
            for homes in [self._home[slots[self._owner[slots] == owner]]]
        }

    def _could_reach(self, able: set[int]) -> Array:
        """Pending slots whose home is one of these hosts."""
        away = (self._owner != _NONE) & (self._owner != self._home)
        slots: Array = np.flatnonzero(away & np.isin(self._home, list(able)))
        return slots

    def mark(self) -> SlotsMark:
        """Take a snapshot of where slots are, for `go_back`."""
        return SlotsMark(
            self.routes, self.placements_json(), tuple(c.copy() for c in self._columns)
        )

    def go_back(self, mark: SlotsMark) -> None:
        """Put slots back to where they were at a mark. Homes stay as they are, so the slots will move
        again."""
        for column, then in zip(self._columns, mark.arrays, strict=True):
            column[:] = then
        self._version, self._placements_json = None, None

    @property
    def _columns(self) -> tuple[Array, ...]:
        """The arrays that a mark copies: owners and the last moves."""
        return self._owner, self._placed, self._since, self._why, self._source, self._moved_at

    def retired(self) -> list[HostId]:
        """Hosts that left and own no slots. Stop them once the handovers are done, then call `forget`."""
        leaving = sorted(self._known - set(self._wanted))
        return [self._names[n] for n in leaving if not np.any(self._owner == n)]

    def forget(self, host: HostId) -> None:
        """Remove a retired host that has been stopped."""
        if host in self.retired():
            self._known.discard(self._numbers[host])
            self._going.discard(self._numbers[host])

    @property
    def placements(self) -> list[Placement]:
        """Placements of all owned slots, followed by those of hosts without slots."""
        owned = np.flatnonzero(self._owner != _NONE)
        columns = (self._owner, self._since, self._why, self._source, self._home)
        placements = [
            Placement(
                tuple(owned[rows].tolist()),
                self._names[owner],
                since,
                _WHY[why],
                None if source == _NONE else self._names[source],
                self._names[home],
            )
            for (owner, since, why, source, home), rows in _groups(*(c[owned] for c in columns))
        ]
        idle = [n for n in self._wanted if not np.any((self._owner == n) | (self._home == n))]
        names = [self._names[n] for n in idle]
        return placements + [Placement((), name, -1, "start", None, home=name) for name in names]

    def placements_json(self) -> list[dict[str, Any]]:
        """`placements` as JSON values for a manifest. Cached, since every epoch writes them."""
        if self._placements_json is None:
            self._placements_json = [placement.as_stored() for placement in self.placements]
        return list(self._placements_json)

    def _homes(self, routes: RouteTable | None, placements: Sequence[Placement]) -> Array:
        """Home of each slot at the start, derived from the last manifest."""
        if routes is None:
            return RouteTable.even(self.hosts, self.slots).owner
        had = len(routes.owner) - len(routes.splits)
        if had != self.map.hashed:
            raise CheckpointError(
                f"step {self.step} has {self.map.hashed} slots, but {had} in the checkpoint",
                hint=f"use slots={had}: the number of slots is fixed once a checkpoint exists",
            )
        numbers = np.array([*(self._number(host) for host in routes.hosts), _NONE], dtype=np.int32)
        homes = numbers[routes.owner]
        for placement in placements:
            slots = [slot for slot in placement.slots if slot < self.slots]
            homes[slots] = self._number(placement.home)
            self._placed[slots] = self._number(placement.host)
            self._since[slots] = placement.since
            self._why[slots] = _WHY.index(placement.why)
            self._source[slots] = (
                _NONE if placement.source is None else self._number(placement.source)
            )
        before = {host for p in placements for host in (p.host, p.home)} | set(routes.hosts)
        wanted = np.array(self._wanted)
        homes[~np.isin(homes, wanted)] = _NONE
        return adopted(homes, wanted) if before >= set(self.hosts) else balanced(homes, wanted)

    def _places(self) -> Array:
        """Owner of each slot; the home of an unowned one."""
        return np.where(self._owner != _NONE, self._owner, self._home)

    def _resettle(self, homes: Array, why: int, wanted: list[int]) -> None:
        self._wanted = wanted
        self._known.update(wanted)
        self._reason[homes != self._home] = why
        self._home, self._placements_json = homes, None

    def _move_pending(self, target: Array, migration: Migration, durable: int | None) -> None:
        pending = self._could_reach(self._able)
        if durable is not None:
            pending = pending[self._moved_at[pending] < durable]
        if migration.slots_at_once is not None:
            pending = pending[: max(0, migration.slots_at_once - self._moved)]
        self._moved += len(pending)
        target[pending] = self._home[pending]

    def _leave_going(self, target: Array, durable: int | None) -> None:
        """Take all slots from hosts that will be gone soon, if another host can take them."""
        if self._able & set(self._wanted) - self._going:
            leave = np.isin(target, list(self._going))
            if durable is not None:
                leave &= self._moved_at < durable
            target[leave] = _NONE

    def _house_unowned(self, target: Array) -> None:
        """Give unowned slots a host: their home if it is ready, else wanted hosts, else leaving hosts that
        still own slots."""
        home_is_able = (target == _NONE) & np.isin(self._home, list(self._able))
        target[home_is_able] = self._home[home_is_able]
        hosts = [n for n in self._wanted if n in self._able] or [
            n for n in sorted(self._able) if np.any(target == n)
        ]
        if hosts and np.any(target == _NONE):
            target[:] = adopted(target, np.array(hosts))

    def _sources(self, slots: Array, lazy: bool) -> Array:
        """Host to fetch the state of these slots from: their owner, if it is ready and (if lazy) stays."""
        there = self._ready & set(self._wanted) if lazy else self._ready
        owners = self._owner[slots]
        return np.where(np.isin(owners, list(there)), owners, _NONE)

    def _record(self, version: int, slots: Array, target: Array, source: Array, why: Array) -> None:
        self._owner[slots], self._was_owned[slots], self._placements_json = target, True, None
        self._moved_at[slots] = version
        # A slot that starts where it was before the restart has not moved.
        moved = ~((why == _START) & (self._placed[slots] == target))
        slots, target, source, why = slots[moved], target[moved], source[moved], why[moved]
        self._placed[slots], self._source[slots], self._why[slots] = target, source, why
        self._since[slots] = version

    def _checked(self, hosts: Sequence[HostId]) -> list[int]:
        if not 1 <= len(hosts) <= self.slots or len(set(hosts)) != len(hosts):
            raise SettingError(
                f"step {self.step} cannot have the {len(hosts)} hosts {list(hosts)}",
                hint=f"use 1 to {self.slots} different hosts: each owns at least one slot",
            )
        return [self._number(host) for host in hosts]

    def _checked_slots(self, slots: Iterable[int]) -> Array:
        chosen = np.array(sorted(set(slots)), dtype=np.int64)
        wrong = chosen[(chosen < 0) | (chosen >= self.slots)]
        if len(wrong):
            raise SettingError(
                f"step {self.step} has no slot {wrong[0]}",
                hint=f"use slots {slots_to_text(range(self.slots))}",
            )
        return chosen

    def _number(self, host: HostId) -> int:
        if host not in self._numbers:
            self._numbers[host] = len(self._names)
            self._names.append(host)
        return self._numbers[host]


def _groups(*columns: Array) -> list[tuple[tuple[int, ...], Array]]:
    """The distinct rows of these columns, in order of first occurrence, each with its positions."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for position, row in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
        groups.setdefault(row, []).append(position)
    return [(row, np.array(positions)) for row, positions in groups.items()]
