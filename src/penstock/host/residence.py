"""Which slots a host owns, how much of each is here, and who has the rest.

A slot that a host owns is *complete*, or *partial*: then a key without an entry in the table may
well have one elsewhere. It is asked for at the slot's source, the previous host with its frozen copy;
without a source, or when that host does not know, in the store. A slot that was given away stays in
the table as such a frozen copy, of the version at which it was given away.

A `Need` is what a host must have before it can go on with a channel, and does not have.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.plan.assignment import Assignment
from penstock.state.arrays import Array
from penstock.state.keys.codec import Keys

_NEVER = -2
"""No version: the slot was not given away."""


@dataclass(frozen=True)
class FrozenCopy:
    """A previous host: its copy of some slots is frozen at a version."""

    location: str
    version: int


@dataclass(frozen=True)
class NeedKeys:
    """Entries of these keys, which may exist at a source, or else in the store."""

    parts: tuple[tuple[FrozenCopy | None, Keys], ...]
    changes: int
    """What the residence counted when it was asked: an answer to an older count is worthless."""
    version: int
    """The store is asked for this version."""


@dataclass(frozen=True)
class NeedDue:
    """Entries of these slots whose columns are not zero and at most the limit."""

    parts: tuple[tuple[FrozenCopy | None, Array], ...]
    limits: dict[str, int]
    changes: int
    version: int


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


Need = NeedKeys | NeedDue | NeedSlots


class Residence:
    """The slots of one host. Plain arrays by slot; all changes come from the host machine."""

    def __init__(self, slots: int) -> None:
        self.owned = np.zeros(slots, np.bool_)
        self.partial = np.zeros(slots, np.bool_)
        self.whole = np.zeros(slots, np.bool_)
        """Rows of these wait until the slot is complete."""
        self.wanted = np.zeros(slots, np.bool_)
        """To be brought in the background."""
        self.frozen = np.full(slots, _NEVER, np.int64)
        """The version at which a slot was given away."""
        self.frozen_complete = np.zeros(slots, np.bool_)
        """It was complete then: what the copy lacks does not exist."""
        self.store_version = -1
        """What the store is asked for must be at least of this version."""
        self.changes = 0
        """Counts what makes an answer that is still on its way worthless."""
        self._source: list[FrozenCopy | None] = [None] * slots
        self._completed: list[int] = []

    @property
    def any_partial(self) -> bool:
        return bool(self.partial.any())

    @property
    def awaited(self) -> int:
        """How many slots are partial and have a source: a previous host is still needed for them."""
        return sum(self._source[slot] is not None for slot in np.flatnonzero(self.partial).tolist())

    def assign(self, order: Assignment) -> Array:
        """Own these slots from now on. Returns those that come anew, and must not be in the table."""
        owned = np.zeros(len(self.owned), np.bool_)
        owned[list(order.owned)] = True
        version = order.version
        left = self.owned & ~owned
        self.frozen[left], self.frozen_complete[left] = version, ~self.partial[left]
        self.partial[left] = self.whole[left] = self.wanted[left] = False
        comes = owned & ~self.owned
        # given away at this very version: nobody has changed it since
        back = comes & (self.frozen == version) & self.frozen_complete
        fresh = comes & ~back
        self.frozen[comes] = _NEVER
        if version >= 0:
            self.partial[fresh] = True
            self.whole[fresh] = order.whole
            # also what came earlier at another pace
            self.wanted = owned & self.partial & (order.whole or order.trickle_mb_s > 0)
        for incoming in order.incoming:
            source = None if incoming.location is None else FrozenCopy(incoming.location, version)
            for slot in incoming.slots:
                self._source[slot] = source
        self.owned = owned
        self.store_version = max(self.store_version, version)
        self.changes += 1
        return np.flatnonzero(fresh)

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
        self._source = [None if known == source else known for known in self._source]

    def complete(self, slot: int) -> None:
        """All entries of a slot are here."""
        self.partial[slot] = self.whole[slot] = self.wanted[slot] = False
        self._completed.append(slot)

    def settle(self) -> None:
        """What is here was sealed and stays."""
        self._completed.clear()

    def roll_back(self) -> None:
        """Entries that came since the last seal are forgotten, so slots may not be complete again."""
        again = [slot for slot in self._completed if self.owned[slot]]
        self.partial[again] = self.wanted[again] = True
        self._completed.clear()
        self.changes += 1

    def evicted(self, version: int) -> None:
        """Entries were dropped at a sealed version: the store has them, and nobody else surely."""
        self.partial |= self.owned
        self.whole[:] = self.wanted[:] = False
        self.forgot_absent(version)

    def forgot_absent(self, version: int, fresh: Array | tuple[int, ...] = ()) -> None:
        """It is no longer known which keys were removed here: only the store can tell. Of slots
        that have just come nothing was removed."""
        kept = {slot: self._source[slot] for slot in np.asarray(fresh).tolist()}
        self._source = [kept.get(slot) for slot in range(len(self._source))]
        self.store_version = version
        self.changes += 1

    def forget_copies(self) -> None:
        self.frozen[:] = _NEVER

    @property
    def copies(self) -> Array:
        """The slots of which the table holds a frozen copy."""
        return np.flatnonzero(self.frozen != _NEVER)
