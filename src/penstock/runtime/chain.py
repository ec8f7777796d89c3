"""The stages of a chain, from its entry to its exit, and the items in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from penstock.runtime.atomics import Atomics
from penstock.runtime.crew import Crew
from penstock.runtime.operators import ChainOperator, Mark
from penstock.runtime.reorder import Reorder, Unordered
from penstock.runtime.scheduler import Scheduler
from penstock.runtime.schedules import Schedule
from penstock.runtime.stages import Exit, Failure, Halt, Stage
from penstock.runtime.worklists import GlobalWorklist, SharedWorklist, Worklist

_OUTSIDE = (1, 0)
"""Order of an error that does not belong to an item: after all others."""


class StageChain:
    """One chain of stages, empty at first. It is discarded after an error.

    `queue` creates the worklist of a keyed operator from its number of parts. `reorder` creates a reorder
    buffer from its size.
    """

    def __init__(
        self,
        operators: Sequence[ChainOperator],
        workers: int,
        schedule: Schedule,
        queue: Callable[[int, Atomics], Worklist],
        reorder: Callable[[int, Atomics], Reorder],
        buffer: int,
        slice: float,
        clock: Callable[[], float],
        atomics: Atomics,
        crew: Crew,
    ) -> None:
        self.halt = Halt()
        self.exit = Exit(operators[-1].size, atomics)
        self._failures: list[tuple[tuple[int, int], BaseException]] = []
        self._room = buffer
        inlet: Stage | Exit = self.exit
        stages: list[Stage] = []
        for place in reversed(range(len(operators))):
            operator = operators[place]
            # Each worker may take one item beyond the bound: see SharedWorklist.consume.
            ordered = reorder(buffer + workers, atomics)
            worklist: Worklist = SharedWorklist(atomics)
            if operator.kind == "keyed":
                worklist = queue(operator.parts, atomics)
            elif operator.kind == "global":
                worklist, ordered = GlobalWorklist(atomics), Unordered(atomics)
            inlet = Stage(
                place, operator, worklist, ordered, buffer, inlet, crew, self.halt, atomics
            )
            stages.insert(0, inlet)
        self.first, self._stages = stages[0], tuple(stages)
        self.scheduler = Scheduler(stages, self.exit, schedule, slice, clock)

    def feed(self, item: Any) -> None:
        """Add an item or a mark. Called by one thread only. Wakes no worker."""
        if isinstance(item, Mark):
            self.first.feed_mark(item)
        else:
            self.first.feed(self.first.prepare((item,))[0])

    def feed_ahead(self, place: int, items: Sequence[Any]) -> None:
        """Add items directly at a later operator, while the chain is empty. Wakes no worker."""
        stage = self._stages[place]
        for prepared in stage.prepare(items):
            stage.feed(prepared)

    def has_room(self) -> bool:
        """Whether the first operator has fewer items than its reorder buffer has room for."""
        return self.first.fed.load() - self.first.sent.load() < self._room

    def is_empty(self) -> bool:
        """Whether all items have left the chain."""
        # In chain order: once a stage has sent everything, the next one gets no more.
        return all(stage.sent.load() == stage.fed.load() for stage in self._stages)

    def fail(self, error: BaseException) -> None:
        """Record an error, and stop workers from starting anything new."""
        if isinstance(error, Failure):
            self._failures.append((error.order, error.error))
        else:
            self._failures.append((_OUTSIDE, error))
        self.halt.on = True

    def earliest_error(self) -> BaseException:
        """The error of the earliest item that is known to have failed.

        An item further down the chain entered it earlier.
        """
        return min(self._failures, key=lambda failure: failure[0])[1]
