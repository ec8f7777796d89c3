"""Reorder buffers: outputs of concurrent workers are sent on in the order of their serial numbers.

Each input of an operator has a serial number (0, 1, 2 ...), its position in the order of arrival. All
output of one input, however much, is one output with that number. Workers hand in outputs in any order,
each number once. `downstream` is called by one worker at a time, for 0, 1, 2 ... in turn.

    NonBlocking     no worker waits for another: a worker that finds the flag set leaves its output behind
    Unordered       sends outputs at once: for one worker at a time, or to measure the cost of ordering

The first one is figure 4 of the ordered multicore runtime of Prasaad, Ramalingam and Rajan.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from penstock.runtime.atomics import ATOMICS, EMPTY, Atomics, Counter
from penstock.runtime.operators import Mark

Downstream = Callable[[Any], None]


class Reorder(Protocol):
    """A buffer in which the outputs of one operator wait for their turn."""

    next: Counter
    """The serial number to send next, which is also the number of outputs sent."""

    def send(self, serial: int, output: Any, downstream: Downstream) -> bool:
        """Hand in one output, and send all that are ready. Returns False if there is no room: try again."""
        ...


class NonBlocking:
    """A circular buffer of `size` cells, and a flag that the sending worker holds.

    A worker stores its output in its cell, then tries the flag. If it is set, another worker is sending. That
    worker will find the output, or, after it has cleared the flag, check again the cell at which it
    stopped. So all outputs that are ready have been sent once all workers have left `send`, and no worker
    waits. There is no room yet for an output whose number is `size` or more ahead of `next`.

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
        """Hand in one output, and send all that are ready. Returns False if there is no room: try again."""
        first = self.next.load()
        added = first <= serial < first + self._size
        if added:
            # `next` may have moved on, but not past `serial`: the cell is free.
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
            # A worker that came between the last check and the clearing found the flag set and left.
            if load(place) is EMPTY:
                return


class Unordered:
    """Sends outputs at once, by several workers at a time; `next` only counts them.

    It is used for global operators, whose outputs come in order, and to measure the cost of ordering for
    other operators. A mark waits until all outputs before it have been sent; no item after it has been
    started by then.
    """

    def __init__(self, atomics: Atomics = ATOMICS) -> None:
        self.next = atomics.counter(0)
        self._mark = atomics.cells(1)
        self._flag = atomics.flag()

    def send(self, serial: int, output: Any, downstream: Downstream) -> bool:
        """Send one output, and a waiting mark whose turn has come. There is always room."""
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
