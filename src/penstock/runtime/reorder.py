"""Outputs of concurrent workers, sent on in the order of their serial numbers.

Each input of an operator has a serial number (0, 1, 2 ...), its place in the order of arrival; what
one input gives, however much, is one output with that number. Workers give outputs in any order,
each number once; `downstream` is called by one worker at a time, for 0, 1, 2 ... in turn.

    NonBlocking     no worker waits for another: who finds the flag set leaves its output behind
    Unordered       as they come: for one worker at a time, or to see what order costs

The first one is figure 4 of the ordered multicore runtime of Prasaad, Ramalingam and Rajan.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from penstock.runtime.atomics import ATOMICS, EMPTY, Atomics, Counter
from penstock.runtime.operators import Mark

Downstream = Callable[[Any], None]


class Reorder(Protocol):
    """Where the outputs of one operator wait for their turn."""

    next: Counter
    """The serial number that is to be sent next, which is how many have been sent."""

    def send(self, serial: int, output: Any, downstream: Downstream) -> bool:
        """Hand in one output, and send what is ready; False: no place, try again."""
        ...


class NonBlocking:
    """A circular buffer with `size` places, and a flag for whoever sends.

    A worker puts its output into its place, then tries the flag. If it is set, another worker is
    sending: it will find the output, or, having cleared the flag, look once more at the place where
    it stopped. So nothing that is ready is left behind once all workers have left `send`, and
    nobody waits. An output whose number is `size` or more ahead of `next` has no place yet.

    >>> buffer, sent = NonBlocking(8), []
    >>> buffer.send(1, "b", sent.append), sent
    (True, [])
    >>> buffer.send(0, "a", sent.append), sent
    (True, ['a', 'b'])
    >>> buffer.send(10, "k", sent.append)
    False
    """

    def __init__(self, size: int, atomics: Atomics = ATOMICS) -> None:
        self._size = size
        self.next = atomics.counter(0)
        cells, self._flag = atomics.cells(size), atomics.flag()
        self._load, self._store = cells.load, cells.store

    def send(self, serial: int, output: Any, downstream: Downstream) -> bool:
        """Hand in one output, and send what is ready; False: no place, try again."""
        first = self.next.load()
        added = first <= serial < first + self._size
        if added:
            # `next` may have moved on, but not past `serial`: the place is free.
            self._store(serial % self._size, output)
        self._send_pending(downstream)
        return added

    def _send_pending(self, downstream: Downstream) -> None:
        flag, load, store, size = self._flag, self._load, self._store, self._size
        while not flag.test_and_set():
            place = self.next.load() % size
            while (output := load(place)) is not EMPTY:
                downstream(output)
                store(place, EMPTY)
                place = (self.next.fetch_add(1) + 1) % size
            flag.clear()
            # Whoever came between the last look and the clearing has found the flag set and left.
            if load(place) is EMPTY:
                return


class Unordered:
    """Outputs go on as they come, by several workers at a time; `next` only counts them.

    For global operators, whose outputs come in order, and to see what order costs others. A mark
    waits until all that came before it have been sent; nothing behind it has been begun by then.
    """

    def __init__(self, atomics: Atomics = ATOMICS) -> None:
        self.next = atomics.counter(0)
        self._mark = atomics.cells(1)
        self._flag = atomics.flag()

    def send(self, serial: int, output: Any, downstream: Downstream) -> bool:
        """Send one output, and a mark whose turn has come. There is always a place."""
        if isinstance(output, Mark):
            self._mark.store(0, (serial, output))
        else:
            downstream(output)
            self.next.fetch_add(1)
        while (waiting := self._mark.load(0)) is not EMPTY and waiting[0] == self.next.load():
            if self._flag.test_and_set():
                return True
            if claimed := self._mark.load(0) is waiting:
                self._mark.store(0, EMPTY)
                downstream(waiting[1])
            self._flag.clear()
            if claimed:
                self.next.fetch_add(1)
        return True
