"""Shared memory that workers use without locks: counters, flags, cells and queues.

CPython has no atomic integers. But a call into C that neither runs Python code nor releases the
interpreter lock is atomic: no other thread runs between its beginning and its end. Each operation
here is one such call (plus arithmetic on values that only the calling thread has):

    counter     a seek relative to the position of an (empty) `BytesIO`: adds, returns the sum
    flag        a `heapreplace` on a heap of one: stores a value, returns the previous one
    cells       item access of a list
    queue       append and popleft of a deque

Data structures get these from an `Atomics` object. Tests pass another one, which records or interleaves
each access to shared memory.
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable
from functools import partial
from heapq import heapreplace
from operator import setitem
from typing import Any, Final


class Empty:
    """The type of `EMPTY`, which stands for no value in a cell or a queue (None is a normal value)."""

    def __repr__(self) -> str:
        return "EMPTY"


EMPTY: Final = Empty()


class Counter:
    """An integer that is never below zero."""

    __slots__ = ("_seek", "load")

    def __init__(self, value: int) -> None:
        position = io.BytesIO()
        position.seek(value)
        self._seek = position.seek
        self.load: Callable[[], int] = position.tell
        """Return the current value."""

    def fetch_add(self, number: int) -> int:
        """Add `number`, which may be negative. Returns the previous value."""
        return self._seek(number, 1) - number


class Flag:
    """A flag that one thread sets at a time, and that the same thread clears."""

    __slots__ = ("clear", "test_and_set")

    def __init__(self) -> None:
        heap = [False]
        self.test_and_set: Callable[[], bool] = partial(heapreplace, heap, True)
        """Set the flag and return whether it was set before. Never blocks."""
        self.clear: Callable[[], object] = partial(heapreplace, heap, False)
        """Clear the flag. Only the thread that set it may do that."""


class AtomicCells:
    """A fixed number of cells for values, all `EMPTY` at first."""

    __slots__ = ("load", "store")

    def __init__(self, size: int) -> None:
        values: list[Any] = [EMPTY] * size
        self.load: Callable[[int], Any] = values.__getitem__
        """Return the value of a cell, or `EMPTY`."""
        self.store: Callable[[int, Any], None] = partial(setitem, values)
        """Store a value, or `EMPTY`, in a cell."""


class Queue:
    """An unbounded first-in first-out queue, for any number of producers and consumers."""

    __slots__ = ("_popleft", "_values", "put")

    def __init__(self) -> None:
        self._values: deque[Any] = deque()
        self._popleft = self._values.popleft
        self.put: Callable[[Any], None] = self._values.append
        """Append a value."""

    def take(self) -> Any:
        """Remove and return the first value; `EMPTY` if there is none."""
        try:
            return self._popleft()
        except IndexError:
            return EMPTY

    def peek(self) -> Any:
        """Return the first value without removing it; `EMPTY` if there is none. Another thread may take
        it at any time."""
        try:
            return self._values[0]
        except IndexError:
            return EMPTY

    def __len__(self) -> int:
        return len(self._values)


class Atomics:
    """Creates the objects that workers share.

    >>> atomics = Atomics()
    >>> counter, flag, cells, queue = (
    ...     atomics.counter(3), atomics.flag(), atomics.cells(2), atomics.queue()
    ... )
    >>> counter.fetch_add(2), counter.fetch_add(-1), counter.load()
    (3, 5, 4)
    >>> flag.test_and_set(), flag.test_and_set()
    (False, True)
    >>> cells.store(1, "b")
    >>> cells.load(0), cells.load(1)
    (EMPTY, 'b')
    >>> queue.put("a")
    >>> queue.peek(), len(queue), queue.take(), queue.take()
    ('a', 1, 'a', EMPTY)
    """

    def counter(self, value: int = 0) -> Counter:
        """A counter that starts at `value`."""
        return Counter(value)

    def flag(self) -> Flag:
        """A cleared flag."""
        return Flag()

    def cells(self, size: int) -> AtomicCells:
        """`size` empty cells."""
        return AtomicCells(size)

    def queue(self) -> Queue:
        """An empty queue."""
        return Queue()


ATOMICS: Final = Atomics()
"""The default: real shared memory, without instrumentation."""
