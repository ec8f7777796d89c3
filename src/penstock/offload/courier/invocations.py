"""A courier's invocations of burst workers: several at a time, until a deadline."""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import pyarrow as pa

from penstock.offload.backends.backend import Invoker, WorkerFailed
from penstock.offload.backends.messages import Request, Requests, WorkerAnswer

Taken = TypeVar("Taken")
"""What the courier makes of an answer."""
_Outcome = tuple[Taken, int] | WorkerFailed
"""What was made of an answer, and how many records it has; or why there is none."""


@dataclass(frozen=True)
class Portion:
    """Rows that one burst worker is to answer for."""

    batches: tuple[pa.RecordBatch, ...]
    asks: Request | WorkerFailed
    """Or why it cannot be asked."""

    @property
    def rows(self) -> int:
        return sum(batch.num_rows for batch in self.batches)


def portions(
    requests: Requests, parts: Sequence[Sequence[pa.RecordBatch]], limit: int | None
) -> list[Portion]:
    """All parts of the rows in turn, each in as many portions as it takes for none to be larger than
    the limit in bytes."""
    made: list[Portion] = []
    first = 0
    for part in parts:
        try:
            cut = requests.cut(part, limit, first)
        except WorkerFailed as too_large:
            made.append(Portion(tuple(part), too_large))
            continue
        first += len(cut)
        made += [Portion(request.batches, request) for request in cut]
    return made


def cut_evenly(batches: Sequence[pa.RecordBatch], parts: int) -> list[list[pa.RecordBatch]]:
    """The rows in so many runs, as equal in number as can be; fewer, if there are fewer rows.

    >>> rows = pa.record_batch({"n": [1, 2, 3, 4, 5]})
    >>> [[b.num_rows for b in part] for part in cut_evenly([rows, rows.slice(0, 2)], 3)]
    [[2], [2], [1, 2]]
    >>> cut_evenly([], 3)
    []
    """
    total = sum(batch.num_rows for batch in batches)
    parts = min(parts, total)
    return [
        rows_between(batches, total * part // parts, total * (part + 1) // parts)
        for part in range(parts)
    ]


def rows_between(batches: Sequence[pa.RecordBatch], begin: int, end: int) -> list[pa.RecordBatch]:
    """The rows with these numbers, without a copy."""
    found = []
    for batch in batches:
        low, high = max(begin, 0), min(end, batch.num_rows)
        if low < high:
            found.append(batch.slice(low, high - low))
        begin, end = begin - batch.num_rows, end - batch.num_rows
    return found


class Invocations(Generic[Taken]):
    """Asks burst workers for all portions at once, `at_most` at a time, and waits for them.

    `take` is called with each answer, in any thread; an answer that it raises an error of is none.
    What comes after the deadline is not looked at: the caller has done those rows by then. A thread
    that still waits for a burst worker ends when the invoker gives it up.
    """

    def __init__(
        self,
        invoker: Invoker,
        asked: Sequence[Portion],
        take: Callable[[WorkerAnswer], Taken],
        at_most: int,
        deadline_ms: int,
    ) -> None:
        self.failures: Counter[str] = Counter()
        """Why portions have no answer -> how many."""
        self.wait_ms = 0
        """From the first request until the last answer had come, or was given up."""
        self.records = 0
        """Records in the answers that were taken."""
        self.asked = asked
        self._invoker, self._take = invoker, take
        self._began = time.monotonic()
        self._until = self._began + deadline_ms / 1000
        self._over = False
        self._next = deque(range(len(asked)))
        self._outcomes: queue.SimpleQueue[tuple[int, _Outcome[Taken]]] = queue.SimpleQueue()
        for _ in range(min(at_most, len(asked))):
            threading.Thread(target=self._work, name="penstock-invoke", daemon=True).start()

    def finished(self) -> Iterator[tuple[int, Taken | None]]:
        """The number of each portion with its answer, as they come; None: there is none."""
        left = set(range(len(self.asked)))
        while left:
            patience = self._until - time.monotonic()
            try:
                number, outcome = self._outcomes.get(timeout=max(0.0, patience))
            except queue.Empty:
                break
            left.remove(number)
            if not left:
                self._note_time()
            if isinstance(outcome, WorkerFailed):
                self.failures[outcome.failure] += 1
                yield number, None
            else:
                taken, records = outcome
                self.records += records
                yield number, taken
        self._over = True
        if left:
            self._note_time()
            self.failures["timeout"] += len(left)
        for number in sorted(left):
            yield number, None

    def _note_time(self) -> None:
        self.wait_ms = round((time.monotonic() - self._began) * 1000)

    def _work(self) -> None:
        while not self._over:
            try:
                number = self._next.popleft()
            except IndexError:
                return
            self._outcomes.put((number, self._outcome(self.asked[number].asks)))

    def _outcome(self, request: Request | WorkerFailed) -> _Outcome[Taken]:
        left_ms = int((self._until - time.monotonic()) * 1000)
        if isinstance(request, WorkerFailed):
            return request
        if left_ms < 1:
            return WorkerFailed("no burst worker was free in time", failure="timeout")
        try:
            body = self._invoker.invoke(request.to_bytes(), left_ms)
            answer = WorkerAnswer.from_bytes(body, request)
            return self._take(answer), sum(batch.num_rows for batch in answer.batches)
        except WorkerFailed as failed:
            return failed
        except Exception as broken:
            # whatever is wrong with a burst worker, its rows can still be done without it
            return WorkerFailed(f"an invocation failed: {type(broken).__name__}: {broken}")
