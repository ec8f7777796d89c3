"""The cells of list and map state: changed in place, undone all the same, and they know what
changed.

A cell is what a key's list or map is as of one call. The cells of one key share the elements: a
change goes into the shared ones, and the cells before it know how to get back from there. So a call
that changes one pair of a large map pays for one pair. An older cell may be taken up again only
when the newer ones are given up, which is how undo works: then what came after it is taken out.

What is shared also remembers what changed since the last cut, so that a delta can tell of that
part alone. It may remember too much, of changes that were undone, but never too little. Since it
goes with the elements, and not with an entry's number, it does not matter which entries were cut
off and used again in the meantime.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from penstock.errors import ProtocolError
from penstock.state.table.patches import SMALL

NEVER = sys.maxsize
"""The end of a cell whose elements do not expire."""
_ABSENT = object()
_BEFORE = -1
"""Stands for all cuts before the cell came here."""


class Cuts:
    """How often a table was cut, sealed or rolled back: what changed before is not in the next delta."""

    __slots__ = ("_noted", "count", "durable")

    def __init__(self) -> None:
        self.count = 0
        self.durable = 0
        """The count since which changes can be taken back."""
        self._noted: list[_Changes] = []

    def noted(self, changes: _Changes) -> None:
        """These changes are to be forgotten at the next cut."""
        self._noted.append(changes)

    def began(self) -> None:
        """See `Column.began`."""
        self.count += 1
        for changes in self._noted:
            changes.keys = {}
        self._noted.clear()

    def settled(self, cuts: int) -> None:
        """See `Column.settled`."""
        self.durable = self.count - cuts


class _Items:
    """The elements that the cells of a key's list share, and the part that was there at the last
    cut."""

    __slots__ = ("born", "cut", "end", "items", "start")

    def __init__(self, items: list[Any], born: int) -> None:
        self.items, self.born = items, born
        self.cut, self.start, self.end = born, 0, len(items)


class ListCell:
    """A piece of a growing list. A cell itself never changes."""

    __slots__ = ("_end", "_shared", "_start", "ends")

    def __init__(self, shared: _Items, start: int, end: int, ends: int) -> None:
        self._shared, self._start, self._end = shared, start, end
        self.ends = ends
        """No element expires before this time."""

    @staticmethod
    def new(items: Iterable[Any], ends: int, cuts: Cuts | None) -> ListCell:
        """A list of its own; without `cuts` it was there at the last cut already."""
        shared = _Items(list(items), _BEFORE if cuts is None else cuts.count)
        return ListCell(shared, 0, shared.end, ends)

    @property
    def items(self) -> list[Any]:
        """The elements, the oldest first."""
        return self._shared.items[self._start : self._end]

    whole = items
    """What a file holds of the cell."""

    def __len__(self) -> int:
        return self._end - self._start

    def __sizeof__(self) -> int:
        sample = self._shared.items[max(self._end - 1, 0) : self._end]
        return object.__sizeof__(self) + _size(sample, len(self))

    def appended(self, items: Sequence[Any], ends: int, cuts: Cuts) -> ListCell:
        """With more elements at the end, which expire at `ends`."""
        cell = self._noted(cuts)
        del cell._shared.items[cell._end :]  # what was appended since, and undone
        cell._shared.items.extend(items)
        end = cell._end + len(items)
        return ListCell(cell._shared, cell._start, end, min(self.ends, ends))

    def living(self, now_ms: int, cuts: Cuts) -> ListCell | None:
        """Without what has expired; None when nothing is left. Elements are (row, end)."""
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
        """What was appended since the last cut, and how many were taken from the front; None when
        the list is better written whole."""
        shared = self._shared
        if shared.born == cuts.count or len(self) <= SMALL:
            return None
        if shared.cut != cuts.count:
            return [], 0
        added = shared.items[shared.end : self._end]
        if self._start >= shared.end or 2 * len(added) >= len(self):
            return None
        return added, self._start - shared.start

    def close(self) -> ListCell:
        """The call is over. Nothing is left to do: a cell itself never changes."""
        return self

    def _noted(self, cuts: Cuts) -> ListCell:
        """This cell, or one like it, about to change: what it was at the last cut is known."""
        cell, shared = self, self._shared
        if shared.cut == cuts.count:
            return cell
        if 2 * self._start > self._end:  # more is gone than there is
            shared = _Items(self.items, shared.born)
            cell = ListCell(shared, 0, shared.end, self.ends)
        shared.cut, shared.start, shared.end = cuts.count, cell._start, cell._end
        return cell


class _Changes:
    """The keys of a map that changed since a cut, each with whether it was there at that cut."""

    __slots__ = ("born", "cut", "keys")

    def __init__(self, born: int) -> None:
        self.born = self.cut = born
        self.keys: dict[Any, bool] = {}

    def note(self, key: Any, there: bool, cuts: Cuts) -> None:
        """The key is about to change."""
        if self.born == cuts.count:
            return
        if self.cut != cuts.count:
            self.cut, self.keys = cuts.count, {}
            cuts.noted(self)
        self.keys.setdefault(key, there)


class _Pairs:
    """The pairs that cells of a key's map share, and a log of what the newer ones changed.

    No key is ever removed: undone changes leave every key in its place.
    """

    __slots__ = ("_epochs", "_first", "_log", "_pairs", "changes")

    def __init__(self, pairs: dict[Any, Any], changes: _Changes) -> None:
        self._pairs, self.changes = pairs, changes
        self._first = 0
        self._log: list[tuple[Any, Any]] = []
        self._epochs: list[tuple[int, int]] = []
        """The count of cuts, and the mark before the first change after it: of each epoch in which
        something changed, as far as changes can be taken back."""

    def at(self, mark: int) -> dict[Any, Any]:
        """The pairs as they were when the log was `mark` long. What came later is undone for good."""
        log = self._log
        if self._first + len(log) != mark:
            if not self._first <= mark <= self._first + len(log):
                raise ProtocolError(
                    "a map was asked for a state of it that was given up",
                    hint="this is a mistake in Penstock: please report it",
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
        """About how large it is now. Any cell may ask, also one that is not the newest."""
        sample = next(iter(self._pairs.items()), ())
        return sys.getsizeof(self._pairs) + _size(sample, len(self._pairs))

    def log(self, key: Any, mark: int, cuts: Cuts) -> int:
        """Keep what a key has at a mark, before it changes; returns the mark after the change."""
        pairs = self.at(mark)
        if not self._epochs or self._epochs[-1][0] != cuts.count:
            self._epochs = [(n, at) for n, at in self._epochs if n >= cuts.durable]
            self._epochs.append((cuts.count, mark))
            first = self._epochs[0][1]  # nobody goes back behind it
            del self._log[: first - self._first]
            self._first = first
        self._log.append((key, pairs.get(key, _ABSENT)))
        return mark + 1


class MapCell:
    """A map as of one call: only the call that made the cell changes it."""

    __slots__ = ("_alone", "_mark", "_put", "_shared", "call", "ends")

    def __init__(self, shared: _Pairs, mark: int, call: int, ends: int) -> None:
        self._shared, self._mark = shared, mark
        self._alone = False
        """No other cell shares the pairs: nothing has to be logged."""
        self._put: set[Any] = set()
        """The keys that this call has put, each of them noted and logged."""
        self.call = call
        self.ends = ends
        """No pair expires before this time."""

    @staticmethod
    def new(pairs: dict[Any, Any], call: int, ends: int, cuts: Cuts | None) -> MapCell:
        """A map of its own; without `cuts` it was there at the last cut already."""
        born = _BEFORE if cuts is None else cuts.count
        cell = MapCell(_Pairs(pairs, _Changes(born)), 0, call, ends)
        cell._alone = True
        return cell

    @property
    def pairs(self) -> dict[Any, Any]:
        """The pairs, to look at until the next change."""
        return self._shared.at(self._mark)

    whole = pairs
    """What a file holds of the cell."""

    def __len__(self) -> int:
        return len(self.pairs)

    def __sizeof__(self) -> int:
        return object.__sizeof__(self) + self._shared.nbytes

    def next(self, call: int) -> MapCell:
        """The same map, for another call to change."""
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
        """Take out these keys, which are there."""
        pairs, changes = self.pairs, self._shared.changes
        if not self._alone:
            pairs = dict(pairs)
            self._shared, self._mark = _Pairs(pairs, changes), 0
            self._alone = True
        for key in keys:
            changes.note(key, True, cuts)
            del pairs[key]

    def living(self, now_ms: int, cuts: Cuts) -> MapCell | None:
        """Without what has expired; None when nothing is left. Values are (row, end)."""
        pairs = self.pairs
        over = [key for key, (_, end) in pairs.items() if end <= now_ms]
        if len(over) == len(pairs):
            return None
        cell = self.next(self.call)
        if over:
            cell.remove(over, cuts)
        cell.ends = min(end for _, end in cell.pairs.values())
        return cell

    def close(self) -> MapCell:
        """The call is over: the cell does not change any more."""
        self.call, self._put = -1, set()
        return self

    def patch(self, cuts: Cuts) -> tuple[list[tuple[Any, Any]], list[Any]] | None:
        """The pairs that changed since the last cut and the keys gone since then; None when the
        map is better written whole."""
        pairs, changes = self.pairs, self._shared.changes
        if changes.born == cuts.count or len(pairs) <= SMALL:
            return None
        changed = changes.keys if changes.cut == cuts.count else {}
        if 2 * len(changed) >= len(pairs):
            return None
        # Keys put in since the last cut are the last ones. To come behind all others again, a key
        # among these that was there at the cut has to go first.
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
    """Bytes of `count` elements, if all were like this one."""
    return count * (16 + sum(map(_deep, sample)))


def _deep(value: Any) -> int:
    inner = sum(map(_deep, value)) if isinstance(value, (tuple, list)) else 0
    return sys.getsizeof(value) + inner
