"""A model checker: it visits all states that the workers of a small case can reach, in any order of steps.

The state of a case is a value: the values of the shared objects, and the position of each worker (see
`tests.runtime.world`). Each reachable state is visited once, the nearest first, so a violation comes
with a shortest interleaving.

Two things are assumed. Memory is sequentially consistent, which the interpreter's lock guarantees. Each
method of an atomic is one step, which the tests of the atomics show.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.runtime.steps import NOWHERE, Step, effect_of
from tests.runtime.world import Past, Ready, Task, World


@dataclass(eq=False)
class Stand:
    """The position of a worker: its current task, and the steps that it has taken in it."""

    task: int
    past: Past
    step: Step | None
    """The step that it is about to take; None if all its tasks are done."""
    ready: Ready | None = None
    """Condition on which it waits before it begins a task again."""
    after: dict[Hashable, Stand] = field(default_factory=dict)
    """Its next position, by the answer to its step."""


State = tuple[tuple[Any, ...], tuple[Stand, ...]]
"""The values of the shared objects, and the positions of the workers."""


class Violation(AssertionError):
    """A violated condition; `trace` is a shortest interleaving that leads to it."""

    def __init__(self, what: str, trace: Sequence[str]) -> None:
        super().__init__("\n  ".join([what, *trace]))
        self.what, self.trace = what, tuple(trace)


@dataclass(frozen=True)
class Case:
    """Workers that share objects of a world, and conditions beyond those that its gates check."""

    workers: Sequence[Sequence[Task]]
    """The tasks of each worker."""
    at_rest: Callable[[list[int]], None] = lambda done: None
    """Check that is called while no worker is within a task, and raises AssertionError on a violation.

    Its argument is the number of finished tasks of each worker.
    """
    servants: int = 0
    """Number of workers, at the end of the list, that may still wait when all others have finished."""


@dataclass(frozen=True)
class Explored:
    """Size of a case that was explored without a violation."""

    states: int
    interleavings: int
    """Number of orders in which the steps can be taken, from the start to the end of all workers."""
    longest: int
    """Highest number of steps of a task in any interleaving."""
    alone: int
    """Highest number of steps that a worker needs to finish its task while all others are paused anywhere.
    That it is finite means that no worker ever waits for another."""


Make = Callable[[World], Case]
"""Function that creates a case in a world."""


def explore(make: Make, most: int = 1_000_000) -> Explored:
    """Visit all states of a case. Raises `Violation`, or AssertionError if there are more than `most`
    states."""
    gc.disable()  # many small values, and none is garbage
    try:
        return _Exploration(make, most).run()
    finally:
        gc.enable()


def explore_all(makes: Iterable[Make]) -> list[Explored]:
    """Visit all states of several cases, one after the other."""
    return [explore(make) for make in makes]


class _Exploration:
    def __init__(self, make: Make, most: int) -> None:
        self._world = World()
        self._case = make(self._world)
        self._most = most
        self._longest = 0
        self._begun: dict[tuple[int, int, bool], Stand] = {}
        stands = tuple(self._begin(worker, 0) for worker in range(len(self._case.workers)))
        start = (tuple(self._world.values), stands)
        self._states: list[State] = [start]
        self._numbers: dict[State, int] = {start: 0}
        self._came: list[tuple[int, int]] = [(0, 0)]
        """For each state, the state from which it was first reached, and the worker that took the step."""
        self._next: list[list[tuple[int, int]]] = []
        """For each state, the workers that can take a step, and the states to which these lead."""

    def run(self) -> Explored:
        for number, state in enumerate(self._states):  # grows as it goes
            try:
                self._next.append(self._steps(number, state))
                self._check(state, bool(self._next[-1]))
            except Violation:
                raise
            except AssertionError as wrong:
                raise Violation(str(wrong), self._trace(number)) from wrong
            assert len(self._states) <= self._most, f"more than {self._most} states"
        order = self._order()
        return Explored(len(order), self._interleavings(order), self._longest, self._alone(order))

    def _steps(self, number: int, state: State) -> list[tuple[int, int]]:
        values, stands = state
        followers = []
        for worker, stand in enumerate(stands):
            step = stand.step
            if step is None or self._waits(stand, values):
                continue
            try:
                after, answer = self._effect(step, values)
                if answer not in stand.after:
                    stand.after[answer] = self._advance(worker, stand, answer)
            except Exception as wrong:
                trace = [*self._trace(number), self._world.line(worker, step, None)]
                raise Violation(str(wrong), trace) from wrong
            follower = (
                after,
                (*stands[:worker], stand.after[answer], *stands[worker + 1 :]),
            )
            followers.append((worker, self._number(follower, number, worker)))
        return followers

    def _waits(self, stand: Stand, values: tuple[Any, ...]) -> bool:
        if stand.step is not None and stand.step.effect == "wait":
            return not values[stand.step.place]
        return stand.ready is not None and not self._holds(values, stand.ready)

    def _effect(self, step: Step, values: tuple[Any, ...]) -> tuple[tuple[Any, ...], Any]:
        """The values of the shared objects after a step, and its answer."""
        if step.place == NOWHERE:
            return (*values, step.args[1]), len(values)
        value, answer = effect_of(step, values[step.place])
        return (*values[: step.place], value, *values[step.place + 1 :]), answer

    def _advance(self, worker: int, stand: Stand, answer: Any) -> Stand:
        """The position of a worker after its step."""
        assert stand.step is not None
        past = (*stand.past, (stand.step, answer))
        wanted = self._world.wanted(self._case.workers[worker][stand.task], past)
        self._longest = max(self._longest, len(past))
        if isinstance(wanted, Step):
            return Stand(stand.task, past, wanted)
        if wanted is None:
            return self._begin(worker, stand.task + 1)
        return self._begin(worker, stand.task, wanted)

    def _begin(self, worker: int, task: int, ready: Ready | None = None) -> Stand:
        """The position of a worker before a task. It does not depend on earlier tasks."""
        place = (worker, task, ready is not None)
        if place not in self._begun:
            tasks = self._case.workers[worker]
            step = self._world.wanted(tasks[task], ()) if task < len(tasks) else None
            assert isinstance(step, Step | None), "a task without a step"
            self._begun[place] = Stand(task, (), step, ready)
        return self._begun[place]

    def _number(self, state: State, came_from: int, worker: int) -> int:
        number = self._numbers.setdefault(state, len(self._states))
        if number == len(self._states):
            self._states.append(state)
            self._came.append((came_from, worker))
        return number

    def _check(self, state: State, goes_on: bool) -> None:
        values, stands = state
        count = len(stands) - self._case.servants
        ended = all(stand.step is None for stand in stands[:count])
        assert goes_on or ended, "all workers wait"
        if not any(stand.past for stand in stands):
            self._holds(values, lambda: self._case.at_rest([stand.task for stand in stands]))
        for gate in self._world.gates if not goes_on else ():
            _, due = values[gate.place]
            assert not due, f"{due[0]} is left behind"

    def _holds(self, values: tuple[Any, ...], look: Callable[[], Any]) -> bool:
        """The result of `look` when the shared objects have these values."""
        self._world.values[:] = values
        return bool(look())

    def _trace(self, number: int) -> list[str]:
        lines = []
        while number:
            came_from, worker = self._came[number]
            stand = self._states[came_from][1][worker]
            step = stand.step
            assert step is not None
            _, answer = self._effect(step, self._states[came_from][0])
            lines.append(self._world.line(worker, step, answer))
            number = came_from
        return lines[::-1]

    def _order(self) -> list[int]:
        """The states in topological order: each one before all that can follow it."""
        before = [0] * len(self._states)
        for followers in self._next:
            for _, follower in followers:
                before[follower] += 1
        order = [0]
        for number in order:  # grows as it goes
            for _, follower in self._next[number]:
                before[follower] -= 1
                if not before[follower]:
                    order.append(follower)
        assert len(order) == len(self._states), "the workers can go on for ever"
        return order

    def _interleavings(self, order: list[int]) -> int:
        ways = [0] * len(order)
        for number in reversed(order):
            ways[number] = sum(ways[follower] for _, follower in self._next[number]) or 1
        return ways[0]

    def _alone(self, order: list[int]) -> int:
        steps = [[0] * len(order) for _ in self._case.workers]
        for number in reversed(order):
            for worker, follower in self._next[number]:
                within = self._states[follower][1][worker].past
                steps[worker][number] = 1 + (steps[worker][follower] if within else 0)
        return max(max(counts) for counts in steps)
