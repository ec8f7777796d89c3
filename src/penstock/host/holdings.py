"""The state of a host: an operator with its table, the slots it owns, and copies of slots that have left.

Both protocols use it: `HostMachine` for micro-batches, `Rounds` for live streams. Both apply records with
the operator, ask `Holdings` which state is missing, and roll back through it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from itertools import chain

import numpy as np
import pyarrow as pa

from penstock.errors import ProtocolError
from penstock.host.copies import Copies
from penstock.host.residence import (
    FrozenCopy,
    NeedDue,
    NeedKeys,
    NeedSlots,
    Residence,
    Wanted,
)
from penstock.host.vitals import HostVitals, MovedState
from penstock.operators.operator import Operator
from penstock.plan.assignment import Assignment
from penstock.plan.slots import must_be_slots
from penstock.state.arrays import Array, fixed_array
from penstock.state.keys.codec import Keys, slots_of
from penstock.state.keys.index import key_index
from penstock.state.table.table import KEY

_AFTER_EVICTION = 0.75
"""Fraction of the memory limit in use after an eviction, so that not every version needs one."""


class Holdings:
    """The state of one host. Calls must not overlap: the shell holds a lock."""

    def __init__(self, operator: Operator, memory_limit: int | None = None) -> None:
        self.operator = operator
        self.version: int | None = None
        """Newest epoch that is final on this host; -1 before the first, None before `assign`."""
        self.residence = Residence(operator.table.slots)
        self.copies = Copies(operator.table, self.residence)
        self._memory_limit = memory_limit
        self.next_due: dict[str, int] | None = None
        """Next due time of entries that are elsewhere, by column; None if unknown."""
        self.least_due: dict[str, int] | None = {}
        """Earliest possible due time of entries installed since the last check, by column; None if unknown.

        The caller that checks for due entries reads and resets it.
        """
        self._moved = MovedState()
        """Counts of moved state since the last vitals."""

    # -- slots change owners

    def assign(self, order: Assignment) -> None:
        """Own exactly these slots from now on, starting from a version that is final."""
        named = (order.owned, *(coming.slots for coming in order.incoming))
        must_be_slots(chain.from_iterable(named), self.operator.table.slots)
        if self.version not in (None, order.version) and self.residence.owned.any():
            raise ProtocolError(f"slots cannot be reassigned at version {order.version}: {self}")
        self.version = order.version
        fresh = self.residence.assign(order)
        idle = np.flatnonzero(~self.residence.owned)
        self._drop(np.union1d(fresh, np.setdiff1d(idle, self.residence.copies)), fresh)
        self.copies.begin()
        self.next_due = None

    def give(self, slots: Array, number: int, run: int) -> None:
        """Give up these slots because of a reroute in a live run, and keep copies of them."""
        self.residence.give(slots, number, run)
        self.copies.begin()

    def take(self, slots: Array, source: FrozenCopy | None, whole: bool, wanted: bool) -> None:
        """Own these slots because of a reroute in a live run. Their entries have yet to be fetched."""
        stale = self.residence.take(slots, source, whole, wanted)
        if len(stale):
            self._drop(stale, slots)
            self.copies.begin()
        self.next_due = None

    def release(self) -> None:
        """Release the copies of slots that have left. They are dropped when the next version is final."""
        self.residence.forget_copies()

    def _drop(self, slots: Array, fresh: Array) -> None:
        assert self.version is not None
        table = self.operator.table
        before = table.renumberings
        table.drop(slots)
        self.residence.released[slots] = False
        if table.renumberings != before:
            self.residence.forgot_absent(self.version, fresh)

    # -- missing state

    def missing(self, keys: list[Keys]) -> Keys | None:
        """Return the distinct keys that may have an entry elsewhere; None if there are none."""
        table, index = self.operator.table, key_index(self.operator.table.codec.layout)
        for batch_keys in keys:
            away = self.residence.partial[slots_of(batch_keys.hashes, table.slots)]
            if away.any():
                batch_keys = batch_keys.take(np.flatnonzero(away))
                index.upsert(batch_keys.take(np.flatnonzero(~table.known(batch_keys))))
        return index.keys(np.arange(index.size)) if index.size else None

    def need_keys(self, missing: Keys) -> NeedKeys:
        """Return the request that fetches these keys, grouped by source."""
        assert self.version is not None
        slots = slots_of(missing.hashes, self.operator.table.slots)
        parts = tuple((s, missing.take(at)) for s, at in self.residence.by_source(slots))
        return NeedKeys(parts, self.residence.changes, self.version, self.residence.arrivals)

    def need_due(self, limits: dict[str, int]) -> NeedDue | NeedSlots | None:
        """Return the state to fetch before entries up to these limits can fire; None if there is none."""
        residence, known = self.residence, self.next_due
        if not limits or not residence.any_partial:
            return None
        if known is not None and all(c not in known or known[c] > x for c, x in limits.items()):
            return None
        whole = np.flatnonzero(residence.whole)
        if len(whole):
            return NeedSlots(tuple(whole.tolist()))
        assert self.version is not None
        slots = np.flatnonzero(residence.partial)
        parts = tuple((s, slots[at]) for s, at in residence.by_source(slots))
        return NeedDue(parts, limits, residence.changes, self.version, residence.arrivals)

    def wanted(self) -> Wanted | None:
        """Return the next slot to fetch in the background, preferring slots that rows wait for."""
        residence = self.residence
        if not residence.wanted.any() or self.version is None:
            return None
        waited_for = np.flatnonzero(residence.whole & residence.wanted)
        if self._full() and not len(waited_for):
            return None
        slot = int(waited_for[0] if len(waited_for) else np.flatnonzero(residence.wanted)[0])
        source, arrivals = residence.source(slot), residence.arrivals
        return Wanted(slot, source, residence.changes, self.version, arrivals)

    def install(self, need: NeedKeys | NeedDue | Wanted, keys: Keys, rows: pa.Table) -> bool:
        """Install the entries that were fetched for these keys; False if they came too late to be used.

        Entries of slots that have left since the request are skipped, even if the slots are back.
        """
        table = self.operator.table
        if need.changes != self.residence.changes:
            return False
        here = self.residence.awaits(slots_of(keys.hashes, table.slots), need.arrivals)
        if not here.all():
            keys = keys.take(np.flatnonzero(here))
            row_keys = table.codec.from_storage(rows.column(KEY))
            here = self.residence.awaits(slots_of(row_keys.hashes, table.slots), need.arrivals)
            rows = rows.take(fixed_array(np.flatnonzero(here), pa.int64()))
        table.install(keys, rows)
        if self.least_due is not None and rows.num_rows:
            # These entries were elsewhere, so they are not due before `next_due`.
            self.least_due = self.next_due
        size = rows.get_total_buffer_size()
        self._moved = self._moved.plus(fetched_keys=rows.num_rows, fetched_bytes=size)
        return True

    def none_due_before(self, need: NeedDue, next_due: dict[str, int]) -> None:
        """Note that all due entries were installed, and the next due times of those elsewhere."""
        residence = self.residence
        self.least_due = None
        if (need.changes, need.arrivals) == (residence.changes, residence.arrivals):
            self.next_due = next_due

    def complete_slot(self, wanted: Wanted) -> None:
        """Mark a slot as complete after all its entries were installed."""
        residence = self.residence
        if wanted.changes == residence.changes and residence.source(wanted.slot) == wanted.source:
            residence.complete(wanted.slot)

    def waited(self, ms: float, fetches: int) -> None:
        """Count milliseconds that rows waited for state, and the round trips."""
        self._moved = self._moved.plus(wait_ms=ms, fetches=fetches)

    def vitals(self, rows: int, useful_ms: float) -> HostVitals:
        """Return the vitals of an epoch with this many rows, and reset the counts."""
        table, residence = self.operator.table, self.residence
        partial, left = int(np.count_nonzero(residence.partial)), self.copies.left_behind
        moved, self._moved = self._moved.plus(partial_slots=partial, left_behind=left), MovedState()
        return HostVitals(
            rows=rows,
            useful_ms=useful_ms,
            entries=len(table) - self.copies.entries,
            state_bytes=table.nbytes,
            awaited_slots=residence.awaited,
            **asdict(moved),
        )

    # -- versions

    def cut(self, epoch: int) -> list[pa.Table]:
        """End an epoch and begin the next. Return its deltas: of slots that left in it, then of the rest."""
        table, left = self.operator.table, self.residence.left
        deltas = [table.delta()]
        if left.any():
            deltas = [table.delta(np.flatnonzero(of)) for of in (left, ~left)]
        table.cut()
        self.residence.cut(epoch)
        return deltas

    def settle(self, version: int) -> None:
        """Note that all epochs up to this version are durable."""
        cuts = self.residence.cuts(version)
        if cuts:
            self._settled(version, lambda: self.operator.table.settle(cuts), cuts)

    def seal_version(self, version: int) -> None:
        """Note that all state on this host is durable as of this version."""
        self._settled(version, self.operator.table.seal)

    def return_to(self, version: int) -> None:
        """Roll back to the end of a durable epoch, with the slots owned then."""
        if self.version is None or version < self.version:
            raise ProtocolError(f"cannot roll back to version {version}: {self}")
        self.settle(version)
        self.version, self.next_due = version, None
        self.operator.rollback()
        gone = self.residence.roll_back(version)
        if len(gone):
            self._drop(gone, gone)
        self.copies.begin()

    def _settled(self, version: int, settle: Callable[[], None], cuts: int | None = None) -> None:
        table, residence = self.operator.table, self.residence
        before = table.renumberings
        settle()
        residence.settle(cuts)
        self.version = version
        self.copies.let_go()
        if self._memory_limit is not None and table.nbytes > self._memory_limit:
            self._evict(self._memory_limit)
        if table.renumberings != before:
            residence.forgot_absent(version)

    def _evict(self, limit: int) -> None:
        """Free memory: drop copies of slots that have left, then the least recently used entries."""
        assert self.version is not None
        table = self.operator.table
        self.release()
        self.copies.let_go()
        if table.nbytes > limit:
            self._moved = self._moved.plus(evicted=table.evict(int(limit * _AFTER_EVICTION)))
            self.residence.evicted(self.version)
            self.next_due = None

    def _full(self) -> bool:
        """Tell whether state fetched in the background would only be evicted again."""
        limit = self._memory_limit
        return limit is not None and self.operator.table.nbytes > limit * _AFTER_EVICTION

    def __str__(self) -> str:
        return f"host at version {self.version}"
