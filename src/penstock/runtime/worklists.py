"""What waits for an operator, and which worker may take which of it.

A *piece* is what one worker works on at a time: a part of an item (keyed operators) or a whole one.
Pieces are put in the order of their serial numbers, by one thread at a time; workers take them by
`consume`, which calls `operate(piece)` for each, until `budget` records have been worked on, or
nothing is left, or what is left has serial numbers of `bound()` or more: their outputs would find
no place in the reorder buffer.

    SharedWorklist      stateless operators: any worker takes the next piece
    GlobalWorklist      global operators: the same, but one worker at a time
    HybridQueue         keyed: in the order of arrival, one worker at a time for a part, nobody waits

The last one is figure 7 of the ordered multicore runtime of Prasaad, Ramalingam and Rajan.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from penstock.runtime.atomics import ATOMICS, EMPTY, Atomics

Operate = Callable[[Any], float]
"""Works on one piece, and gives the records in it (its share of an item in several pieces)."""

Bound = Callable[[], int]
"""Serial numbers below it may be taken now. It only ever grows."""


class Worklist(Protocol):
    """Pieces that wait for one operator."""

    def put(self, serial: int, part: int, piece: Any) -> None:
        """Add a piece. By one thread at a time, in the order of serial numbers."""
        ...

    def consume(self, operate: Operate, budget: float, bound: Bound) -> tuple[int, float]:
        """Work on pieces; gives how many, and the records in them."""
        ...

    def ready(self, bound: Bound) -> bool:
        """Whether a worker that comes now would find something to do."""
        ...

    def __len__(self) -> int:
        """Pieces that nobody has taken."""
        ...


class SharedWorklist:
    """One queue, from which every worker takes.

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
        """Add a piece; it has no part."""
        self._queue.put((serial, piece))

    def consume(self, operate: Operate, budget: float, bound: Bound) -> tuple[int, float]:
        """Work on the next pieces, whatever others do."""
        peek, take = self._queue.peek, self._queue.take
        pieces, records, limit = 0, 0.0, 0
        while records < budget or not pieces:
            head = peek()
            if head is EMPTY or (head[0] >= limit and head[0] >= (limit := bound())):
                break
            # Between the look and the taking each other worker may have taken one: what is taken is
            # at most so many numbers beyond the bound, for which the reorder buffer has room.
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
    """One queue, and a flag for the one worker that takes from it."""

    def __init__(self, atomics: Atomics = ATOMICS) -> None:
        super().__init__(atomics)
        self._flag = atomics.flag()
        self._taken = False

    def consume(self, operate: Operate, budget: float, bound: Bound) -> tuple[int, float]:
        """Work on the next pieces, unless another worker does."""
        if self._flag.test_and_set():
            return 0, 0
        self._taken = True
        try:
            return super().consume(operate, budget, bound)
        finally:
            self._taken = False
            self._flag.clear()

    def ready(self, bound: Bound) -> bool:
        """Whether there is a piece, and nobody works."""
        return not self._taken and super().ready(bound)


class HybridQueue(SharedWorklist):
    """A queue for each part, which holds the pieces, and a master queue, which holds their order.

    A worker takes the next part from the master queue and counts itself in at that part. The first
    one there works on the part's first piece; one that finds another there leaves its piece to that
    one, having counted it, and goes on with the master queue. So no worker waits, no two work on
    one part, and pieces are begun nearly in the order of arrival.

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
        """Add a piece. To its part first: who takes from the master queue must find it there."""
        self._queues[part].put(piece)
        self._queue.put((serial, part))

    def consume(self, operate: Operate, budget: float, bound: Bound) -> tuple[int, float]:
        """Work on the next pieces whose parts are free, and on those left to this worker."""
        # As SharedWorklist.consume, written out: one call less for each piece.
        peek, take = self._queue.peek, self._queue.take
        pieces, records, limit = 0, 0.0, 0
        while records < budget or not pieces:
            head = peek()
            if head is EMPTY or (head[0] >= limit and head[0] >= (limit := bound())):
                break
            taken = take()  # maybe not what was seen: see SharedWorklist
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
