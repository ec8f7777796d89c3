"""A step's state in parts, so that several workers can change it at the same time.

Slot s belongs to part s % parts, with all its entries. Each part is a table of its own, which only the
worker that has the part may change. `PartedTable` works on all parts, while no worker does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from penstock.state.arrays import Array, fixed_array, fixed_values, one_chunk
from penstock.state.keys.codec import KeyCodec, Keys, slots_of
from penstock.state.keys.slot_map import SlotMap
from penstock.state.table.table import (
    SLOT,
    ColumnTable,
    check_between_rounds,
    check_savepoint,
    check_sealed,
)


def part_numbers(slots: int, parts: int) -> Array:
    """The part of each slot, in a small integer type, which sorts fast.

    >>> part_numbers(slots=5, parts=2).tolist()
    [0, 1, 0, 1, 0]
    """
    return (np.arange(slots) % parts).astype(np.uint8 if parts <= 256 else np.uint16)


def by_part(numbers: Array, parts: int) -> tuple[Array, list[tuple[int, int, int]]]:
    """Order of rows by part, and (part, begin, end) in this order for each part that has rows.

    >>> order, runs = by_part(np.array([1, 0, 1], np.uint8), parts=3)
    >>> order.tolist(), runs
    ([1, 0, 2], [(0, 0, 1), (1, 1, 3)])
    """
    order = np.argsort(numbers, kind="stable")
    ends = np.cumsum(np.bincount(numbers, minlength=parts)).tolist()
    runs = zip(range(parts), [0, *ends], ends, strict=False)
    return order, [run for run in runs if run[1] < run[2]]


class PartedTable:
    """Several tables of one step as one. Entry e of part p has the number e * parts + p.

    Methods do the same as those of `ColumnTable`, in every part.

    >>> from penstock.state.table.columns import Column
    >>> codec = KeyCodec(pa.schema([("user", pa.int64())]))
    >>> parts = [ColumnTable(codec, [Column("n", pa.int64())], slots=16) for _ in range(4)]
    >>> table, users = PartedTable(parts), codec.encode(pa.record_batch({"user": [7, 8]}))
    >>> table.install(users, table.schema.empty_table())
    2
    >>> table.known(users).tolist(), table.find(users).tolist(), len(table)
    ([True, True], [-1, -1], 0)
    """

    def __init__(self, parts: Sequence[StepTable]) -> None:
        self.parts = tuple(parts)
        self.codec: KeyCodec = parts[0].codec
        self.slots: int = parts[0].slots
        self.schema: pa.Schema = parts[0].schema
        self._part_of = part_numbers(self.slots, len(parts))
        self._savepoints: list[tuple[int, ...]] = []

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    @property
    def renumberings(self) -> int:
        return sum(part.renumberings for part in self.parts)

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    @property
    def sealed(self) -> bool:
        return all(part.sealed for part in self.parts)

    @property
    def between_rounds(self) -> bool:
        return all(part.between_rounds for part in self.parts)

    # -- looking up

    def find(self, keys: Keys) -> Array:
        result = np.full(len(keys), -1, np.int64)
        for part, rows in self._keys_by_part(keys):
            entries = self.parts[part].find(keys.take(rows))
            result[rows] = np.where(entries < 0, -1, entries * len(self.parts) + part)
        return result

    def known(self, keys: Keys) -> Array:
        mask = np.zeros(len(keys), np.bool_)
        for part, rows in self._keys_by_part(keys):
            mask[rows] = self.parts[part].known(keys.take(rows))
        return mask

    def values(self, name: str, entries: Array) -> Array:
        result = np.empty(len(entries), self.parts[0].values(name, entries[:0]).dtype)
        for part, rows in self._entries_by_part(entries):
            result[rows] = self.parts[part].values(name, entries[rows] // len(self.parts))
        return result

    def entries_in(self, slots: Array) -> Array:
        """Present entries of these slots, part by part."""
        return self._numbered(part.entries_in(slots) for part in self.parts)

    def count_in(self, slots: Array) -> int:
        """Number of present entries in these slots."""
        return sum(part.count_in(slots) for part in self.parts)

    def touched(self) -> Array:
        """Entries touched in this round, part by part."""
        return self._numbered(part.touched() for part in self.parts)

    def least(self, name: str, above: int = 0, entries: Array | None = None) -> int | None:
        if entries is None:
            lowest = [part.least(name, above) for part in self.parts]
        else:
            lowest = [
                self.parts[part].least(name, above, entries[rows] // len(self.parts))
                for part, rows in self._entries_by_part(entries)
            ]
        return min((value for value in lowest if value is not None), default=None)

    # -- rows out and in

    def export(self, entries: Array) -> pa.Table:
        """All values of these entries, in the format of a delta and in this order."""
        tables, places = [self.schema.empty_table()], [np.empty(0, np.int64)]
        for part, rows in self._entries_by_part(entries):
            tables.append(self.parts[part].export(entries[rows] // len(self.parts)))
            places.append(rows)
        whole, place = pa.concat_tables(tables), np.concatenate(places)
        if (place[1:] > place[:-1]).all():
            return whole
        order = np.empty(len(place), np.int64)
        order[place] = np.arange(len(place))
        return whole.combine_chunks().take(fixed_array(order, pa.int64()))

    def delta(self, slots: Array | None = None) -> pa.Table:
        return pa.concat_tables([part.delta(slots) for part in self.parts])

    def load(self, table: pa.Table) -> None:
        check_sealed(self.sealed, "load")
        for part, rows in self._rows_by_part(table):
            self.parts[part].load(rows)
        self._savepoints.clear()

    def install(self, keys: Keys, table: pa.Table) -> int:
        rows = dict(self._rows_by_part(table))
        places = dict(self._keys_by_part(keys))
        none, no_rows = np.empty(0, np.int64), self.schema.empty_table()
        return sum(
            self.parts[part].install(keys.take(places.get(part, none)), rows.get(part, no_rows))
            for part in sorted({*rows, *places})
        )

    def put(self, table: pa.Table) -> None:
        for part, rows in self._rows_by_part(table):
            self.parts[part].put(rows)

    # -- slots come and go

    @property
    def slot_map(self) -> SlotMap:
        return self.parts[0].slot_map

    def split(self, slot_map: SlotMap) -> None:
        """Find entries by other slots from now on. A part has whole hash slots, with all their splits."""
        for part in self.parts:
            part.split(slot_map)

    def give_away(self, slots: Array) -> None:
        self._each(lambda part: part.give_away(slots))

    def drop(self, slots: Array) -> None:
        check_between_rounds(self.between_rounds, "drop")
        self._each(lambda part: part.drop(slots))

    def evict(self, nbytes: int) -> int:
        """Remove the least recently touched entries of each part from memory until about `nbytes` bytes are
        used. All parts shrink by the same ratio. Returns the number of removed entries."""
        check_between_rounds(self.between_rounds, "evict")
        share = min(1.0, nbytes / max(1, self.nbytes))
        gone = sum(part.evict(int(part.nbytes * share)) for part in self.parts)
        self._savepoints.clear()
        return gone

    # -- savepoints, of all parts at once

    def savepoint(self) -> int:
        """Create a savepoint in every part, and return its mark for `undo`."""
        self._savepoints.append(tuple(part.savepoint() for part in self.parts))
        return len(self._savepoints) - 1

    def undo(self, mark: int) -> None:
        """Return to a savepoint in every part. The mark stays valid."""
        check_savepoint(mark, len(self._savepoints))
        for part, part_mark in zip(self.parts, self._savepoints[mark], strict=True):
            part.undo(part_mark)
        del self._savepoints[mark + 1 :]

    def step(self) -> None:
        self._each(lambda part: part.step())

    def cut(self) -> None:
        self._each(lambda part: part.cut())

    def settle(self, cuts: int = 1) -> None:
        for part in self.parts:
            part.settle(cuts)

    def seal(self) -> None:
        self._each(lambda part: part.seal())

    def rollback(self) -> None:
        self._each(lambda part: part.rollback())

    def _each(self, call: Callable[[StepTable], None]) -> None:
        """Make a call on every part that invalidates savepoints."""
        for part in self.parts:
            call(part)
        self._savepoints.clear()

    # -- splitting by part

    def _numbered(self, entries_by_part: Iterable[Array]) -> Array:
        """Convert the entry numbers of each part to those of the whole table."""
        parts, numbered = len(self.parts), enumerate(entries_by_part)
        return np.concatenate([entries * parts + part for part, entries in numbered])

    def _keys_by_part(self, keys: Keys) -> Iterator[tuple[int, Array]]:
        return self._by_part(self._part_of[slots_of(keys.hashes, self.slots)])

    def _entries_by_part(self, entries: Array) -> Iterator[tuple[int, Array]]:
        return self._by_part((entries % len(self.parts)).astype(self._part_of.dtype))

    def _by_part(self, numbers: Array) -> Iterator[tuple[int, Array]]:
        order, runs = by_part(numbers, len(self.parts))
        return ((part, order[begin:end]) for part, begin, end in runs)

    def _rows_by_part(self, table: pa.Table) -> list[tuple[int, pa.Table]]:
        if not table.schema.equals(self.schema) or not table.num_rows:
            return [(0, table)]  # the part raises an error if the schema is wrong
        whole = table.combine_chunks()
        slots = fixed_values(one_chunk(whole.column(SLOT)))
        return [
            (part, whole.take(fixed_array(rows, pa.int64())))
            for part, rows in self._by_part(self._part_of[slots])
        ]


StepTable = ColumnTable | PartedTable
"""A step's state on a host. Entry numbers have a meaning only within the same table."""
