"""Undo logs of a table: old values of entries, in the order in which they were touched.

A table has one log for the current round, which has an entry once per savepoint, and one for each epoch
that is not durable, which has an entry once, as it was when the epoch began.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from penstock.state.arrays import Array, grown, more
from penstock.state.table import kernels
from penstock.state.table.columns import Column

_KEPT = 1 << 18
"""Number of rows whose memory is kept for the next epoch."""


class UndoLog:
    """A log of rows (entry, was it present, its old value in each column), undone from the end.

    The table's kernel appends entries. Then `keep` copies their values, before they change.
    """

    size: int
    """Number of rows in the log."""
    entries: Array
    """Entry of each row (int32), with spare room beyond `size`."""
    present: Array
    """Whether each row's entry was present (uint8), with spare room beyond `size`."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._place = np.zeros(0, np.int32)
        self._release()

    @property
    def arrays(self) -> list[Array]:
        """All arrays of the log, for memory accounting."""
        return [self.entries, self.present, self._place, *self._values.values()]

    def values(self, name: str) -> Array:
        """Old values of a column, one per row."""
        return self._values[name][: self.size]

    def reserve(self, rows: int) -> None:
        """Make room for `rows` more rows."""
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
        """Copy the live values of the entries that the kernel has just appended, up to `size`."""
        added = slice(self.size, size)
        if size > self.size:
            for name, values in self._values.items():
                # "clip" saves a copy in numpy; all entries are in range.
                np.take(live[name], self.entries[added], 0, values[added], "clip")
        self.size = size

    def take_over(self, other: UndoLog, dirty: Array, marks: Array) -> None:
        """Add the dirty entries that are not here yet, as they were when the other log was empty, and mark
        them as logged. Marks all dirty entries as clean."""
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
        """Keep only these entries, ascending, renumbered in this order."""
        old = self.entries[: self.size]
        at = np.searchsorted(kept, old)
        still = kept[np.minimum(at, len(kept) - 1)] == old if len(kept) else np.zeros(len(at), bool)
        size = int(np.count_nonzero(still))
        self.entries[:size] = at[still]
        for array in (self.present, *self._values.values()):
            array[:size] = array[: self.size][still]
        self._let_go(size)

    def undo(self, size: int, live: Mapping[str, Array], marks: Array) -> None:
        """Restore the old values, and remove all rows but the first `size`."""
        undone = slice(size, self.size)
        entries = self.entries[undone]
        kernels.restore_present(entries, self.present[undone], marks)
        for name, values in self._values.items():
            # In reverse order, so that an entry logged several times ends with its oldest value.
            live[name][entries[::-1]] = values[undone][::-1]
        self._let_go(size)

    def logged(self, name: str, entries: Array, marks: Array, now: Array) -> Array:
        """Logged values of a column for these entries; values from `now` for entries that are not logged."""
        rows = kernels.logged_rows(entries, marks, self.entries[: self.size], self._places(marks))
        logged = rows >= 0
        now[logged] = self._values[name][rows[logged]]
        return now

    def before(self, name: str, entries: Array, live: Array, marks: Array) -> Array:
        """Values of a column for these entries when the log was empty; zero or None for new entries."""
        rows = self._first_rows(entries, marks)
        values: Array = live[entries]
        logged = rows >= 0
        values[logged] = self._values[name][rows[logged]]
        values[rows == kernels.WAS_NOT] = None if values.dtype == object else 0
        return values

    def was_present(self, entries: Array, marks: Array) -> Array:
        """A mask of the entries that were present when the log was empty."""
        rows = self._first_rows(entries, marks)
        present: Array = (marks[entries] & kernels.PRESENT) != 0
        logged = rows >= 0
        present[logged] = self.present[rows[logged]] != 0
        present[rows == kernels.WAS_NOT] = False
        return present

    def clear(self) -> None:
        """Remove all rows. Releases the memory if it is large."""
        if len(self.entries) <= _KEPT:
            self._let_go(0)
        else:
            self._release()

    def _first_rows(self, entries: Array, marks: Array) -> Array:
        log, place = self.entries[: self.size], self._places(marks)
        rows: Array = kernels.first_rows(entries, marks, log, place)
        return rows

    def _places(self, marks: Array) -> Array:
        """Scratch array with room for one number per entry."""
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
