"""Shared memory that workers touch without locks: counters, flags, cells and queues.

CPython has no atomic integers, but one call into C that neither runs Python code nor gives up the
interpreter lock is atomic: no other thread runs between its beginning and its end. Each operation
here is one such call (plus arithmetic on values that the calling thread alone has):

    counter     a seek relative to the position of an (empty) `BytesIO`: adds, gives the sum
    flag        a `heapreplace` on a heap of one: puts a value there, gives the one before
    cells       item access of a list
    queue       append and popleft of a deque

Structures take these from an `Atomics` object, so that another one can be put in its place which
notes, or interleaves at will, each step on shared memory.
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
    """The type of `EMPTY`: nothing there, in a cell or a queue (None is a value like any other)."""

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
        """The value now."""

    def fetch_add(self, number: int) -> int:
        """Add `number`, which may be negative; gives the value before."""
        return self._seek(number, 1) - number


class Flag:
    """Set by one at a time, cleared by the one who set it."""

    __slots__ = ("clear", "test_and_set")

    def __init__(self) -> None:
        heap = [False]
        self.test_and_set: Callable[[], bool] = partial(heapreplace, heap, True)
        """Set it; tells whether it had been set before. Never waits."""
        self.clear: Callable[[], object] = partial(heapreplace, heap, False)
        """Only by whoever set it."""


class AtomicCells:
    """A fixed number of places for values, all `EMPTY` in the beginning."""

    __slots__ = ("load", "store")

    def __init__(self, size: int) -> None:
        values: list[Any] = [EMPTY] * size
        self.load: Callable[[int], Any] = values.__getitem__
        """What is there, maybe `EMPTY`."""
        self.store: Callable[[int, Any], None] = partial(setitem, values)
        """Put a value, or `EMPTY`, there."""


class Queue:
    """First in, first out; any number of threads at both ends; unbounded."""

    __slots__ = ("_popleft", "_values", "put")

    def __init__(self) -> None:
        self._values: deque[Any] = deque()
        self._popleft = self._values.popleft
        self.put: Callable[[Any], None] = self._values.append
        """Add at the end."""

    def take(self) -> Any:
        """The first one, which is removed, or `EMPTY`."""
        try:
            return self._popleft()
        except IndexError:
            return EMPTY

    def peek(self) -> Any:
        """The first one, which stays (another thread may take it at once), or `EMPTY`."""
        try:
            return self._values[0]
        except IndexError:
            return EMPTY

    def __len__(self) -> int:
        return len(self._values)


class Atomics:
    """Makes what workers share.

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
        """A counter that begins with `value`."""
        return Counter(value)

    def flag(self) -> Flag:
        """A flag that is clear."""
        return Flag()

    def cells(self, size: int) -> AtomicCells:
        """`size` empty cells."""
        return AtomicCells(size)

    def queue(self) -> Queue:
        """An empty queue."""
        return Queue()


ATOMICS: Final = Atomics()
"""The real ones, for who does not care."""
