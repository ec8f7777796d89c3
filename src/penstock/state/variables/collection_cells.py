"""Cells of list and map state, which support changes in place, undo, and deltas of only the changes.

A cell is a key's list or map as of one call. The cells of one key share their elements. A change is made to
the shared elements, and older cells can undo it. So a call that changes one pair of a large map costs as
much as one pair. An older cell may be used again only when the newer ones are dropped, which is how undo
works: using it undoes the later changes.

The shared elements also record what changed since the last cut, so that a delta has only that part. The
record may include changes that were undone, but never misses one. It belongs to the elements, not to an
entry's number, so it stays correct when entries are removed and their numbers are used again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from penstock.errors import ProtocolError
from penstock.state.table.patches import SMALL

NEVER = sys.maxsize
"""Expiry time of a cell whose elements do not expire."""
_ABSENT = object()
_BEFORE = -1
"""Value of `born` for a cell from a file, which existed before any cut here."""


class Cuts:
    """The number of times a table was cut, sealed or rolled back. Changes before the last one are not in the
    next delta."""

    __slots__ = ("_noted", "count", "durable")

    def __init__(self) -> None:
        self.count = 0
        self.durable = 0
        """Count since which changes can be undone."""
        self._noted: list[_Changes] = []

    def noted(self, changes: _Changes) -> None:
        """Register changes that are cleared at the next cut."""
        self._noted.append(changes)

    def began(self) -> None:
        """Count a cut, and clear all registered changes (see `Column.began`)."""
        self.count += 1
        for changes in self._noted:
            changes.keys = {}
        self._noted.clear()

    def settled(self, cuts: int) -> None:
        """Set how many cuts the table can return to (see `Column.settled`)."""
        self.durable = self.count - cuts


class _Items:
    """The elements that the cells of a key's list share, and the range of them that existed at the last
    cut."""

    __slots__ = ("born", "cut", "end", "items", "start")

    def __init__(self, items: list[Any], born: int) -> None:
        self.items, self.born = items, born
        self.cut, self.start, self.end = born, 0, len(items)


class ListCell:
    """A range of a growing list. The cell itself is immutable."""

    __slots__ = ("_end", "_shared", "_start", "ends")

    def __init__(self, shared: _Items, start: int, end: int, ends: int) -> None:
        self._shared, self._start, self._end = shared, start, end
        self.ends = ends
        """Time in milliseconds before which no element expires."""

    @staticmethod
    def new(items: Iterable[Any], ends: int, cuts: Cuts | None) -> ListCell:
        """Create a list that shares nothing. Without `cuts`, it existed at the last cut already."""
        shared = _Items(list(items), _BEFORE if cuts is None else cuts.count)
        return ListCell(shared, 0, shared.end, ends)

    @property
    def items(self) -> list[Any]:
        """The elements, oldest first."""
        return self._shared.items[self._start : self._end]

    whole = items
    """Contents of the cell in a file."""

    def __len__(self) -> int:
        return self._end - self._start

    def __sizeof__(self) -> int:
        sample = self._shared.items[max(self._end - 1, 0) : self._end]
        return object.__sizeof__(self) + _size(sample, len(self))

    def appended(self, items: Sequence[Any], ends: int, cuts: Cuts) -> ListCell:
        """A cell with more elements at the end, which expire at `ends`."""
        cell = self._noted(cuts)
        del cell._shared.items[cell._end :]  # appended since, and undone
        cell._shared.items.extend(items)
        end = cell._end + len(items)
        return ListCell(cell._shared, cell._start, end, min(self.ends, ends))

    def living(self, now_ms: int, cuts: Cuts) -> ListCell | None:
        """A cell without expired elements; None if none are left. Elements are (row, end)."""
        items = self.items
        kept = [item for item in items if item[1] > now_ms]
        if not kept:
            return None
        ends = min(end for _, end in kept)
        cut = len(items) - len(kept)
        if any(end > now_ms for _, end in items[:cut]):
            return ListCell.new(kept, ends, cuts)
        cell = self._noted(cuts) if cut else self
        return ListCell(cell._shared, cell._start + cut, cell._end, ends)

    def patch(self, cuts: Cuts) -> tuple[list[Any], int] | None:
        """The elements appended since the last cut, and the number removed at the front; None if the list is
        better written as a whole."""
        shared = self._shared
        if shared.born == cuts.count or len(self) <= SMALL:
            return None
        if shared.cut != cuts.count:
            return [], 0
        added = shared.items[shared.end : self._end]
        if self._start >= shared.end or 2 * len(added) >= len(self):
            return None
        return added, self._start - shared.start

    def renew(self, cuts: Cuts) -> None:
        """Make the next delta have the whole list: it came from elsewhere since the last cut."""
        self._shared.born = cuts.count

    def close(self) -> ListCell:
        """End the call. Does nothing, since the cell is immutable."""
        return self

    def _noted(self, cuts: Cuts) -> ListCell:
        """This cell or a copy, with its range at the last cut recorded, before a change."""
        cell, shared = self, self._shared
        if shared.cut == cuts.count:
            return cell
        if 2 * self._start > self._end:  # more elements are removed than left
            shared = _Items(self.items, shared.born)
            cell = ListCell(shared, 0, shared.end, self.ends)
        shared.cut, shared.start, shared.end = cuts.count, cell._start, cell._end
        return cell


class _Changes:
    """The keys of a map that changed since a cut, each with whether it existed at that cut."""

    __slots__ = ("born", "cut", "keys")

    def __init__(self, born: int) -> None:
        self.born = self.cut = born
        self.keys: dict[Any, bool] = {}

    def note(self, key: Any, there: bool, cuts: Cuts) -> None:
        """Record that a key is about to change."""
        if self.born == cuts.count:
            return
        if self.cut != cuts.count:
            self.cut, self.keys = cuts.count, {}
            cuts.noted(self)
        self.keys.setdefault(key, there)


class _Pairs:
    """The pairs that the cells of a key's map share, and a log to undo the changes of newer cells.

    Keys are never removed here, so that undoing changes keeps the order of keys.
    """

    __slots__ = ("_epochs", "_first", "_log", "_pairs", "changes")

    def __init__(self, pairs: dict[Any, Any], changes: _Changes) -> None:
        self._pairs, self.changes = pairs, changes
        self._first = 0
        self._log: list[tuple[Any, Any]] = []
        self._epochs: list[tuple[int, int]] = []
        """(number of cuts, mark before the first change) of each epoch that has changes which can still be
        undone."""

    def at(self, mark: int) -> dict[Any, Any]:
        """The pairs as they were when the log had length `mark`. Later changes are undone for good."""
        log = self._log
        if self._first + len(log) != mark:
            if not self._first <= mark <= self._first + len(log):
                raise ProtocolError(
                    "a state of a map was used after it was dropped",
                    hint="this is a bug in Penstock: please report it",
                )
            while self._first + len(log) > mark:
                key, old = log.pop()
                if old is _ABSENT:
                    del self._pairs[key]
                else:
                    self._pairs[key] = old
        return self._pairs

    @property
    def nbytes(self) -> int:
        """Approximate size in bytes. Can be read from any cell, not only the newest."""
        sample = next(iter(self._pairs.items()), ())
        return sys.getsizeof(self._pairs) + _size(sample, len(self._pairs))

    def log(self, key: Any, mark: int, cuts: Cuts) -> int:
        """Log the value of a key at a mark, before it changes, and return the mark after the change."""
        pairs = self.at(mark)
        if not self._epochs or self._epochs[-1][0] != cuts.count:
            self._epochs = [(n, at) for n, at in self._epochs if n >= cuts.durable]
            self._epochs.append((cuts.count, mark))
            first = self._epochs[0][1]  # earlier changes cannot be undone any more
            del self._log[: first - self._first]
            self._first = first
        self._log.append((key, pairs.get(key, _ABSENT)))
        return mark + 1


class MapCell:
    """A map as of one call. Only the call that created the cell changes it."""

    __slots__ = ("_alone", "_mark", "_put", "_shared", "call", "ends")

    def __init__(self, shared: _Pairs, mark: int, call: int, ends: int) -> None:
        self._shared, self._mark = shared, mark
        self._alone = False
        """Whether no other cell shares the pairs, so that changes need not be logged."""
        self._put: set[Any] = set()
        """Keys that this call has put, which are already recorded and logged."""
        self.call = call
        self.ends = ends
        """Time in milliseconds before which no pair expires."""

    @staticmethod
    def new(pairs: dict[Any, Any], call: int, ends: int, cuts: Cuts | None) -> MapCell:
        """Create a map that shares nothing. Without `cuts`, it existed at the last cut already."""
        born = _BEFORE if cuts is None else cuts.count
        cell = MapCell(_Pairs(pairs, _Changes(born)), 0, call, ends)
        cell._alone = True
        return cell

    @property
    def pairs(self) -> dict[Any, Any]:
        """The pairs, valid until the next change. Do not modify."""
        return self._shared.at(self._mark)

    whole = pairs
    """Contents of the cell in a file."""

    def __len__(self) -> int:
        return len(self.pairs)

    def __sizeof__(self) -> int:
        return object.__sizeof__(self) + self._shared.nbytes

    def next(self, call: int) -> MapCell:
        """A cell of the same map that another call may change."""
        return MapCell(self._shared, self._mark, call, self.ends)

    def put(self, key: Any, value: Any, ends: int, cuts: Cuts) -> None:
        shared = self._shared
        pairs = shared.at(self._mark)
        if key not in self._put:
            shared.changes.note(key, key in pairs, cuts)
            if not self._alone:
                self._mark = shared.log(key, self._mark, cuts)
            self._put.add(key)
        pairs[key] = value
        if ends < self.ends:
            self.ends = ends

    def remove(self, keys: Iterable[Any], cuts: Cuts) -> None:
        """Remove these keys, which must exist."""
        pairs, changes = self.pairs, self._shared.changes
        if not self._alone:
            pairs = dict(pairs)
            self._shared, self._mark = _Pairs(pairs, changes), 0
            self._alone = True
        for key in keys:
            changes.note(key, True, cuts)
            del pairs[key]

    def living(self, now_ms: int, cuts: Cuts) -> MapCell | None:
        """A cell without expired pairs; None if none are left. Values are (row, end)."""
        pairs = self.pairs
        over = [key for key, (_, end) in pairs.items() if end <= now_ms]
        if len(over) == len(pairs):
            return None
        cell = self.next(self.call)
        if over:
            cell.remove(over, cuts)
        cell.ends = min(end for _, end in cell.pairs.values())
        return cell

    def renew(self, cuts: Cuts) -> None:
        """Make the next delta have the whole map: it came from elsewhere since the last cut."""
        self._shared.changes.born = cuts.count

    def close(self) -> MapCell:
        """End the call. The cell does not change any more."""
        self.call, self._put = -1, set()
        return self

    def patch(self, cuts: Cuts) -> tuple[list[tuple[Any, Any]], list[Any]] | None:
        """The pairs that changed and the keys that were removed since the last cut; None if the map is better
        written as a whole."""
        pairs, changes = self.pairs, self._shared.changes
        if changes.born == cuts.count or len(pairs) <= SMALL:
            return None
        changed = changes.keys if changes.cut == cuts.count else {}
        if 2 * len(changed) >= len(pairs):
            return None
        # Keys added since the last cut are the last ones. One of these that existed at the cut must be
        # removed first, so that it is again added after all others.
        last = {}
        for key in reversed(pairs):
            if key not in changed:
                break
            last[key] = pairs[key]
        part = [(key, pairs[key]) for key in changed if key in pairs and key not in last]
        part += reversed(last.items())
        gone = [
            key for key, there in changed.items() if there and (key not in pairs or key in last)
        ]
        return part, gone


def _size(sample: Iterable[Any], count: int) -> int:
    """Bytes of `count` elements like this sample."""
    return count * (16 + sum(map(_deep, sample)))


def _deep(value: Any) -> int:
    inner = sum(map(_deep, value)) if isinstance(value, (tuple, list)) else 0
    return sys.getsizeof(value) + inner
