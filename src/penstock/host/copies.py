"""Frozen copies of slots that a host gave away, for the hosts that own them now."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.errors import StaleRunError
from penstock.host.residence import Residence
from penstock.state.arrays import Array
from penstock.state.keys.codec import Keys, slots_of
from penstock.state.table.parted import StepTable


class Copies:
    """Reads the entries of slots given away. Nothing here changes them: their rows go elsewhere."""

    def __init__(self, table: StepTable, residence: Residence) -> None:
        self._table, self._residence = table, residence
        self.entries = self.served = 0

    def begin(self) -> None:
        """Slots have changed hands: look which copies there are now."""
        slots, released = self._residence.copies, np.flatnonzero(self._residence.released)
        self._table.give_away(np.union1d(slots, released))
        self.entries, self.served = self._table.count_in(slots) if len(slots) else 0, 0

    def let_go(self) -> None:
        """Drop the entries if nobody may ask for any of them."""
        residence = self._residence
        if (self.entries or residence.released.any()) and not len(residence.copies):
            self._table.drop(np.flatnonzero(~self._residence.owned))
            self._residence.released[:] = False
            self.begin()

    @property
    def left_behind(self) -> int:
        """Entries that nobody has asked for."""
        return max(0, self.entries - self.served)

    def of_keys(self, keys: Keys, version: int, run: int = -1) -> tuple[pa.Table, Array]:
        """The entries of these keys in copies frozen at a version, and the places of those keys of
        which nothing is known here. What is in neither does not exist."""
        table, residence = self._table, self._residence
        slots = slots_of(keys.hashes, table.slots)
        here = residence.holds(slots, version, run)
        entries = table.find(keys)
        told = here & ((entries >= 0) | table.known(keys) | residence.frozen_complete[slots])
        found = entries[here & (entries >= 0)]
        self.served += len(found)
        return table.export(found), np.flatnonzero(~told)

    def of_slot(self, slot: int, version: int, run: int = -1) -> Array:
        """The entries of a slot of which there is a copy frozen at a version."""
        self._must_hold(np.array([slot]), version, run)
        entries = self._table.entries_in(np.array([slot]))
        self.served += len(entries)
        return entries

    def of_due(
        self, slots: Array, limits: dict[str, int], version: int, run: int = -1
    ) -> tuple[pa.Table, dict[str, int]]:
        """The entries of these slots that are due, and the next value of each column after that."""
        self._must_hold(slots, version, run)
        table = self._table
        entries = table.entries_in(slots)
        due = np.zeros(len(entries), np.bool_)
        after = {}
        for name, limit in limits.items():
            values = table.values(name, entries)
            due |= (values != 0) & (values <= limit)
            later = values[values > limit]
            if len(later):
                after[name] = int(later.min())
        return table.export(entries[due]), after

    def lacking(self, slots: Array) -> int | None:
        """The version that the store must have to be asked for what copies of these slots lack; None:
        they lack nothing."""
        residence = self._residence
        slots = slots[~residence.frozen_complete[slots]]
        if not len(slots):
            return None
        return max(residence.store_version, int(residence.came[slots].max()))

    def _must_hold(self, slots: Array, version: int, run: int) -> None:
        """Refuse what is asked of other copies; at a version the store has all that one lacks, and so
        it must be whole."""
        residence = self._residence
        held = residence.holds(slots, version, run)
        if not (held & (residence.frozen_complete[slots] | (run >= 0))).all():
            raise StaleRunError(f"there is no whole copy of these slots at version {version} here")
