"""The table: keyed columnar state of one step on one host, with savepoints, undo and deltas.

Entries are dense numbers (see `key_index`). Each column is an array indexed by entry. An operator
looks up the entries of a batch's keys, then changes the columns in place. Internally:

- a *log* keeps the old values of entries touched in the current round, once per savepoint, to undo a
  failed channel; new entries are at the end and are cut off;
- *dirty* marks say which entries the current round has touched;
- a log for each *epoch* keeps the old values of entries that its rounds have touched: these entries make
  up its delta, and a rollback goes back through all epochs that are not durable yet;
- a removed entry stays as a dead entry, since the delta must contain the removal, until it is durable.

A round ends with `step`, an epoch with `cut`. `settle` marks the oldest epochs as durable.
`seal` does all three at once, so that nothing is logged twice if an epoch is a single round.

>>> codec = KeyCodec(pa.schema([("user", pa.int64())]))
>>> table = ColumnTable(codec, [Column("total", pa.int64())], slots=16)
>>> entries = table.upsert(codec.encode(pa.record_batch({"user": [7, 8, 7]})))
>>> np.add.at(table.column("total"), entries, [1, 10, 100])
>>> mark = table.savepoint()
>>> table.remove(entries[:1])
>>> table.undo(mark)
>>> table.column("total").tolist(), len(table)
([101, 10], 2)
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from penstock.errors import CheckpointError, ProtocolError
from penstock.state.arrays import Array, fixed_array, grown, indices
from penstock.state.keys.codec import KeyCodec, Keys, slots_of
from penstock.state.keys.index import key_index
from penstock.state.keys.slot_map import SlotMap
from penstock.state.table import kernels
from penstock.state.table.columns import Column
from penstock.state.table.slot_order import SlotOrder
from penstock.state.table.undo_log import UndoLog

HASH, KEY, SLOT, PRESENT = "__hash", "__key", "__slot", "__present"
_FEW = 1024
"""Number of dead entries up to which the table is not compacted."""
_SERIALS = 1 << 27
"""Number of savepoints and rounds after which stamps restart at 1, to fit beside the other bits of a mark."""


class _Mark(NamedTuple):
    """A position of the table to return to: numbers of logged, existing, dirty and present entries."""

    logged: int
    size: int
    dirties: int
    present: int


@dataclass
class _Epoch:
    """The changes between two cuts."""

    log: UndoLog
    """Entries that the epoch's finished rounds have touched, as they were when it began."""
    size: int
    """Number of entries when the epoch began."""


