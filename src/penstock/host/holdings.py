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
from penstock.host.parted import PartedOperator
from penstock.host.residence import (
    FrozenCopy,
    NeedDue,
    NeedKeys,
    NeedSlots,
    Residence,
    SlotsMark,
    Wanted,
)
from penstock.host.vitals import HostVitals, MovedState
from penstock.operators.operator import Operator
from penstock.plan.assignment import Assignment
from penstock.plan.slots import must_be_slots
from penstock.state.arrays import Array, fixed_array
from penstock.state.keys.codec import Keys
from penstock.state.keys.index import key_index
from penstock.state.keys.slot_map import SlotMap
from penstock.state.table.table import KEY

_AFTER_EVICTION = 0.75
"""Fraction of the memory limit in use after an eviction, so that not every version needs one."""

Mark = tuple[int, SlotsMark]
"""A savepoint of the table, and the slots at that time."""


class Holdings:
    """The state of one host. Calls must not overlap: the shell holds a lock."""

    def __init__(self, operator: Operator, memory_limit: int | None = None) -> None:
        self.operator = operator
        self.version: int | None = None
        """Newest epoch that is final on this host; -1 before the first, None before `assign`."""
        self.residence = Residence(operator.table.slot_map.count)
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
        table = self.operator.table
        slot_map = SlotMap(table.slots, order.splits)
        named = (order.owned, *(coming.slots for coming in order.incoming))
        must_be_slots(chain.from_iterable(named), slot_map.count)
        if self.version not in (None, order.version) and self.residence.owned.any():
            raise ProtocolError(f"slots cannot be reassigned at version {order.version}: {self}")
        self.version = order.version
        if slot_map != table.slot_map:
            self.residence.split(table.slot_map, slot_map)
            table.split(slot_map)
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

    @property
    def is_source(self) -> bool:
        """Whether other hosts may fetch state from this one."""
        return bool(len(self.residence.copies))

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
        index = key_index(self.operator.table.codec.layout)
        for batch_keys in keys:
            lacks = self.lacks(batch_keys)
            if lacks.any():
                index.upsert(batch_keys.take(np.flatnonzero(lacks)))
        return index.keys(np.arange(index.size)) if index.size else None

    def lacks(self, keys: Keys) -> Array:
        """Tell for each of these keys whether it may have an entry elsewhere."""
        table = self.operator.table
        lacks: Array = self.residence.partial[table.slot_map.of(keys.hashes)]
        away = np.flatnonzero(lacks)
        lacks[away] = ~table.known(keys.take(away))
        return lacks

    def need_keys(self, missing: Keys) -> NeedKeys:
        """Return the request that fetches these keys, grouped by source."""
        assert self.version is not None
        slots = self.operator.table.slot_map.of(missing.hashes)
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
        at_leisure = not residence.whole[slot]
        return Wanted(slot, source, residence.changes, self.version, arrivals, bool(at_leisure))

    def install(self, need: NeedKeys | NeedDue | Wanted, keys: Keys, rows: pa.Table) -> bool:
        """Install the entries that were fetched for these keys; False if they came too late to be used.

        Entries of slots that have left since the request are skipped, even if the slots are back.
        """
        table = self.operator.table
        if need.changes != self.residence.changes:
            return False
        here = self.residence.awaits(table.slot_map.of(keys.hashes), need.arrivals)
        if not here.all():
            keys = keys.take(np.flatnonzero(here))
            row_keys = table.codec.from_storage(rows.column(KEY))
            here = self.residence.awaits(table.slot_map.of(row_keys.hashes), need.arrivals)
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

    def helped(self, rows: int) -> None:
        """Count rows that other hosts have applied."""
        self._moved = self._moved.plus(helped_rows=rows)

    def mark(self) -> Mark:
        """Return a mark for `undo`, in the middle of an epoch."""
        return self.operator.table.savepoint(), self.residence.mark()

    def undo(self, mark: Mark) -> None:
        """Undo all changes since a mark. Entries that were fetched since then have to be fetched again."""
        self.operator.table.undo(mark[0])
        self.residence.undo(mark[1])
        self.next_due = None

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
            workers=self.operator.engaged() if isinstance(self.operator, PartedOperator) else 1,
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
