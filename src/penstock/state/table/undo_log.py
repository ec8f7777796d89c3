"""The undo logs of a table: old values of entries, in the order in which they were touched.

A table has one for the round under way, in which an entry stands once per savepoint, and one for each
epoch that is not durable, in which it stands once: as it was when the epoch began.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from penstock.state.arrays import Array, grown, more
from penstock.state.table import kernels
from penstock.state.table.columns import Column

_KEPT = 1 << 18
"""Rows of memory that are kept from one epoch to the next."""


class UndoLog:
    """Rows of (entry, was it present, its old value in each column), undone from the end.

    The table's kernel appends entries; then `keep` copies their values, before they change.
    """

    size: int
    """Rows in the log."""
    entries: Array
    """int32, longer than `size`."""
    present: Array
    """uint8, longer than `size`."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._place = np.zeros(0, np.int32)
        self._release()

    @property
    def arrays(self) -> list[Array]:
        """All the memory that it holds."""
        return [self.entries, self.present, self._place, *self._values.values()]

    def values(self, name: str) -> Array:
        """The old values of a column, one for each row."""
        return self._values[name][: self.size]

    def reserve(self, rows: int) -> None:
        """Make room for as many more rows."""
        room = self.size + rows
        if room <= len(self.entries):
            return
        room = max(room, more(len(self.entries)))
        self.entries = grown(self.entries, self.size, room)
        self.present = grown(self.present, self.size, room)
        for column in self._columns:
            old = self._values[column.name]
            self._values[column.name] = column.grown(old, self.size, room)

    def keep(self, size: int, live: Mapping[str, Array]) -> None:
        """Copy the live values of the entries that the kernel has just put down, up to `size`."""
        added = slice(self.size, size)
        if size > self.size:
            for name, values in self._values.items():
                # "clip" spares numpy a copy; all entries are in range.
                np.take(live[name], self.entries[added], 0, values[added], "clip")
        self.size = size

    def take_over(self, other: UndoLog, dirty: Array, marks: Array) -> None:
        """Take the dirty entries that are not here yet as they were when the other log was empty; they
        are marked as logged, and all of them as clean."""
        self.reserve(len(dirty))
        rows = np.empty(len(dirty), np.int64)
        size, new = kernels.take_over(
            dirty, other.entries, other.present, marks,
            self.entries, self.present, self.size, rows,
        )  # fmt: skip
        added, rows = slice(self.size, size), rows[: size - self.size]
        if len(rows):
            for name, values in self._values.items():
                np.take(other._values[name], rows, 0, values[added], "clip")
                if new:
                    values[added][rows < 0] = None if values.dtype == object else 0
        self.size = size

    def renumber(self, kept: Array) -> None:
        """Only these entries, ascending, are left, and are numbered anew in this order."""
        old = self.entries[: self.size]
        at = np.searchsorted(kept, old)
        still = kept[np.minimum(at, len(kept) - 1)] == old if len(kept) else np.zeros(len(at), bool)
        size = int(np.count_nonzero(still))
        self.entries[:size] = at[still]
        for held in (self.present, *self._values.values()):
            held[:size] = held[: self.size][still]
        self._let_go(size)

    def undo(self, size: int, live: Mapping[str, Array], marks: Array) -> None:
        """Put the old values back, and forget all rows but the first `size`."""
        undone = slice(size, self.size)
        entries = self.entries[undone]
        kernels.restore_present(entries, self.present[undone], marks)
        for name, values in self._values.items():
            # Backwards: an entry that was logged several times gets its oldest value last.
            live[name][entries[::-1]] = values[undone][::-1]
        self._let_go(size)

    def logged(self, name: str, entries: Array, marks: Array, now: Array) -> Array:
        """What is logged of a column for these entries, or what it is `now` for those that are not."""
        rows = kernels.logged_rows(entries, marks, self.entries[: self.size], self._places(marks))
        logged = rows >= 0
        now[logged] = self._values[name][rows[logged]]
        return now

    def before(self, name: str, entries: Array, live: Array, marks: Array) -> Array:
        """What a column held for these entries when the log was empty: zero or None for new ones."""
        rows = self._first_rows(entries, marks)
        values: Array = live[entries]
        logged = rows >= 0
        values[logged] = self._values[name][rows[logged]]
        values[rows == kernels.WAS_NOT] = None if values.dtype == object else 0
        return values

    def was_present(self, entries: Array, marks: Array) -> Array:
        """Whether these entries were present when the log was empty (bool)."""
        rows = self._first_rows(entries, marks)
        present: Array = (marks[entries] & kernels.PRESENT) != 0
        logged = rows >= 0
        present[logged] = self.present[rows[logged]] != 0
        present[rows == kernels.WAS_NOT] = False
        return present

    def clear(self) -> None:
        """Forget all rows; memory beyond a bound is released."""
        if len(self.entries) <= _KEPT:
            self._let_go(0)
        else:
            self._release()

    def _first_rows(self, entries: Array, marks: Array) -> Array:
        log, place = self.entries[: self.size], self._places(marks)
        rows: Array = kernels.first_rows(entries, marks, log, place)
        return rows

    def _places(self, marks: Array) -> Array:
        """Room for a number per entry."""
        if len(self._place) < len(marks):
            self._place = np.empty(len(marks), np.int32)
        return self._place

    def _let_go(self, size: int) -> None:
        for column in self._columns:
            if column.dtype == object:
                self._values[column.name][size : self.size] = None
        self.size = size

    def _release(self) -> None:
        self.size = 0
        self.entries, self.present = np.zeros(0, np.int32), np.zeros(0, np.uint8)
        self._values = {column.name: column.empty(0) for column in self._columns}
