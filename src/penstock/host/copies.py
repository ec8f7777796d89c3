"""Frozen copies of slots that have moved away from a host, for the hosts that own them now."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.errors import StaleRunError
from penstock.host.residence import Residence
from penstock.state.arrays import Array
from penstock.state.keys.codec import Keys
from penstock.state.table.parted import StepTable


class Copies:
    """Reader of a host's frozen copies. Their entries no longer change: rows of these slots go elsewhere."""

    def __init__(self, table: StepTable, residence: Residence) -> None:
        self._table, self._residence = table, residence
        self.entries = self.served = 0

    def begin(self) -> None:
        """Find out which copies there are, after slots have changed owners."""
        slots, released = self._residence.copies, np.flatnonzero(self._residence.released)
        self._table.give_away(np.union1d(slots, released))
        self.entries, self.served = self._table.count_in(slots) if len(slots) else 0, 0

    def let_go(self) -> None:
        """Drop the entries of released copies, if no copy is needed any more."""
        residence = self._residence
        if (self.entries or residence.released.any()) and not len(residence.copies):
            self._table.drop(np.flatnonzero(~self._residence.owned))
            self._residence.released[:] = False
            self.begin()

    @property
    def left_behind(self) -> int:
        """Number of entries in copies that nobody has asked for."""
        return max(0, self.entries - self.served)

    def of_keys(self, keys: Keys, version: int, run: int = -1) -> tuple[pa.Table, Array]:
        """Return the entries of these keys in copies frozen at a version, and the indices of unknown keys.

        A key that is in neither has no state.
        """
        table, residence = self._table, self._residence
        slots = table.slot_map.of(keys.hashes)
        here = residence.holds(slots, version, run)
        entries = table.find(keys)
        known = here & ((entries >= 0) | table.known(keys) | residence.frozen_complete[slots])
        served = entries[here & (entries >= 0)]
        self.served += len(served)
        return table.export(served), np.flatnonzero(~known)

    def of_slot(self, slot: int, version: int, run: int = -1) -> Array:
        """Return the indices of all entries in the copy of a slot that is frozen at a version."""
        self._must_hold(np.array([slot]), version, run)
        entries = self._table.entries_in(np.array([slot]))
        self.served += len(entries)
        return entries

    def of_due(
        self, slots: Array, limits: dict[str, int], version: int, run: int = -1
    ) -> tuple[pa.Table, dict[str, int]]:
        """Return the entries of these slots that are due, and each column's next due time after that."""
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
        """Return the store version that has what copies of these slots lack; None if they lack nothing."""
        residence = self._residence
        slots = slots[~residence.frozen_complete[slots]]
        if not len(slots):
            return None
        return max(residence.store_version, int(residence.came[slots].max()))

    def _must_hold(self, slots: Array, version: int, run: int) -> None:
        """Refuse a request unless all these slots are frozen here at that version or reroute.

        A copy at a version must be complete: otherwise the store has all of it.
        """
        residence = self._residence
        held = residence.holds(slots, version, run)
        if not (held & (residence.frozen_complete[slots] | (run >= 0))).all():
            raise StaleRunError(f"this host has no complete copy of the slots at version {version}")
