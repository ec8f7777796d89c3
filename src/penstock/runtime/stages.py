"""Stages: one operator in a runtime, with its worklist, its workers and its outputs.

The serial number of an item at an operator is its position in the order in which the previous operator sends.
So a stage is fed by the worker that sends for the previous stage: one at a time, in order. Work that can
be done before that (cutting an item into pieces) is done by the worker that made the item, while other
workers send.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from penstock.runtime.atomics import EMPTY, Atomics, Counter
from penstock.runtime.crew import Crew
from penstock.runtime.operators import ChainOperator, Mark
from penstock.runtime.reorder import Reorder, Unordered
from penstock.runtime.worklists import Worklist


class Halted(Exception):
    """Raised when a worker would start new work, but an item has failed."""


class Failure(Exception):
    """Carries an error to the runtime, with the order of the failed item."""

    def __init__(self, order: tuple[int, int], error: BaseException) -> None:
        super().__init__(order, error)
        self.order, self.error = order, error


class Halt:
    """A flag shared by all stages of a runtime, which stops new work after a failure."""

    on = False
    """Whether new work is stopped."""


_NO_PIECE = -1


class Exit:
    """The end of the chain, which passes everything to `sink`. It is fed like a stage."""

    def __init__(self, size: Callable[[Any], int], atomics: Atomics) -> None:
        self.sink: Callable[[Any], None] = lambda item: None
        self.records = atomics.counter(0)
        self._size = size

    def prepare(self, items: Sequence[Any]) -> Sequence[Any]:
        """Count the records of the items, and return the items."""
        self.records.fetch_add(sum(map(self._size, items)))
        return items

    def feed(self, prepared: Any) -> None:
        """Pass an item or a mark to the sink."""
        self.sink(prepared)

    feed_mark = feed


class _Ticket:
    """An item that was cut into pieces, and the results of its pieces."""

    __slots__ = ("item", "pending", "results", "serial", "share")

    def __init__(self, serial: int, item: Any, pieces: int, size: int, atomics: Atomics) -> None:
        self.serial, self.item = serial, item
        self.share = size / max(pieces, 1)
        self.results: list[Any] = [None] * pieces
        self.pending: Counter | None = atomics.counter(pieces) if pieces > 1 else None


class Stage:
    """One operator of a chain.

    A mark is a barrier: items after it are held back until the mark has passed, so that `ChainOperator.mark`
    sees the state of a serial run.
    """

    def __init__(
        self,
        place: int,
        operator: ChainOperator,
        worklist: Worklist,
        reorder: Reorder,
        room: int,
        downstream: Stage | Exit,
        crew: Crew,
        halt: Halt,
        atomics: Atomics,
    ) -> None:
        self.place, self.operator, self.worklist = place, operator, worklist
        self.degree = {"stateless": sys.maxsize, "keyed": operator.parts, "global": 1}[
            operator.kind
        ]
        self.fed = atomics.counter(0)
        """Number of items (and marks) fed so far: the next serial number."""
        self.sent = reorder.next
        """Number of items (and marks) whose outputs have been sent."""
        self._downstream, self._crew, self._halt = downstream, crew, halt
        # Looked up once, since they are called for each item.
        self._join, self._work, self._size = operator.join, operator.work, operator.size
        self._prepare_next, self._feed_next = downstream.prepare, downstream.feed
        self._put, self._reorder_send = worklist.put, reorder.send
        self._room = sys.maxsize if isinstance(reorder, Unordered) else room
        self._is_last = isinstance(downstream, Exit)
        self._keyed = operator.kind == "keyed"
        self._operate = self._work_on_piece if self._keyed else self._work_on_item
        self._atomics = atomics
        self._holding = False
        self._barred = False
        self._held = atomics.queue()
        self._gate = atomics.flag()

    def prepare(self, items: Sequence[Any]) -> Sequence[Any]:
        """Convert items for `feed`: a keyed stage gets each item with its pieces and size. Called by any
        worker."""
        if not self._keyed:
            return items
        split, size = self.operator.split, self.operator.size
        return [(item, split(item), size(item)) for item in items]

    def feed(self, prepared: Any) -> None:
        """Add one prepared item. Calls come one at a time, in order. Wakes no worker."""
        serial = self.fed.fetch_add(1)
        if self._holding:
            self._held.put((serial, prepared))
            self._let_in(feeding=True)
        else:
            self._enqueue(serial, prepared)

    def feed_mark(self, mark: Mark) -> None:
        """Add a mark. Calls come one at a time, in order. Wakes no worker."""
        self._holding = True
        self._held.put((self.fed.fetch_add(1), mark))
        self._let_in(feeding=True)

    def bound(self) -> int:
        """The serial number below which the reorder buffer has room for outputs."""
        return self.sent.load() + self._room

    def ready(self) -> bool:
        """Whether there is work for one more worker."""
        return self.worklist.ready(self.bound)

    def work(self, budget: float) -> tuple[int, float]:
        """Let the calling worker take a turn. Returns the numbers of pieces and records processed."""
        return self.worklist.consume(self._operate, budget, self.bound)

    def _enqueue(self, serial: int, prepared: Any) -> None:
        if not self._keyed:
            self._put(serial, 0, (serial, prepared))
            return
        item, pieces, size = (prepared, (), 0) if isinstance(prepared, Mark) else prepared
        ticket = _Ticket(serial, item, len(pieces), size, self._atomics)
        if not pieces:
            self._put(serial, 0, (ticket, _NO_PIECE, 0, None))
        for index, (part, piece) in enumerate(pieces):
            self._put(serial, part, (ticket, index, part, piece))

    def _let_in(self, *, feeding: bool) -> None:
        """Move items that were held back to the worklist, up to the next mark.

        Called when an item was held back and when a mark has passed. As in the reorder buffer, a thread that
        finds the gate taken may leave: its holder checks once more. Only the feeding thread may end the
        holding, while it has the gate. Otherwise its next item could overtake items that another thread
        moves.
        """
        held, gate = self._held, self._gate
        while not gate.test_and_set():
            head: Any = None
            while not self._barred and (head := held.take()) is not EMPTY:
                self._barred = isinstance(head[1], Mark)
                self._enqueue(*head)
            if feeding and head is EMPTY:
                self._holding = False
            gate.clear()
            if self._barred or not len(held):
                return

    def _work_on_item(self, entry: tuple[int, Any]) -> float:
        serial, item = entry
        if self._halt.on:
            raise Halted
        try:
            if isinstance(item, Mark):
                self._send(serial, item)
                return 0
            outputs = self._join(item, [self._work(0, item)])
            self._send(serial, self._prepare_next(outputs) if outputs else ())
            return self._size(item)
        except Failure:
            raise
        except BaseException as error:
            raise Failure((-self.place, serial), error) from error

    def _work_on_piece(self, entry: tuple[_Ticket, int, int, Any]) -> float:
        ticket, index, part, piece = entry
        if self._halt.on:
            raise Halted
        try:
            if index != _NO_PIECE:
                ticket.results[index] = self._work(part, piece)
                if ticket.pending is not None and ticket.pending.fetch_add(-1) > 1:
                    return ticket.share
            elif isinstance(ticket.item, Mark):
                self._send(ticket.serial, ticket.item)
                return 0
            outputs = self._join(ticket.item, ticket.results)
            self._send(ticket.serial, self._prepare_next(outputs) if outputs else ())
            return ticket.share
        except Failure:
            raise
        except BaseException as error:
            raise Failure((-self.place, ticket.serial), error) from error

    def _send(self, serial: int, output: Any) -> None:
        # There is room for every item taken, mostly at once: see SharedWorklist.consume.
        while not self._reorder_send(serial, output, self._pass_on):
            pass
        # Pieces that were beyond the bound may be within it now.
        if self._crew.idle and self.ready():
            self._crew.wake()

    def _pass_on(self, output: Any) -> None:
        if isinstance(output, Mark):
            self._pass_mark(output)
        else:
            for prepared in output:
                self._feed_next(prepared)
        if output and self._crew.idle and not self._is_last:
            self._crew.wake()

    def _pass_mark(self, mark: Mark) -> None:
        try:
            outputs = self.operator.mark(mark)
        except BaseException as error:
            raise Failure((-self.place, self.sent.load()), error) from error
        for prepared in self._prepare_next(outputs):
            self._feed_next(prepared)
        self._downstream.feed_mark(mark)
        self._barred = False
        self._let_in(feeding=False)
