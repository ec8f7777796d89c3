"""Which slots a host owns, how much of each is here, and who has the rest.

A slot that a host owns is *complete*, or *partial*: then a key without an entry in the table may
well have one elsewhere. It is asked for at the slot's source, the previous host with its frozen copy;
without a source, or when that host does not know, in the store. A slot that was given away stays in
the table as such a frozen copy, of the version at which it was given away; in a live run, of the reroute.

What a host may have to go back to is kept: how its slots stood at the newest durable version, and at
each cut since.

A `Need` is what a host must have before it can go on with some rows, and does not have.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.plan.assignment import Assignment
from penstock.state.arrays import Array
from penstock.state.keys.codec import Keys

_NEVER = -2
"""No version: the slot was not given away."""
NOT_CUT = 1 << 62
"""Later than any version: a slot came in an epoch that has not been cut."""
_STANDING = (
    "owned", "partial", "whole", "wanted", "frozen", "frozen_run", "frozen_complete", "came", "_source",
)  # fmt: skip
"""What a host goes back to with its table."""


@dataclass(frozen=True)
class FrozenCopy:
    """A previous host: its copy of some slots is frozen at a version."""

    location: str
    version: int
    """In a live run, the number of the reroute."""
    run: int = -1
    """The live run; -1: none."""


@dataclass(frozen=True)
class NeedKeys:
    """Entries of these keys, which may exist at a source, or else in the store."""

    parts: tuple[tuple[FrozenCopy | None, Keys], ...]
    changes: int
    """What the residence counted when it was asked: an answer to an older count is worthless."""
    version: int
    """The store is asked for this version."""
    arrivals: int = 0
    """What the residence counted of slots that came: of later ones the answer tells nothing."""


@dataclass(frozen=True)
class NeedDue:
    """Entries of these slots whose columns are not zero and at most the limit."""

    parts: tuple[tuple[FrozenCopy | None, Array], ...]
    limits: dict[str, int]
    changes: int
    version: int
    arrivals: int = 0


@dataclass(frozen=True)
class NeedSlots:
    """These slots, complete: they are being brought already."""

    slots: tuple[int, ...]


@dataclass(frozen=True)
class Wanted:
    """A slot to be brought whole, in the background."""

    slot: int
    source: FrozenCopy | None
    changes: int
    version: int
    arrivals: int = 0


Need = NeedKeys | NeedDue | NeedSlots


class Residence:
    """The slots of one host. Plain arrays by slot; all changes come from `Holdings`."""

    def __init__(self, slots: int) -> None:
        self.owned = np.zeros(slots, np.bool_)
        self.partial = np.zeros(slots, np.bool_)
        self.whole = np.zeros(slots, np.bool_)
        """Rows of these wait until the slot is complete."""
        self.wanted = np.zeros(slots, np.bool_)
        """To be brought in the background."""
        self.frozen = np.full(slots, _NEVER, np.int64)
        """The version, or number of the reroute, at which a slot was given away."""
        self.frozen_run = np.full(slots, -1, np.int64)
        """The live run of that reroute; -1: it was at a version."""
        self.frozen_complete = np.zeros(slots, np.bool_)
        """It was complete then: what the copy lacks does not exist."""
        self.came = np.full(slots, -1, np.int64)
        """The version from which on the store has all that was changed before a slot came here."""
        self.released = np.zeros(slots, np.bool_)
        """Copies that nobody needs any more, and that may still be in the table."""
        self.left = np.zeros(slots, np.bool_)
        """Given away since the last cut."""
        self.store_version = -1
        """What the store is asked for must be at least of this version."""
        self.changes = self.arrivals = 0
        """Count what makes answers that are still on their way worthless: all, or of what is due, and
        of slots that came since."""
        self.arrived = np.zeros(slots, np.int64)
        """The arrival with which a slot came."""
        self._source: list[FrozenCopy | None] = [None] * slots
        self._kept = [(-1, self._standing())]
        """(version, how the slots stood): the newest that is durable, then each cut since."""

    @property
    def any_partial(self) -> bool:
        return bool(self.partial.any())

    @property
    def awaited(self) -> int:
        """How many slots are partial and have a source: a previous host is still needed for them."""
        return sum(self._source[slot] is not None for slot in np.flatnonzero(self.partial).tolist())

    # -- slots change hands

    def assign(self, order: Assignment) -> Array:
        """Own these slots from now on. Returns those that come anew, and must not be in the table."""
        owned = np.zeros(len(self.owned), np.bool_)
        owned[list(order.owned)] = True
        version = order.version
        # given away at this very version: nobody has changed it since
        back = (self.frozen == version) & (self.frozen_run < 0) & self.frozen_complete
        fresh = owned & ~self.owned & ~back
        self.frozen[owned & ~self.owned] = _NEVER
        self._freeze(self.owned & ~owned, version)
        if version >= 0:
            self.partial[fresh] = True
            self.whole[fresh] = order.whole
            # also what came earlier at another pace
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

    def give(self, slots: Array, number: int, run: int) -> None:
        """A reroute has taken these slots away: what is here of them is a copy for their new owner."""
        self._freeze(slots, number, run)
        self.owned[slots], self.left[slots] = False, True

    def take(self, slots: Array, source: FrozenCopy | None, whole: bool, wanted: bool) -> Array:
        """A reroute has brought these slots. Returns those of which the table may hold an old copy."""
        stale: Array = slots[(self.frozen[slots] != _NEVER) | self.released[slots]]
        self.owned[slots] = self.partial[slots] = True
        self.whole[slots], self.wanted[slots] = whole, whole or wanted
        self.frozen[slots] = _NEVER
        self.came[slots] = self.store_version if source is None else NOT_CUT
        for slot in slots.tolist():
            self._source[slot] = source
        for _, kept in self._kept:
            # the old copy goes: who goes back brings it from the store, as of where it goes back to
            kept["partial"][stale] = kept["owned"][stale]
            kept["frozen"][stale] = _NEVER
            for slot in stale.tolist():
                kept["_source"][slot] = None
        self.arrivals += 1
        self.arrived[slots] = self.arrivals
        return stale

    def awaits(self, slots: Array, arrivals: int) -> Array:
        """Which of these slots are still here that were when so many had arrived."""
        here: Array = self.owned[slots] & (self.arrived[slots] <= arrivals)
        return here

    def _freeze(self, slots: Array, version: int, run: int = -1) -> None:
        self.frozen[slots], self.frozen_run[slots] = version, run
        self.frozen_complete[slots] = ~self.partial[slots]
        self.partial[slots] = self.whole[slots] = self.wanted[slots] = False

    # -- who is asked

    def by_source(self, slots: Array) -> list[tuple[FrozenCopy | None, Array]]:
        """Places in `slots`, grouped by who is asked for them."""
        groups: dict[FrozenCopy | None, list[int]] = {}
        for slot in np.unique(slots).tolist():
            groups.setdefault(self._source[slot], []).append(slot)
        return [(source, np.flatnonzero(np.isin(slots, of))) for source, of in groups.items()]

    def source(self, slot: int) -> FrozenCopy | None:
        return self._source[slot]

    def source_gone(self, source: FrozenCopy) -> None:
        """The previous host does not answer any more: its slots are asked for in the store."""
        for sources in self._all_sources():
            sources[:] = [None if known == source else known for known in sources]

    def holds(self, slots: Array, version: int, run: int) -> Array:
        """Which of these slots are frozen here as of that version, or reroute of a live run."""
        held: Array = (self.frozen[slots] == version) & (self.frozen_run[slots] == run)
        return held

    def complete(self, slot: int) -> None:
        """All entries of a slot are here."""
        self.partial[slot] = self.whole[slot] = self.wanted[slot] = False

    # -- what a host may go back to

    def cut(self, epoch: int) -> None:
        """An epoch ends here."""
        self.came[self.came == NOT_CUT] = epoch
        self.left[:] = False
        self._kept.append((epoch, self._standing()))

    def cuts(self, version: int) -> int:
        """How many cuts are durable if that version is."""
        return sum(epoch <= version for epoch, _ in self._kept[1:])

    def settle(self, cuts: int | None = None) -> None:
        """So many cuts are durable; without a number, all that is here is."""
        self._kept = [(0, self._standing())] if cuts is None else self._kept[cuts:]

    def roll_back(self, version: int) -> Array:
        """All is as it was at the newest durable version. Entries that came since are forgotten, and so
        may be older ones of slots that have left and come back: the store is asked for that version.
        Returns the slots that came since, and are not here any more."""
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

    def evicted(self, version: int) -> None:
        """Entries were dropped at a durable version: the store has them, and nobody else surely. Also
        of copies that are not in the store yet, as far as they are there."""
        self.partial |= self.owned
        self.frozen_complete[:] = False
        for _, kept in self._kept:
            kept["partial"] |= kept["owned"]
            kept["frozen_complete"][:] = False
        self.whole[:] = self.wanted[:] = False
        self.forgot_absent(version)

    def forgot_absent(self, version: int, fresh: Array | tuple[int, ...] = ()) -> None:
        """It is no longer known which keys were removed here: only the store can tell. Of slots
        that have just come nothing was removed."""
        just_came = self.came > version
        just_came[np.asarray(fresh, np.int64)] = True
        for sources in self._all_sources():
            sources[:] = [s if new else None for s, new in zip(sources, just_came, strict=True)]
        self.store_version = version
        self.changes += 1

    def forget_copies(self) -> None:
        """Nobody needs copies of slots that are durable elsewhere."""
        durable = self._kept[0][1]["frozen"] != _NEVER
        self.released |= durable
        for frozen in (self.frozen, *(kept["frozen"] for _, kept in self._kept)):
            frozen[durable] = _NEVER

    @property
    def copies(self) -> Array:
        """The slots of which the table holds a frozen copy."""
        return np.flatnonzero(self.frozen != _NEVER)

    def _standing(self) -> dict[str, Any]:
        return {name: getattr(self, name).copy() for name in _STANDING}

    def _all_sources(self) -> list[list[FrozenCopy | None]]:
        return [self._source, *(kept["_source"] for _, kept in self._kept)]