class ColumnTable:
    """Keyed state with savepoints. Single-threaded. Entry numbers stay valid within a round, and afterwards
    until `renumberings` increases."""

    schema: pa.Schema
    """Schema of `delta` and `export`: __hash, __key, __slot, __present, then the columns."""
    renumberings: int
    """Number of times entries were renumbered. Look up stored entry numbers again when it changes."""
    cuts: int
    """Number of times the table was cut, sealed or rolled back."""

    def __init__(self, codec: KeyCodec, columns: Sequence[Column], slots: int) -> None:
        self.codec, self.columns, self.slots = codec, tuple(columns), slots
        self.schema = pa.schema(
            [
                pa.field(HASH, pa.uint64(), nullable=False),
                pa.field(KEY, codec.storage_type, nullable=False),
                pa.field(SLOT, pa.int32(), nullable=False),
                pa.field(PRESENT, pa.bool_(), nullable=False),
                *(field for column in columns for field in column.fields),
            ]
        )
        self._index = key_index(codec.layout)
        self._make_room()
        self._present = self._dirties = self.renumberings = self.cuts = 0
        self._serial = 1
        self._savepoints: list[_Mark] = []
        self._base = _Mark(0, 0, 0, 0)
        self._log, self._spare = UndoLog(self.columns), UndoLog(self.columns)
        self._epochs = [_Epoch(UndoLog(self.columns), 0)]
        """Epochs that are not durable, oldest first. The last one is the current epoch."""
        self.slot_map = SlotMap(slots)
        """The slots by which entries are found, given away and dropped. Files have hash slots only."""
        self._by_slot = SlotOrder(self.slot_map)
        self._away = np.zeros(slots, np.bool_)

    # -- reading and changing entries

    def __len__(self) -> int:
        """Number of entries present."""
        return self._present

    def find(self, keys: Keys) -> Array:
        """The entry of each key; -1 if it is not present."""
        entries = self._index.find(keys)
        if self._present < self._index.size:
            dead = (self._marks[entries] & kernels.PRESENT) == 0
            entries[dead] = -1
        return entries

    def upsert(self, keys: Keys) -> Array:
        """The entry of each key, created if there is none. All of them are touched.

        New entries have zero or None in every column.
        """
        before = self._index.size
        entries = self._follow_upsert(keys)
        self._marks[before : self._index.size] = self._serial * kernels.STAMP | kernels.NEW
        self._touch(entries, True)
        return entries

    def touch(self, entries: Array) -> None:
        """Log the old values of these entries, for undo. Call this before their columns change."""
        self._touch(indices(entries), False)

    def column(self, name: str) -> Array:
        """Live values of a column, by entry, valid until the next upsert. Call `touch` before changing
        them."""
        return self._values[name][: self._index.size]

    def values(self, name: str, entries: Array) -> Array:
        """A copy of a column's values in these entries."""
        copied: Array = self._values[name][entries]
        return copied

    def remove(self, entries: Array) -> None:
        """Remove these entries. A later upsert of such a key creates it as new."""
        entries = indices(entries)
        self._touch(entries, False)
        for column in self.columns:
            self._values[column.name][entries] = column.nothing
        self._present -= int(kernels.clear_present(entries, self._marks))

    def keys(self, entries: Array) -> Keys:
        """The keys of these entries."""
        return self._index.keys(indices(entries))

    def present(self, entries: Array) -> Array:
        """Whether each of these entries is present (bool)."""
        mask: Array = (self._marks[entries] & kernels.PRESENT) != 0
        return mask

    # -- as of the last step, and the last cut

    def before(self, name: str, entries: Array) -> Array:
        """Values of a column when the round began; zero or None for entries that were not present then."""
        return self._log.before(name, indices(entries), self._values[name], self._marks)

    def was_present(self, entries: Array) -> Array:
        """Whether each of these entries was present when the round began (bool)."""
        return self._log.was_present(indices(entries), self._marks)

    def at_cut(self, name: str, entries: Array) -> Array:
        """Values of a column when the epoch began; zero or None for entries that were not present then."""
        entries = indices(entries)
        values = self.before(name, entries)
        log = self._epochs[-1].log
        return log.logged(name, entries, self._marks, values) if log.size else values

    # -- savepoints, inside a round

    def savepoint(self) -> int:
        """Create a savepoint and return its mark for `undo`. It is gone when the round ends or an earlier
        savepoint is undone."""
        self._savepoints.append(self._here())
        self._serial += 1
        return len(self._savepoints) - 1

    def undo(self, mark: int) -> None:
        """Return to a savepoint: undo values, inserts, removals and dirty marks. The mark stays valid."""
        check_savepoint(mark, len(self._savepoints))
        self._return_to(self._savepoints[mark])
        del self._savepoints[mark + 1 :]

    # -- rounds and epochs

    def step(self) -> None:
        """End a round. From then on `touched`, `before` and savepoints refer to the next round."""
        epoch, touched = self._epochs[-1], self._dirty[: self._dirties]
        if self._dirties:
            epoch.log.take_over(self._log, touched, self._marks)
            self._dirties = 0
            self._log.clear()
        elif not self._history:
            epoch.size = self._index.size
        self._begin_round()

    def cut(self) -> None:
        """End an epoch. From then on `delta` refers to the next epoch. Until this epoch is settled, a
        rollback undoes it too."""
        self.step()
        self._begin_epoch()
        log, self._spare = self._spare, UndoLog(self.columns)
        self._epochs.append(_Epoch(log, self._index.size))

    def settle(self, cuts: int = 1) -> None:
        """Mark the oldest `cuts` epochs as durable. A rollback no longer undoes them. Between rounds, also
        drops dead entries if there are more dead than live ones."""
        if not 0 <= cuts < len(self._epochs):
            raise ProtocolError(
                f"cannot settle {cuts} cuts: only {len(self._epochs) - 1} are open",
                hint="settle each cut once, when it is durable",
            )
        for epoch in self._epochs[:cuts]:
            epoch.log.clear()
            self._spare = epoch.log
        del self._epochs[:cuts]
        for column in self.columns:
            column.settled(len(self._epochs) - 1)
        if self.between_rounds and not self._savepoints:
            self._compact()

    def seal(self) -> None:
        """End the round and the epoch, and mark all changes as durable."""
        kernels.clear_dirty(self._dirty[: self._dirties], self._marks)
        self._dirties = 0
        self._log.clear()
        self._forget_history()
        self._compact()
        self._epochs[0].size = self._index.size

    def rollback(self) -> None:
        """Return to the newest durable cut: undo all rounds and epochs since."""
        self._return_to(self._base)
        if self._history:
            self._begin_epoch()
            for epoch in reversed(self._epochs):
                epoch.log.undo(0, self._values, self._marks)
            self._cut_off(self._epochs[0].size)
            self._count_present()
        self._forget_history()
        self._begin_round()

    @property
    def sealed(self) -> bool:
        """Whether all changes are durable."""
        return self.between_rounds and not self._history

    @property
    def between_rounds(self) -> bool:
        """Whether nothing has changed since the last `step`."""
        return self._here() == self._base

    # -- moving entries in and out

    def touched(self) -> Array:
        """Entries touched in this round, in order of first touch, including removed ones."""
        return self._dirty[: self._dirties].astype(np.int64)

    def delta(self, slots: Array | None = None) -> pa.Table:
        """Changed entries since the last cut, in all slots or in these. Columns of removed entries are
        null."""
        log, entries = self._epochs[-1].log, self.touched()
        if log.size:
            entries = entries[(self._marks[entries] & kernels.LOGGED) == 0]
            entries = np.concatenate([log.entries[: log.size], entries])
        if slots is not None:
            entries = entries[self._in(slots, entries)]

        def changes(column: Column, values: Array, present: Array) -> list[pa.Array]:
            return column.delta_arrays(
                values, present, entries, lambda: self.at_cut(column.name, entries)
            )

        return self._rows(entries, changes)

    def export(self, entries: Array) -> pa.Table:
        """All values of these entries, in the format of a delta."""
        return self._rows(indices(entries), lambda c, *cells: c.to_arrays(*cells))

    def load(self, table: pa.Table) -> None:
        """Load complete rows into a sealed table, as durable state. Of several rows of a key the last
        wins."""
        check_sealed(self.sealed, "load")
        self._check(table)
        self._fill(self._follow_upsert(self.codec.from_storage(table.column(KEY))), table)
        self._count_present()
        self._epochs[0].size = self._index.size
        self._begin_round()

    def known(self, keys: Keys) -> Array:
        """A mask of the keys that have an entry here, present or known to be absent."""
        mask: Array = self._index.find(keys) >= 0
        return mask

    def install(self, keys: Keys, table: pa.Table) -> int:
        """Install fetched state for keys that have no entry here.

        All of these keys are known afterwards: those without a row in `table` as absent. Allowed in
        the middle of a round. Installed entries are clean: they are not in the next delta, and a rollback
        may drop them, so that they have to be installed again. Returns the number of new entries.
        """
        self._check(table)
        # an undo must not go back to before the start of the round
        between_rounds = self.between_rounds and not self._savepoints
        was_sealed = between_rounds and self.sealed
        before = self._index.size
        self._follow_upsert(keys)
        rows = self._follow_upsert(self.codec.from_storage(table.column(KEY)))
        # with a stamp of zero, the first touch logs the entry as it is now
        self._marks[before : self._index.size] = 0
        new = rows >= before
        if not new.all():
            table, rows = table.filter(fixed_array(new, pa.bool_())), rows[new]
        self._fill(rows, table)
        self._present += int(np.count_nonzero(self._marks[before : self._index.size]))
        if between_rounds:
            self._base = self._here()
        if was_sealed:
            self._epochs[0].size = self._index.size
        return self._index.size - before

    def put(self, table: pa.Table) -> None:
        """Replace entries by these complete rows, one per key, as an operator would in the current round:
        they are touched, in the next delta, and undone with the round. A row that is not present removes
        its entry."""
        self._check(table)
        entries = self.upsert(self.codec.from_storage(table.column(KEY)))
        for column in self.columns:
            self._values[column.name][entries] = column.renewed(table.column(column.name))
        present = Column(PRESENT, pa.bool_()).from_arrow(table.column(PRESENT))
        self.remove(entries[~present])

    def _rows(self, entries: Array, arrays_of: Callable[..., list[pa.Array]]) -> pa.Table:
        hashes = self._index.hashes(entries)
        present = self.present(entries)
        arrays = [
            fixed_array(hashes, pa.uint64()),
            self.codec.to_storage(self._index.keys(entries)),
            fixed_array(slots_of(hashes, self.slots), pa.int32()),
            fixed_array(present, pa.bool_()),
        ]
        for column in self.columns:
            arrays += arrays_of(column, self._values[column.name][entries], present)
        return pa.Table.from_arrays(arrays, schema=self.schema)

    def _follow_upsert(self, keys: Keys) -> Array:
        before = self._index.size
        entries = self._index.upsert(keys)
        self._follow(before)
        return entries

    def _fill(self, entries: Array, table: pa.Table) -> None:
        for column in self.columns:
            self._values[column.name][entries] = column.from_arrow(table.column(column.name))
        self._marks[entries] = Column(PRESENT, pa.bool_()).from_arrow(table.column(PRESENT))

    def _check(self, table: pa.Table) -> None:
        if not table.schema.equals(self.schema):
            raise CheckpointError(
                f"the stored state has the columns {columns_text(table.schema)}, "
                f"but the flow's step has {columns_text(self.schema)}",
                hint="run the flow that wrote the checkpoint, or start with a new checkpoint folder",
            )

    def entries_in(self, slots: Array) -> Array:
        """Present entries of these slots, ascending."""
        entries = self._by_slot.entries(slots, self._index, self.renumberings)
        return entries[self.present(entries)]

    def count_in(self, slots: Array) -> int:
        """Number of present entries in these slots. Five times as fast as `entries_in`."""
        size, wanted = self._index.size, np.zeros(self.slot_map.count, np.bool_)
        wanted[slots] = True
        inside = wanted[self.slot_map.of(self._index.hashes(slice(size)))]
        return int(np.count_nonzero(inside & ((self._marks[:size] & kernels.PRESENT) != 0)))

    def least(self, name: str, above: int = 0, entries: Array | None = None) -> int | None:
        """Lowest value of a column above a bound, among these entries or all; None if there is none."""
        values = self.column(name) if entries is None else self._values[name][entries]
        lowest = int(kernels.least_above(values, above))
        return None if lowest == above else lowest

    def give_away(self, slots: Array) -> None:
        """Mark the entries of these slots, and of no others, as a copy for their new owner to read."""
        self._away = np.zeros(self.slot_map.count, np.bool_)
        self._away[slots] = True

    def split(self, slot_map: SlotMap) -> None:
        """Find entries by other slots from now on. Call `give_away` next."""
        self.slot_map, self._by_slot = slot_map, SlotOrder(slot_map)
        self.give_away(np.zeros(0, np.int64))

    def own(self, entries: Array) -> Array:
        """Those of these entries whose slot was not given away."""
        if not self._away.any() or not len(entries):
            return entries
        return entries[~self._away[self.slot_map.of(self._index.hashes(entries))]]

    def drop(self, slots: Array) -> None:
        """Remove everything of these slots, which have moved away, including what a rollback would restore.
        Entry numbers change."""
        check_between_rounds(self.between_rounds, "drop")
        inside = self._in(slots, self._all())
        if inside.any():
            self._keep(np.flatnonzero(~inside & self._needed()))
            self._begin_round()

    def evict(self, nbytes: int) -> int:
        """Remove the least recently touched entries from memory until about `nbytes` bytes are used. Entries
        that changed since the last durable cut stay.

        Entry numbers change. Returns the number of removed entries.
        """
        check_between_rounds(self.between_rounds, "evict")
        before = self._present
        for column in self.columns:
            column.kept(self.held(column.name))
        entries = np.flatnonzero(self.present(self._all()))
        kept = int(before * min(1.0, nbytes / max(1, self.nbytes)))
        if kept < before:
            newest = np.argpartition(-self._marks[entries], kept)[:kept]
            entries = entries[newest]
        needed = self._logged()
        needed[entries] = True
        self._keep(np.flatnonzero(needed))
        self._begin_round()
        return before - self._present

    def held(self, name: str, within_round: bool = False) -> list[Array]:
        """All values of a column, for changes in place: those of entries, and the old ones that a rollback
        would restore. With `within_round`, also those that undoing the current round would restore; without
        it, call this between rounds only."""
        logs = [epoch.log for epoch in self._epochs] + [self._log] * within_round
        return [self.column(name), *(log.values(name) for log in logs if log.size)]

    @property
    def nbytes(self) -> int:
        """Bytes of memory, spare room and logs included. Objects are estimated from a sample."""
        logs = [self._log, self._spare, *(epoch.log for epoch in self._epochs)]
        arrays = [self._marks, self._dirty, *self._values.values()]
        arrays += [array for log in logs for array in log.arrays]
        held = self._index.nbytes + self._by_slot.nbytes
        held += sum(column.held_bytes for column in self.columns)
        return held + sum(array.nbytes + self._objects(array) for array in arrays)

    # -- how it works

    def _here(self) -> _Mark:
        return _Mark(self._log.size, self._index.size, self._dirties, self._present)

    def _all(self) -> Array:
        return np.arange(self._index.size)

    def _in(self, slots: Array, entries: Array) -> Array:
        wanted = np.zeros(self.slot_map.count, np.bool_)
        wanted[slots] = True
        mask: Array = wanted[self.slot_map.of(self._index.hashes(entries))]
        return mask

    @property
    def _history(self) -> bool:
        """Whether a rollback would undo more than the current round."""
        first = self._epochs[0]
        return len(self._epochs) > 1 or first.log.size > 0 or first.size != self._base.size

    def _forget_history(self) -> None:
        """Mark all changes as durable."""
        self._begin_epoch()
        del self._epochs[1:]
        self._epochs[0].log.clear()
        for column in self.columns:
            column.settled(0)

    def _logged(self) -> Array:
        """A mask of the entries that changed since the last durable cut; between rounds."""
        mask = np.zeros(self._index.size, np.bool_)
        for epoch in self._epochs:
            mask[epoch.log.entries[: epoch.log.size]] = True
        return mask

    def _needed(self) -> Array:
        """A mask of the entries that are present, or that a delta or a rollback may need; between rounds."""
        return self._logged() | self.present(self._all())

    def _make_room(self) -> None:
        room = self._index.room
        self._marks = np.zeros(room, np.int32)
        self._dirty = np.zeros(room, np.int32)
        self._values = {column.name: column.empty(room) for column in self.columns}

    def _follow(self, used: int) -> None:
        """Grow the arrays to the size of the index, keeping the first `used` entries."""
        room = self._index.room
        if room == len(self._marks):
            return
        self._marks = grown(self._marks, used, room)
        self._dirty = grown(self._dirty, self._dirties, room)
        for column in self.columns:
            self._values[column.name] = column.grown(self._values[column.name], used, room)

    def _touch(self, entries: Array, revive: bool) -> None:
        log = self._log
        log.reserve(min(len(entries), self._index.size))
        self._dirties, logged, revived = kernels.touch(
            entries, self._marks, self._serial, self._dirty, self._dirties,
            log.entries, log.present, log.size, revive,
        )  # fmt: skip
        self._present += revived
        log.keep(logged, self._values)

    def _return_to(self, mark: _Mark) -> None:
        self._log.undo(mark.logged, self._values, self._marks)
        kernels.clear_dirty(self._dirty[mark.dirties : self._dirties], self._marks)
        self._cut_off(mark.size)
        self._dirties, self._present = mark.dirties, mark.present
        self._serial += 1

    def _cut_off(self, size: int) -> None:
        """Remove the entries from number `size` on."""
        new = slice(size, self._index.size)
        for column in self.columns:
            self._values[column.name][new] = column.nothing
        self._index.truncate(size)
        self._by_slot.cut_off(size)

    def _count_present(self) -> None:
        marks = self._marks[: self._index.size]
        self._present = int(np.count_nonzero(marks & kernels.PRESENT))

    def _begin_epoch(self) -> None:
        log = self._epochs[-1].log
        if log.size:
            kernels.clear_logged(log.entries[: log.size], self._marks)
        self.cuts += 1
        for column in self.columns:
            column.began()

    def _begin_round(self) -> None:
        self._savepoints.clear()
        self._base = self._here()
        self._serial += 1
        if self._serial >= _SERIALS:
            self._marks &= kernels.PRESENT | kernels.LOGGED
            self._serial = 1

    def _compact(self) -> None:
        """Drop dead entries if there are more of them than live ones; between rounds."""
        dead = self._index.size - self._present - sum(epoch.log.size for epoch in self._epochs)
        if dead > max(_FEW, self._present):
            self._keep(np.flatnonzero(self._needed()))
        self._begin_round()

    def _keep(self, entries: Array) -> None:
        """Keep only these entries, ascending, and renumber them; between rounds."""
        self.renumberings += 1
        values = {name: column[entries] for name, column in self._values.items()}
        marks = self._marks[entries] & ~kernels.DIRTY
        self._index.keep(entries)
        self._make_room()
        self._marks[: len(entries)] = marks
        self._count_present()
        for epoch in self._epochs:
            epoch.log.renumber(entries)
            epoch.size = int(np.searchsorted(entries, epoch.size))
        for column in self.columns:
            self._values[column.name][: len(entries)] = values[column.name]
            column.kept(self.held(column.name))

    def _objects(self, array: Array) -> int:
        array = array[: self._index.size]
        if array.dtype != object or not len(array):
            return 0
        sample = array[:: max(1, len(array) // 64)]
        return sum(map(sys.getsizeof, sample)) * len(array) // len(sample)


def columns_text(schema: pa.Schema) -> str:
    """Names and types of columns, for messages."""
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def check_savepoint(mark: int, savepoints: int) -> None:
    """Raise a `ProtocolError` if a savepoint is gone."""
    if not 0 <= mark < savepoints:
        raise ProtocolError(
            f"savepoint {mark} is gone",
            hint="undo to a savepoint of the current round, newest first",
        )


def check_sealed(sealed: bool, what: str) -> None:
    """Raise a `ProtocolError` if a table must be sealed for an operation and is not."""
    if not sealed:
        raise ProtocolError(
            f"cannot {what} in the middle of an epoch", hint="seal or roll back first"
        )


def check_between_rounds(between_rounds: bool, what: str) -> None:
    """Raise a `ProtocolError` if an operation is not allowed within a round."""
    if not between_rounds:
        raise ProtocolError(
            f"cannot {what} in the middle of a round", hint="step, seal or roll back first"
        )
