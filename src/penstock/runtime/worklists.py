"""Worklists: input that waits for an operator, and the rules by which workers take it.

A *piece* is the unit of work: a part of an item (keyed operators) or a whole item. Pieces are put in the
order of their serial numbers, by one thread at a time. Workers take them with `consume`, which calls
`operate(piece)` for each. It ends when `budget` records have been processed, when nothing is left, or
when the next piece has a serial number of `bound()` or more: the reorder buffer would have no room for
its output.

    SharedWorklist      stateless operators: any worker takes the next piece
    GlobalWorklist      global operators: the same, but one worker at a time
    HybridQueue         keyed operators: in order of arrival, one worker per part, no worker waits

The last one is figure 7 of the ordered multicore runtime of Prasaad, Ramalingam and Rajan.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from penstock.runtime.atomics import ATOMICS, EMPTY, Atomics

Operate = Callable[[Any], float]
"""Function that processes one piece and returns its number of records (an item's records are divided evenly
among its pieces)."""

Bound = Callable[[], int]
"""Function that returns the serial number below which pieces may be taken now. It never decreases."""


class Worklist(Protocol):
    """Pieces that wait for one operator."""

    def put(self, serial: int, part: int, piece: Any) -> None:
        """Add a piece. Called by one thread at a time, in the order of serial numbers."""
        ...

    def consume(self, operate: Operate, budget: float, bound: Bound) -> tuple[int, float]:
        """Process pieces. Returns the numbers of pieces and records."""
        ...

    def ready(self, bound: Bound) -> bool:
        """Whether a worker would find work now."""
        ...

    def __len__(self) -> int:
        """Number of pieces that no worker has taken."""
        ...


class SharedWorklist:
    """One queue that is shared by all workers.

    >>> worklist, seen = SharedWorklist(), []
    >>> for serial in range(5):
    ...     worklist.put(serial, 0, f"piece {serial}")
    >>> worklist.consume(lambda piece: seen.append(piece) or 1, 10, lambda: 2)
    (2, 2.0)
    >>> seen, len(worklist)
    (['piece 0', 'piece 1'], 3)
    """

    def __init__(self, atomics: Atomics = ATOMICS) -> None:
        self._queue = atomics.queue()

    def put(self, serial: int, part: int, piece: Any) -> None:
        """Add a piece; the part is ignored."""
        self._queue.put((serial, piece))

    def consume(self, operate: Operate, budget: float, bound: Bound) -> tuple[int, float]:
        """Process the next pieces, concurrently with other workers."""
        peek, take = self._queue.peek, self._queue.take
        pieces, records, limit = 0, 0.0, 0
        while records < budget or not pieces:
            head = peek()
            if head is EMPTY or (head[0] >= limit and head[0] >= (limit := bound())):
                break
            # Between `peek` and `take` each other worker may have taken one piece. So the piece taken is at
            # most that many numbers beyond the bound, and the reorder buffer has room for these.
            taken = take()
            if taken is EMPTY:
                break
            records += operate(taken[1])
            pieces += 1
        return pieces, records

    def ready(self, bound: Bound) -> bool:
        """Whether the next piece may be taken."""
        head = self._queue.peek()
        return head is not EMPTY and head[0] < bound()

    def __len__(self) -> int:
        return len(self._queue)


class GlobalWorklist(SharedWorklist):
    """One queue, and a flag that lets one worker at a time take from it."""

    def __init__(self, atomics: Atomics = ATOMICS) -> None:
        super().__init__(atomics)
        self._flag = atomics.flag()
        self._taken = False

    def consume(self, operate: Operate, budget: float, bound: Bound) -> tuple[int, float]:
        """Process the next pieces, unless another worker is doing so."""
        if self._flag.test_and_set():
            return 0, 0
        self._taken = True
        try:
            return super().consume(operate, budget, bound)
        finally:
            self._taken = False
            self._flag.clear()

    def ready(self, bound: Bound) -> bool:
        """Whether a piece may be taken, and no worker is processing pieces."""
        return not self._taken and super().ready(bound)


class HybridQueue(SharedWorklist):
    """One queue per part with its pieces, and a master queue with the order of parts.

    A worker takes the next part from the master queue and increments the counter of that part. If it is the
    first one there, it processes the part's next piece. Otherwise another worker is at that part, and will
    process the counted piece too; this worker goes on with the master queue. So no worker waits, no two
    workers process one part, and pieces are started nearly in the order of arrival.

    >>> worklist, seen = HybridQueue(parts=2), []
    >>> for serial, part in enumerate([0, 1, 0]):
    ...     worklist.put(serial, part, f"piece {serial} of part {part}")
    >>> worklist.consume(lambda piece: seen.append(piece) or 1, 2, lambda: 1024)
    (2, 2.0)
    >>> seen
    ['piece 0 of part 0', 'piece 1 of part 1']
    """

    def __init__(self, parts: int, atomics: Atomics = ATOMICS) -> None:
        super().__init__(atomics)
        self._queues = [atomics.queue() for _ in range(parts)]
        self._counts = [atomics.counter(0) for _ in range(parts)]

    def put(self, serial: int, part: int, piece: Any) -> None:
        """Add a piece: first to its part's queue, so that a worker which sees the part in the master
        queue finds it."""
        self._queues[part].put(piece)
        self._queue.put((serial, part))

    def consume(self, operate: Operate, budget: float, bound: Bound) -> tuple[int, float]:
        """Process the next pieces whose parts are free, and pieces that other workers left to this one."""
        # The loop of SharedWorklist.consume is repeated here to save a call per piece.
        peek, take = self._queue.peek, self._queue.take
        pieces, records, limit = 0, 0.0, 0
        while records < budget or not pieces:
            head = peek()
            if head is EMPTY or (head[0] >= limit and head[0] >= (limit := bound())):
                break
            taken = take()  # maybe not the one that `peek` saw: see SharedWorklist
            if taken is EMPTY:
                break
            part = taken[1]
            count = self._counts[part]
            if count.fetch_add(1) == 0:
                queue = self._queues[part]
                while True:
                    records += operate(queue.take())
                    pieces += 1
                    if count.fetch_add(-1) <= 1:
                        break
        return pieces, records
