"""Worklists of keyed operators and reorder buffers, by name: the runtime's own and their rivals.

PartitionedQueue    a worker owns one part for as long as its turn lasts
SharedQueue         a worker takes the next piece with the lock of its part, so workers wait for each other
LockBased           one lock around the whole buffer: figure 2 of the paper on the ordered runtime
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from penstock.runtime.atomics import ATOMICS, EMPTY, Atomics
from penstock.runtime.reorder import Downstream, NonBlocking, Reorder, Unordered
from penstock.runtime.worklists import Bound, HybridQueue, Operate, SharedWorklist, Worklist


class PartitionedQueue:
    """A queue for each part; a worker takes the next part that is free and has work.

    A worker keeps its part for its whole turn. So pieces of other parts may wait long, and finished
    outputs wait for the outputs of those pieces.
    """

    def __init__(self, parts: int, atomics: Atomics = ATOMICS) -> None:
        self._queues = [atomics.queue() for _ in range(parts)]
        self._flags = [atomics.flag() for _ in range(parts)]
        self._taken = [False] * parts
        self._last = 0

    def put(self, serial: int, part: int, piece: Any) -> None:
        """Add a piece to its part."""
        self._queues[part].put((serial, piece))

    def consume(self, operate: Operate, budget: float, bound: Bound) -> tuple[int, float]:
        """Work on the pieces of one part, then of further parts while the budget lasts."""
        pieces, records = 0, 0.0
        while records < budget or not pieces:
            part = self._next_part(bound())
            if part is None or self._flags[part].test_and_set():
                break
            self._taken[part], self._last = True, part
            try:
                done, size = self._consume_part(part, operate, budget - records, bound)
            finally:
                self._taken[part] = False
                self._flags[part].clear()
            pieces, records = pieces + done, records + size
        return pieces, records

    def _consume_part(
        self, part: int, operate: Operate, budget: float, bound: Bound
    ) -> tuple[int, float]:
        queue = self._queues[part]
        pieces, records = 0, 0.0
        while records < budget or not pieces:
            # No other worker takes from this part, so `take` returns the piece that `peek` showed.
            head = queue.peek()
            if head is EMPTY or head[0] >= bound():
                break
            records += operate(queue.take()[1])
            pieces += 1
        return pieces, records

    def ready(self, bound: Bound) -> bool:
        """Whether a part is free and has work."""
        return self._next_part(bound()) is not None

    def _next_part(self, limit: int) -> int | None:
        parts = len(self._queues)
        for step in range(1, parts + 1):
            part = (self._last + step) % parts
            if not self._taken[part] and len(self._queues[part]):
                head = self._queues[part].peek()
                if head is not EMPTY and head[0] < limit:
                    return part
        return None

    def __len__(self) -> int:
        return sum(map(len, self._queues))


class SharedQueue(SharedWorklist):
    """One queue, and a lock for each part; a worker takes the next piece together with its part's lock.

    If the piece were taken first, two workers could get the lock in the wrong order. So a worker that
    waits for a part keeps all others from taking pieces, which is the weakness of this queue.
    """

    def __init__(self, parts: int, atomics: Atomics = ATOMICS) -> None:
        super().__init__(atomics)
        self._taking = threading.Lock()
        self._locks = [threading.Lock() for _ in range(parts)]

    def put(self, serial: int, part: int, piece: Any) -> None:
        """Add a piece."""
        self._queue.put((serial, part, piece))

    def consume(self, operate: Operate, budget: float, bound: Bound) -> tuple[int, float]:
        """Work on the next pieces, each as soon as its part is free."""
        pieces, records = 0, 0.0
        while records < budget or not pieces:
            with self._taking:
                head = self._queue.peek()
                if head is EMPTY or head[0] >= bound():
                    break
                lock = self._locks[head[1]]
                lock.acquire()
                self._queue.take()
            try:
                records += operate(head[2])
                pieces += 1
            finally:
                lock.release()
        return pieces, records


class LockBased:
    """A lock around an unbounded buffer: all workers wait while one of them sends."""

    def __init__(self, size: int = 0, atomics: Atomics = ATOMICS) -> None:
        self.next = atomics.counter(0)
        self._lock = threading.Lock()
        self._waiting: dict[int, Any] = {}

    def send(self, serial: int, output: Any, downstream: Downstream) -> bool:
        """Add one output and send all that are in order. The buffer is never full."""
        with self._lock:
            if serial != self.next.load():
                self._waiting[serial] = output
                return True
            while output is not EMPTY:
                downstream(output)
                serial += 1
                self.next.fetch_add(1)
                output = self._waiting.pop(serial, EMPTY)
        return True


QUEUES: dict[str, Callable[[int, Atomics], Worklist]] = {
    "hybrid": HybridQueue,
    "partitioned": PartitionedQueue,
    "shared": SharedQueue,
}
REORDERINGS: dict[str, Callable[[int, Atomics], Reorder]] = {
    "nonblocking": NonBlocking,
    "lock": LockBased,
    "none": lambda size, atomics: Unordered(atomics),
}
"""Reorder buffers by name. The first argument is the number of outputs that may wait."""
