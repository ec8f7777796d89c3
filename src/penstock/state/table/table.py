"""The table: keyed columnar state of one step on one host, with savepoints, undo and deltas.

Entries are dense numbers (see `key_index`); each column is an array indexed by entry. An operator
asks for the entries of a batch's keys, then changes the columns in place. Beneath it:

- a *log* keeps the old values of entries touched since the last seal, once per savepoint, so a
  failed channel is undone and a failed epoch rolled back; new entries are cut off at the end;
- *dirty* marks say which entries the next delta holds;
- a removed entry stays as a dead one, for the delta must tell of it, until a later seal drops it.

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
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from penstock.errors import CheckpointError, ProtocolError
from penstock.state.arrays import Array, fixed_array, grown, indices
from penstock.state.keys.codec import KeyCodec, Keys, slots_of
from penstock.state.keys.index import key_index
from penstock.state.table import kernels
from penstock.state.table.columns import Column
from penstock.state.table.undo_log import UndoLog

HASH, KEY, SLOT, PRESENT = "__hash", "__key", "__slot", "__present"
_FEW = 1024
"""Dead entries that are never worth a compaction."""
_SERIALS = 1 << 28
"""Savepoints until the stamps of entries start again, to fit beside the other bits of a mark."""


class _Mark(NamedTuple):
    """Where the table stood: how many entries were logged, there, dirty and present."""

    logged: int
    size: int
    dirties: int
    present: int


class ColumnTable:
    """Keyed state with savepoints. Single-threaded; entries stay valid until `seal` or `drop`."""

    schema: pa.Schema
    """The schema of `delta` and `export`: __hash, __key, __slot, __present, then the columns."""
    renumberings: int
    """How often entries were numbered anew: whoever holds entry numbers looks them up again."""

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
        self._present = self._dirties = self.renumberings = 0
        self._serial = 1
        self._savepoints: list[_Mark] = []
        self._base = _Mark(0, 0, 0, 0)
        self._log = UndoLog(self.columns)
        self._away = np.zeros(slots, np.bool_)

    # -- reading and changing entries

    def __len__(self) -> int:
        """Number of entries present."""
        return self._present

    def find(self, keys: Keys) -> Array:
        """The entry of each key, -1 where none is present."""
        entries = self._index.find(keys)
        if self._present < self._index.size:
            dead = (self._marks[entries] & kernels.PRESENT) == 0
            entries[dead] = -1
        return entries

    def upsert(self, keys: Keys) -> Array:
        """The entry of each key, made where there is none; all of them are touched.

        New entries hold zero or None in every column.
        """
        before = self._index.size
        entries = self._follow_upsert(keys)
        self._marks[before : self._index.size] = self._serial * kernels.STAMP | kernels.NEW
        self._touch(entries, True)
        return entries

    def touch(self, entries: Array) -> None:
        """Must be called before columns of these entries change: logs what undo needs."""
        self._touch(indices(entries), False)

    def column(self, name: str) -> Array:
        """The live values of a column, by entry. Valid until the next upsert; touch, then write."""
        return self._values[name][: self._index.size]

    def values(self, name: str, entries: Array) -> Array:
        """The values of a column in these entries, copied."""
        copied: Array = self._values[name][entries]
        return copied

    def remove(self, entries: Array) -> None:
        """Make these entries not present. A later upsert of such a key revives it as a new one."""
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

    # -- as of the last seal

    def before(self, name: str, entries: Array) -> Array:
        """Values of a column as of the last seal: zero or None where no entry was present then."""
        return self._log.before(name, indices(entries), self._values[name], self._marks)

    def was_present(self, entries: Array) -> Array:
        """Whether each of these entries was present at the last seal (bool)."""
        return self._log.was_present(indices(entries), self._marks)

    # -- savepoints

    def savepoint(self) -> int:
        """A mark to return to. `seal` and `rollback` forget it, and undoing an earlier one too."""
        self._savepoints.append(self._here())
        self._serial += 1
        return len(self._savepoints) - 1

    def undo(self, mark: int) -> None:
        """Back to the savepoint: values, inserts, removes and dirty marks. The mark stays valid."""
        check_savepoint(mark, len(self._savepoints))
        self._return_to(self._savepoints[mark])
        del self._savepoints[mark + 1 :]

    def rollback(self) -> None:
        """Back to the last seal."""
        self._return_to(self._base)
        self._savepoints.clear()
        for column in self.columns:
            column.settled()

    def seal(self) -> None:
        """The changes are durable: forget log and dirty marks; drop dead entries that prevail."""
        kernels.clear_dirty(self._dirty[: self._dirties], self._marks)
        self._dirties = 0
        self._log.clear()
        self._settle()

    @property
    def sealed(self) -> bool:
        """Whether nothing has changed since the last seal."""
        return self._here() == self._base

    # -- moving entries in and out

    def touched(self) -> Array:
        """The entries touched since the last seal, in order of first touch, also removed ones."""
        return self._dirty[: self._dirties].astype(np.int64)

    def delta(self) -> pa.Table:
        """What changed in the touched entries; columns are null where an entry is not present."""
        entries, base = self.touched(), self._base.size
        return self._rows(entries, lambda c, *cells: c.delta_arrays(*cells, entries, base))

    def export(self, entries: Array) -> pa.Table:
        """These entries whole, in the form of a delta."""
        return self._rows(indices(entries), lambda c, *cells: c.to_arrays(*cells))

    def load(self, table: pa.Table) -> None:
        """Take in whole rows, later rows win, as if they had always been there."""
        check_sealed(self.sealed, "load")
        self._check(table)
        self._fill(self._follow_upsert(self.codec.from_storage(table.column(KEY))), table)
        self._present = int(np.count_nonzero(self._marks[: self._index.size] & kernels.PRESENT))
        self._settle()

    def known(self, keys: Keys) -> Array:
        """Which keys have an entry here, present or known to be absent."""
        mask: Array = self._index.find(keys) >= 0
        return mask

    def install(self, keys: Keys, table: pa.Table) -> int:
        """Take in what another copy of the state holds of keys that have no entry here.

        All of these keys are known afterwards: those without a row in `table` as absent. Allowed in
        the middle of an epoch. What is installed is clean: the next delta does not tell of it, and
        a rollback may forget it, so that it has to be installed again. Returns how many are new.
        """
        self._check(table)
        was_sealed = self.sealed
        before = self._index.size
        self._follow_upsert(keys)
        rows = self._follow_upsert(self.codec.from_storage(table.column(KEY)))
        # a stamp of zero: the first touch logs the entry as it is now
        self._marks[before : self._index.size] = 0
        new = rows >= before
        if not new.all():
            table, rows = table.filter(fixed_array(new, pa.bool_())), rows[new]
        self._fill(rows, table)
        self._present += int(np.count_nonzero(self._marks[before : self._index.size]))
        if was_sealed:
            self._base = self._here()
        return self._index.size - before

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
                f"the stored state has columns {columns_text(table.schema)}, "
                f"the flow's step has {columns_text(self.schema)}",
                hint="run the flow that wrote the checkpoint, or start in a new folder",
            )

    def entries_in(self, slots: Array) -> Array:
        """The present entries of these slots."""
        return np.flatnonzero(self._in(slots) & self.present(self._all()))

    def give_away(self, slots: Array) -> None:
        """From now on the entries of these slots, and no others, are a copy that others may read."""
        self._away = np.zeros(self.slots, np.bool_)
        self._away[slots] = True

    def own(self, entries: Array) -> Array:
        """The entries among these whose slot was not given away."""
        if not self._away.any() or not len(entries):
            return entries
        return entries[~self._away[slots_of(self._index.hashes(entries), self.slots)]]

    def drop(self, slots: Array) -> None:
        """Forget everything of these slots: they have moved away. Entry numbers change."""
        check_sealed(self.sealed, "drop")
        inside = self._in(slots)
        if inside.any():
            self._keep(np.flatnonzero(~inside & self.present(self._all())))
            self._settle()

    def evict(self, nbytes: int) -> int:
        """Forget entries, least recently touched first, until about `nbytes` are held.

        Entry numbers change. Returns how many are gone."""
        check_sealed(self.sealed, "evict")
        before = self._present
        for column in self.columns:
            column.kept(self._values[column.name][: self._index.size])
        entries = np.flatnonzero(self.present(self._all()))
        kept = int(before * min(1.0, nbytes / max(1, self.nbytes)))
        if kept < before:
            newest = np.argpartition(-self._marks[entries], kept)[:kept]
            entries = entries[np.sort(newest)]
        self._keep(entries)
        self._settle()
        return before - self._present

    @property
    def nbytes(self) -> int:
        """Bytes held, slack and log included; objects are estimated from a sample."""
        arrays = [self._marks, self._dirty, *self._values.values(), *self._log.arrays]
        held = self._index.nbytes + sum(column.held_bytes for column in self.columns)
        return held + sum(array.nbytes + self._objects(array) for array in arrays)

    # -- how it works

    def _here(self) -> _Mark:
        return _Mark(self._log.size, self._index.size, self._dirties, self._present)

    def _all(self) -> Array:
        return np.arange(self._index.size)

    def _in(self, slots: Array) -> Array:
        wanted = np.zeros(self.slots, np.bool_)
        wanted[slots] = True
        mask: Array = wanted[slots_of(self._index.hashes(self._all()), self.slots)]
        return mask

    def _make_room(self) -> None:
        room = self._index.room
        self._marks = np.zeros(room, np.int32)
        self._dirty = np.zeros(room, np.int32)
        self._values = {column.name: column.empty(room) for column in self.columns}

    def _follow(self, used: int) -> None:
        """Grow along with the index, which has just grown beyond `used` entries."""
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
        new = slice(mark.size, self._index.size)
        for column in self.columns:
            self._values[column.name][new] = column.nothing
        kernels.clear_dirty(self._dirty[mark.dirties : self._dirties], self._marks)
        self._index.truncate(mark.size)
        self._dirties, self._present = mark.dirties, mark.present
        self._serial += 1

    def _settle(self) -> None:
        """This is now the sealed version."""
        dead = self._index.size - self._present
        if dead > max(_FEW, self._present):
            self._keep(np.flatnonzero(self.present(self._all())))
        self._savepoints.clear()
        for column in self.columns:
            column.settled()
        self._base = self._here()
        self._serial += 1
        if self._serial >= _SERIALS:
            self._marks &= kernels.PRESENT
            self._serial = 1

    def _keep(self, entries: Array) -> None:
        self.renumberings += 1
        values = {name: column[entries] for name, column in self._values.items()}
        marks = self._marks[entries] & ~kernels.DIRTY
        self._index.keep(entries)
        self._make_room()
        for column in self.columns:
            self._values[column.name][: len(entries)] = values[column.name]
            column.kept(self._values[column.name][: len(entries)])
        self._marks[: len(entries)] = marks
        self._present = len(entries)

    def _objects(self, array: Array) -> int:
        if array.dtype != object or not self._index.size:
            return 0
        sample = array[: self._index.size][:: max(1, self._index.size // 64)]
        return sum(map(sys.getsizeof, sample)) * self._index.size // max(1, len(sample))


def columns_text(schema: pa.Schema) -> str:
    """The names and types of columns, for messages."""
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def check_savepoint(mark: int, savepoints: int) -> None:
    """Refuse to undo to a savepoint that is gone."""
    if not 0 <= mark < savepoints:
        raise ProtocolError(
            f"savepoint {mark} is gone",
            hint="undo to a savepoint made since the last seal, the newest first",
        )


def check_sealed(sealed: bool, what: str) -> None:
    """Refuse what only a sealed table can do."""
    if not sealed:
        raise ProtocolError(
            f"cannot {what} in the middle of an epoch", hint="seal or roll back first"
        )
