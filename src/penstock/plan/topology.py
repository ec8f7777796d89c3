"""Which host owns which slots of a step, which one should, and what changes at the next boundary.

Each slot has an owner, which works on it now, and a home, where it should be. Requests (`move`,
`scale`) change homes, the death of a host takes owners away, and `advance`, between two epochs,
brings owners nearer to homes. A slot is

    settled     its owner is its home
    pending     its owner is another host: it moves when its home is ready and its turn has come
    unowned     its owner died, or nothing has started yet: it goes to a ready host at once
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
from penstock.plan.spread import adopted, balanced
from penstock.state.arrays import Array

_WHY: tuple[Why, ...] = get_args(Why)
_START, _MOVE, _SCALE, _LOST, _BACK = range(len(_WHY))
_NONE = -1


@dataclass(frozen=True)
class SlotsMark:
    """Where the slots of a step were at one moment, and how they came there: what can be gone back to."""

    routes: RouteTable
    placements: list[dict[str, Any]]
    """As a manifest keeps them."""
    arrays: tuple[Array, ...]


class Topology:
    """Where the slots of one keyed step live. Pure: no I/O, no clock. Used by one thread.

    Begins with what the last manifest tells (`routes`, `placements`; the hosts may be others now).
    Slots whose host is no more go to those that have least; hosts that were not there before get
    their share, with the fewest moves. In the beginning nothing is ready and no slot is owned.

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
        self.step, self.slots = step, slots
        self._names: list[HostId] = []
        self._numbers: dict[HostId, int] = {}
        self._wanted = self._checked(hosts)
        self._known = set(self._wanted)
        self._ready: set[int] = set()
        self._able: set[int] = set()
        """Hosts that can be given slots: not those that are to be avoided, if there are others."""
        self._going: set[int] = set()
        """Hosts that were replaced: they will be gone soon."""
        self._version: int | None = None
        self._moved = 0
        self._moved_at = np.full(slots, _NONE - 1, dtype=np.int64)
        """The version at which each slot last changed hands."""
        self._owner = np.full(slots, _NONE, dtype=np.int32)
        self._reason = np.full(slots, _START, dtype=np.int8)
        """Why a slot's home is its home: why it moves there, once it does."""
        self._was_owned = np.zeros(slots, dtype=np.bool_)
        # How each slot came to where it is.
        self._placed = np.full(slots, _NONE, dtype=np.int32)
        self._since = np.full(slots, _NONE, dtype=np.int64)
        self._why = np.full(slots, _START, dtype=np.int8)
        self._source = np.full(slots, _NONE, dtype=np.int32)
        self._home = self._homes(routes, placements)
        self._told: list[dict[str, Any]] | None = None

    @property
    def hosts(self) -> list[HostId]:
        """The hosts that the step should have."""
        return [self._names[n] for n in self._wanted]

    @property
    def routes(self) -> RouteTable:
        """The current owner of each slot, with the hosts that own something; -1 for an unowned slot."""
        used = np.unique(self._owner[self._owner != _NONE])
        place = np.full(len(self._names) + 1, _NONE, dtype=np.int32)
        place[used] = np.arange(len(used), dtype=np.int32)
        return RouteTable(tuple(self._names[n] for n in used), place[self._owner])

    def slots_of(self, host: HostId) -> list[int]:
        """The slots that a host owns now."""
        found: list[int] = np.flatnonzero(self._owner == self._numbers.get(host, -2)).tolist()
        return found

    @property
    def homeless(self) -> int:
        """Slots without a ready owner. If there are any, no epoch can run: wait for a host."""
        return self.slots - int(np.isin(self._owner, list(self._ready)).sum())

    @property
    def pending(self) -> int:
        """Slots that are not yet where they should be."""
        return int(np.count_nonzero(self._owner != self._home))

    def move(self, slots: Iterable[int], to: HostId) -> None:
        """Ask that these slots live on `to` from a next boundary on."""
        chosen = self._checked_slots(slots)
        number = self._numbers.get(to, _NONE)
        if number not in self._wanted:
            raise SettingError(
                f"step {self.step} has no host {to!r}",
                hint=f"its hosts are {', '.join(self.hosts)}",
            )
        homes = self._home.copy()
        homes[chosen] = number
        self._resettle(homes, _MOVE, self._wanted)

    def treat(self, hosts: Sequence[HostId], moves: Iterable[tuple[Iterable[int], HostId]]) -> None:
        """Ask for these hosts, and that these slots live there; all others stay where they are.

        What has not moved yet for an earlier request is given up. A host that is not among them
        leaves, so what it has must be moved away with the same call.
        """
        wanted = self._checked(hosts)
        homes = self._places()
        for slots, to in moves:
            homes[self._checked_slots(slots)] = self._number(to)
        stranded = np.flatnonzero(~np.isin(homes, wanted))
        if len(stranded):
            raise SettingError(
                f"step {self.step}: slot {stranded[0]} would be on a host that leaves",
                hint="move all slots of a host that leaves",
            )
        why = _MOVE if set(wanted) == set(self._wanted) else _SCALE
        self._resettle(homes, why, wanted)

    def stay(self) -> None:
        """Give up what is pending: slots that have an owner stay there, hosts that own none leave."""
        homes = self._places()
        self._resettle(homes, _MOVE, sorted(set(homes.tolist())))

    def scale(self, hosts: Sequence[HostId]) -> None:
        """Ask for these hosts: as many slots for each as for any other, with the fewest moves.

        Counted from where slots are now, so what has not moved yet for an earlier request may stay.
        Hosts that are not among them leave: they give away all they have, and are then `retired`.
        """
        wanted = self._checked(hosts)
        self._resettle(balanced(self._places(), np.array(wanted)), _SCALE, wanted)

    def replace(self, host: HostId, by: HostId) -> None:
        """Let another host take the place of one that will be gone soon. Until it is ready others have
        the slots, if there are any."""
        (old,), (new,) = self._checked([host]), self._checked([by])
        homes = np.where(self._home == old, new, self._home).astype(self._home.dtype)
        self._resettle(homes, _MOVE, [new if n == old else n for n in self._wanted])
        self._going.add(old)

    def lost(self, host: HostId) -> None:
        """The host died, and its memory with it. Its slots get other owners at the next `advance`.

        To be called also for a host that is there again, if it is another incarnation.
        """
        number = self._numbers.get(host, _NONE)
        if number == _NONE:
            return
        owned = self._owner == number
        self._reason[owned & (self._home == number)] = _BACK
        self._owner[owned] = _NONE
        self._told = None

    def advance(
        self,
        version: int,
        ready: Collection[HostId],
        migration: Migration,
        avoided: Collection[str] = (),
        durable: int | None = None,
    ) -> list[Handover]:
        """Change at an epoch boundary what can change now, and tell what changes hands.

        `version` is what all state stands at, `ready` the hosts that can be given slots and asked
        for state. Unowned slots go at once to their homes, or where these are not ready to the ready
        hosts that have least. Of the pending ones at most `migration.slots_at_once` move, also when
        a failed epoch brings the same version here again. A leaving host is asked for its state only
        where slots arrive whole: otherwise it need not be there any more.

        Hosts that are `avoided` are given no slots as long as a wanted host can have them; what they own
        they keep.

        In a live flow slots move within the epoch after the version, and `durable` is the newest one
        in the store. A slot is then asked for at the host that it leaves, whatever the migration: no
        store has what that host has done since. It moves again only when the epoch that it moved in is
        durable: the host that it came to may still wait for entries, and must not be cut off.
        """
        if version != self._version:
            self._version, self._moved = version, 0
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
        """Whether a slot could reach its home if these hosts were asked now."""
        able = {self._numbers[host] for host in ready if host in self._numbers}
        return bool(len(self._could_reach(able)))

    def _could_reach(self, able: set[int]) -> Array:
        """Slots that have an owner, and whose home is another host, one of these."""
        away = (self._owner != _NONE) & (self._owner != self._home)
        found: Array = np.flatnonzero(away & np.isin(self._home, list(able)))
        return found

    def mark(self) -> SlotsMark:
        """Where slots are now, to go back to."""
        return SlotsMark(
            self.routes, self.placements_json(), tuple(c.copy() for c in self._columns)
        )

    def go_back(self, mark: SlotsMark) -> None:
        """Slots are again where they were; where they should be stays, so that they move anew."""
        for column, then in zip(self._columns, mark.arrays, strict=True):
            column[:] = then
        self._version, self._told = None, None

    @property
    def _columns(self) -> tuple[Array, ...]:
        """Where slots are, and how they came there."""
        return self._owner, self._placed, self._since, self._why, self._source, self._moved_at

    def retired(self) -> list[HostId]:
        """Hosts that left and own nothing: end them once the handovers are done, then `forget`."""
        leaving = sorted(self._known - set(self._wanted))
        return [self._names[n] for n in leaving if not np.any(self._owner == n)]

    def forget(self, host: HostId) -> None:
        """A retired host has been ended."""
        if host in self.retired():
            self._known.discard(self._numbers[host])
            self._going.discard(self._numbers[host])

    @property
    def placements(self) -> list[Placement]:
        """Where the slots are and how they came there; first those that own something."""
        owned = np.flatnonzero(self._owner != _NONE)
        columns = (self._owner, self._since, self._why, self._source, self._home)
        found = [
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
        return found + [Placement((), name, -1, "start", None, home=name) for name in names]

    def placements_json(self) -> list[dict[str, Any]]:
        """`placements` for a manifest. Cheap while nothing changes: every epoch writes them."""
        if self._told is None:
            self._told = [placement.as_stored() for placement in self.placements]
        return list(self._told)

    def _homes(self, routes: RouteTable | None, placements: Sequence[Placement]) -> Array:
        """Where each slot should be, from what the last manifest tells."""
        if routes is None:
            return RouteTable.even(self.hosts, self.slots).owner
        if len(routes.owner) != self.slots:
            raise CheckpointError(
                f"step {self.step} has {self.slots} slots, but {len(routes.owner)} in the checkpoint",
                hint="a step keeps its number of slots for the life of a checkpoint",
            )
        numbers = np.array([*(self._number(host) for host in routes.hosts), _NONE], dtype=np.int32)
        homes = numbers[routes.owner]
        for known in placements:
            slots = [slot for slot in known.slots if slot < self.slots]
            homes[slots] = self._number(known.home)
            self._placed[slots] = self._number(known.host)
            self._since[slots] = known.since
            self._why[slots] = _WHY.index(known.why)
            self._source[slots] = _NONE if known.source is None else self._number(known.source)
        before = {host for p in placements for host in (p.host, p.home)} | set(routes.hosts)
        wanted = np.array(self._wanted)
        homes[~np.isin(homes, wanted)] = _NONE
        return adopted(homes, wanted) if before >= set(self.hosts) else balanced(homes, wanted)

    def _places(self) -> Array:
        """Where each slot is now; where it should be if nobody owns it."""
        return np.where(self._owner != _NONE, self._owner, self._home)

    def _resettle(self, homes: Array, why: int, wanted: list[int]) -> None:
        self._wanted = wanted
        self._known.update(wanted)
        self._reason[homes != self._home] = why
        self._home, self._told = homes, None

    def _move_pending(self, target: Array, migration: Migration, durable: int | None) -> None:
        pending = self._could_reach(self._able)
        if durable is not None:
            pending = pending[self._moved_at[pending] < durable]
        if migration.slots_at_once is not None:
            pending = pending[: max(0, migration.slots_at_once - self._moved)]
        self._moved += len(pending)
        target[pending] = self._home[pending]

    def _leave_going(self, target: Array, durable: int | None) -> None:
        """Take slots from hosts that will be gone, if there is another one for them; all at once."""
        if self._able & set(self._wanted) - self._going:
            leave = np.isin(target, list(self._going))
            if durable is not None:
                leave &= self._moved_at < durable
            target[leave] = _NONE

    def _house_unowned(self, target: Array) -> None:
        """Homes that are ready first; then wanted hosts; then leaving ones that still own slots."""
        home_is_able = (target == _NONE) & np.isin(self._home, list(self._able))
        target[home_is_able] = self._home[home_is_able]
        hosts = [n for n in self._wanted if n in self._able] or [
            n for n in sorted(self._able) if np.any(target == n)
        ]
        if hosts and np.any(target == _NONE):
            target[:] = adopted(target, np.array(hosts))

    def _sources(self, slots: Array, lazy: bool) -> Array:
        """Whom to ask for the state of these slots: their owner, if it is and will be there."""
        there = self._ready & set(self._wanted) if lazy else self._ready
        owners = self._owner[slots]
        return np.where(np.isin(owners, list(there)), owners, _NONE)

    def _record(self, version: int, slots: Array, target: Array, source: Array, why: Array) -> None:
        self._owner[slots], self._was_owned[slots], self._told = target, True, None
        self._moved_at[slots] = version
        # A slot that starts where it was before the restart has not come from anywhere.
        came = ~((why == _START) & (self._placed[slots] == target))
        slots, target, source, why = slots[came], target[came], source[came], why[came]
        self._placed[slots], self._source[slots], self._why[slots] = target, source, why
        self._since[slots] = version

    def _checked(self, hosts: Sequence[HostId]) -> list[int]:
        if not 1 <= len(hosts) <= self.slots or len(set(hosts)) != len(hosts):
            raise SettingError(
                f"step {self.step} cannot have the {len(hosts)} hosts {list(hosts)}",
                hint=f"give 1 to {self.slots} different hosts: each owns at least one slot",
            )
        return [self._number(host) for host in hosts]

    def _checked_slots(self, slots: Iterable[int]) -> Array:
        chosen = np.array(sorted(set(slots)), dtype=np.int64)
        wrong = chosen[(chosen < 0) | (chosen >= self.slots)]
        if len(wrong):
            raise SettingError(
                f"step {self.step} has no slot {wrong[0]}",
                hint=f"its slots are {slots_to_text(range(self.slots))}",
            )
        return chosen

    def _number(self, host: HostId) -> int:
        if host not in self._numbers:
            self._numbers[host] = len(self._names)
            self._names.append(host)
        return self._numbers[host]


def _groups(*columns: Array) -> list[tuple[tuple[int, ...], Array]]:
    """The different rows of these columns, in order of their first place, each with its places."""
    found: dict[tuple[int, ...], list[int]] = {}
    for place, row in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
        found.setdefault(row, []).append(place)
    return [(row, np.array(places)) for row, places in found.items()]
