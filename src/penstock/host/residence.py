"""The slots that a host owns, how much of each has arrived, and where to fetch the rest.

A slot that a host owns is *complete* or *partial*. In a partial slot, a key without an entry in the table
may have one elsewhere. It is fetched from the slot's source: the previous host with its frozen copy. If
there is no source, or the source does not know the key, it is fetched from the store. A slot that has
left stays in the table as such a frozen copy, at the version at which it left, or, in a live run, at the
reroute.

For rollbacks, a host keeps the state of its slots at the newest durable version and at each cut since.

A `Need` is missing state that a host must fetch before it can apply some rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.plan.assignment import Assignment
from penstock.state.arrays import Array
from penstock.state.keys.codec import Keys
from penstock.state.keys.slot_map import SlotMap

_NEVER = -2
"""Version of a slot that has no frozen copy here."""
NOT_CUT = 1 << 62
"""Version later than any other, for a slot that came in an epoch that is not cut yet."""
_STANDING = (
    "owned", "partial", "whole", "wanted", "frozen", "frozen_run", "frozen_complete", "came", "_source",
)  # fmt: skip
"""Names of the attributes that a rollback restores."""


@dataclass(frozen=True)
class FrozenCopy:
    """A previous host whose copy of some slots is frozen at a version."""

    location: str
    version: int
    """Version at which the slots left; in a live run, the number of the reroute."""
    run: int = -1
    """Number of the live run; -1 in micro-batches."""


@dataclass(frozen=True)
class NeedKeys:
    """A need for the entries of these keys, which may exist at a source, or else in the store."""

    parts: tuple[tuple[FrozenCopy | None, Keys], ...]
    """Keys to fetch, grouped by source; None means the store."""
    changes: int
    """`Residence.changes` at the time of the request. An answer is dropped if that has changed."""
    version: int
    """Version to read from the store."""
    arrivals: int = 0
    """`Residence.arrivals` at the time of the request. The answer does not hold for slots that came later."""


@dataclass(frozen=True)
class NeedDue:
    """A need for the due entries of these slots: those with a nonzero column that is at most its limit."""

    parts: tuple[tuple[FrozenCopy | None, Array], ...]
    limits: dict[str, int]
    changes: int
    version: int
    arrivals: int = 0


@dataclass(frozen=True)
class NeedSlots:
    """A need for these slots as a whole. The background thread already fetches them."""

    slots: tuple[int, ...]


@dataclass(frozen=True)
class Wanted:
    """A slot to fetch as a whole, in the background."""

    slot: int
    source: FrozenCopy | None
    changes: int
    version: int
    arrivals: int = 0
    at_leisure: bool = False
    """Whether no row waits for the whole slot."""


Need = NeedKeys | NeedDue | NeedSlots
SlotsMark = tuple[Array, Array, Array]
"""Which slots were partial, waited for and wanted, for `Residence.undo`."""


class Residence:
    """The slots of one host, as plain arrays indexed by slot. Only `Holdings` changes them."""

    def __init__(self, slots: int) -> None:
        self.owned = np.zeros(slots, np.bool_)
        self.partial = np.zeros(slots, np.bool_)
        self.whole = np.zeros(slots, np.bool_)
        """Whether rows of a slot wait until it is complete."""
        self.wanted = np.zeros(slots, np.bool_)
        """Whether a slot is to be fetched in the background."""
        self.frozen = np.full(slots, _NEVER, np.int64)
        """Version, or number of the reroute, at which a slot left."""
        self.frozen_run = np.full(slots, -1, np.int64)
        """Live run of that reroute; -1 if the slot left at a version."""
        self.frozen_complete = np.zeros(slots, np.bool_)
        """Whether a slot was complete when it left. If so, a key that is not in the copy has no state."""
        self.came = np.full(slots, -1, np.int64)
        """First version at which the store has all changes of a slot from before it came here."""
        self.released = np.zeros(slots, np.bool_)
        """Whether a slot's copy is no longer needed, but may still be in the table."""
        self.left = np.zeros(slots, np.bool_)
        """Whether a slot has left since the last cut."""
        self.store_version = -1
        """Lowest version that may be read from the store."""
        self.changes = self.arrivals = 0
        """Counters of what makes answers on their way obsolete.

        A new value of `changes` makes all of them obsolete. A new value of `arrivals` makes those obsolete
        that concern due entries, or slots that came since.
        """
        self.arrived = np.zeros(slots, np.int64)
        """Value of `arrivals` when a slot came."""
        self._source: list[FrozenCopy | None] = [None] * slots
        self._kept = [(-1, self._standing())]
        """(version, state of the slots) of the newest durable version, then of each cut since."""

    @property
    def any_partial(self) -> bool:
        return bool(self.partial.any())

    @property
    def awaited(self) -> int:
        """Number of partial slots that have a source: their previous host is still needed."""
        return sum(self._source[slot] is not None for slot in np.flatnonzero(self.partial).tolist())

    # -- slots change owners

    def assign(self, order: Assignment) -> Array:
        """Own exactly these slots from now on. Return the new ones, which must not be in the table."""
        owned = np.zeros(len(self.owned), np.bool_)
        owned[list(order.owned)] = True
        version = order.version
        # These slots left at this very version, so nobody has changed them since.
        back = (self.frozen == version) & (self.frozen_run < 0) & self.frozen_complete
        fresh = owned & ~self.owned & ~back
        self.frozen[owned & ~self.owned] = _NEVER
        self._freeze(self.owned & ~owned, version)
        if version >= 0:
            self.partial[fresh] = True
            self.whole[fresh] = order.whole
            # This includes slots that came earlier, with another pace.
            self.wanted[:] = owned & self.partial & (order.whole or order.trickle_mb_s > 0)
        for incoming in order.incoming:
            source = None if incoming.location is None else FrozenCopy(incoming.location, version)
            for slot in incoming.slots:
                self._source[slot] = source
        self.owned[:], self.came[fresh] = owned, version
        self.store_version = max(self.store_version, version)
        self.changes += 1
        self.arrivals += 1
        self._kept = [(version, self._standing())]
        return np.flatnonzero(fresh)

    def split(self, before: SlotMap, now: SlotMap) -> None:
        """Divide slots, and put parts together again, at a version at which nothing is on its way.

        A new extra slot is in the state of the slot that it was part of. Slots that are put together belong
        to one host. What is missing of them is fetched from the store, which has all of it, and nobody needs
        their copies.
        """
        had, origins = self._standing(), now.origins(before)
        for name in (*_STANDING, "released", "left", "arrived"):
            values = getattr(self, name)
            if isinstance(values, list):
                setattr(self, name, [values[slot] for slot in origins.tolist()])
            else:
                setattr(self, name, values[origins])
        for slot, parts in now.sources(before):
            if len(parts) > 1:
                self._put_together(slot, parts, had)
        vacant = [slot for slot in range(now.hashed, now.count) if not now.ranges(slot)]
        for flags in (self.owned, self.partial, self.whole, self.wanted, self.released):
            flags[vacant] = False
        self.frozen[vacant] = _NEVER

    def _put_together(self, slot: int, parts: list[int], had: dict[str, Any]) -> None:
        owned = bool(had["owned"][parts].all())
        lacks = owned and bool(had["partial"][parts].any())
        self.owned[slot], self.partial[slot], self.released[slot] = owned, lacks, not owned
        self.whole[slot] = lacks and had["whole"][parts].any()
        self.wanted[slot] = lacks and had["wanted"][parts].any()
        self.came[slot], self._source[slot] = had["came"][parts].max(), None
        self.frozen[slot], self.frozen_run[slot], self.frozen_complete[slot] = _NEVER, -1, False

    def give(self, slots: Array, number: int, run: int) -> None:
        """Give up these slots because of a reroute. Their entries become a copy for the new owner."""
        self._freeze(slots, number, run)
        self.owned[slots], self.left[slots] = False, True

    def take(self, slots: Array, source: FrozenCopy | None, whole: bool, wanted: bool) -> Array:
        """Own these slots because of a reroute. Return those of which the table may hold an old copy."""
        stale: Array = slots[(self.frozen[slots] != _NEVER) | self.released[slots]]
        self.owned[slots] = self.partial[slots] = True
        self.whole[slots], self.wanted[slots] = whole, whole or wanted
        self.frozen[slots] = _NEVER
        self.came[slots] = self.store_version if source is None else NOT_CUT
        for slot in slots.tolist():
            self._source[slot] = source
        for _, kept in self._kept:
            # The old copy is dropped: after a rollback the slot is fetched from the store instead.
            kept["partial"][stale] = kept["owned"][stale]
            kept["frozen"][stale] = _NEVER
            for slot in stale.tolist():
                kept["_source"][slot] = None
        self.arrivals += 1
        self.arrived[slots] = self.arrivals
        return stale

    def awaits(self, slots: Array, arrivals: int) -> Array:
        """Tell for each slot whether it is owned and came no later than this value of `arrivals`."""
        here: Array = self.owned[slots] & (self.arrived[slots] <= arrivals)
        return here

    def _freeze(self, slots: Array, version: int, run: int = -1) -> None:
        self.frozen[slots], self.frozen_run[slots] = version, run
        self.frozen_complete[slots] = ~self.partial[slots]
        self.partial[slots] = self.whole[slots] = self.wanted[slots] = False

    # -- sources

    def by_source(self, slots: Array) -> list[tuple[FrozenCopy | None, Array]]:
        """Group the indices of `slots` by the source that they are fetched from."""
        groups: dict[FrozenCopy | None, list[int]] = {}
        for slot in np.unique(slots).tolist():
            groups.setdefault(self._source[slot], []).append(slot)
        return [(source, np.flatnonzero(np.isin(slots, of))) for source, of in groups.items()]

    def source(self, slot: int) -> FrozenCopy | None:
        return self._source[slot]

    def source_gone(self, source: FrozenCopy) -> None:
        """Fetch this source's slots from the store from now on: the previous host no longer answers."""
        for sources in self._all_sources():
            sources[:] = [None if known == source else known for known in sources]

    def holds(self, slots: Array, version: int, run: int) -> Array:
        """Tell for each slot whether it is frozen here at that version, or that reroute of a live run."""
        held: Array = (self.frozen[slots] == version) & (self.frozen_run[slots] == run)
        return held

    def complete(self, slot: int) -> None:
        """Mark a slot as complete."""
        self.partial[slot] = self.whole[slot] = self.wanted[slot] = False

    # -- rollback

    def cut(self, epoch: int) -> None:
        """End an epoch, and remember the state of the slots."""
        self.came[self.came == NOT_CUT] = epoch
        self.left[:] = False
        self._kept.append((epoch, self._standing()))

    def cuts(self, version: int) -> int:
        """Return the number of cuts that are durable if that version is."""
        return sum(epoch <= version for epoch, _ in self._kept[1:])

    def settle(self, cuts: int | None = None) -> None:
        """Note that this many cuts are durable; without a number, that all current state is."""
        self._kept = [(0, self._standing())] if cuts is None else self._kept[cuts:]

    def roll_back(self, version: int) -> Array:
        """Restore the slots of the newest durable version. Return those that came since and are gone now.

        Entries that came since are lost, and maybe older ones of slots that have left and come back. So
        the store must be read at that version or a later one.
        """
        self.store_version = max(self.store_version, version)
        durable = self._kept[0][1]
        gone: Array = np.flatnonzero(self.owned & ~durable["owned"])
        for name in _STANDING:
            getattr(self, name)[:] = durable[name]
        self.left[:] = False
        self._kept = self._kept[:1]
        self.changes += 1
        self.arrivals += 1
        return gone

    def mark(self) -> SlotsMark:
        """Return a mark for `undo`, in the middle of an epoch in micro-batches."""
        return self.partial.copy(), self.whole.copy(), self.wanted.copy()

    def undo(self, mark: SlotsMark) -> None:
        """Note that entries which came since a mark are gone: slots that they completed are partial again."""
        self.partial[:], self.whole[:], self.wanted[:] = mark
        self.changes += 1
        self.arrivals += 1

    def evicted(self, version: int) -> None:
        """Note that entries were dropped at a durable version: only the store is sure to have them.

        Copies may have lost entries too, as far as the store has them.
        """
        self.partial |= self.owned
        self.frozen_complete[:] = False
        for _, kept in self._kept:
            kept["partial"] |= kept["owned"]
            kept["frozen_complete"][:] = False
        self.whole[:] = self.wanted[:] = False
        self.forgot_absent(version)

    def forgot_absent(self, version: int, fresh: Array | tuple[int, ...] = ()) -> None:
        """Use the store as the only source: the table has forgotten which keys were removed.

        Slots that have just come keep their source, because none of their keys were removed here.
        """
        just_came = self.came > version
        just_came[np.asarray(fresh, np.int64)] = True
        for sources in self._all_sources():
            sources[:] = [s if new else None for s, new in zip(sources, just_came, strict=True)]
        self.store_version = version
        self.changes += 1

    def forget_copies(self) -> None:
        """Release the copies of slots that had left by the newest durable version."""
        durable = self._kept[0][1]["frozen"] != _NEVER
        self.released |= durable
        for frozen in (self.frozen, *(kept["frozen"] for _, kept in self._kept)):
            frozen[durable] = _NEVER

    @property
    def copies(self) -> Array:
        """Slots of which the table holds a frozen copy."""
        return np.flatnonzero(self.frozen != _NEVER)

    def _standing(self) -> dict[str, Any]:
        return {name: getattr(self, name).copy() for name in _STANDING}

    def _all_sources(self) -> list[list[FrozenCopy | None]]:
        return [self._source, *(kept["_source"] for _, kept in self._kept)]
