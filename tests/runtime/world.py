"""A world in which workers can be paused at any atomic step, without threads.

All shared state is in objects made by an `Atomics`, and `World` is one. So the next step of a worker
depends only on the answers to its steps so far, and a worker that is paused before the n-th step of a task
needs no thread. The task is run again from the start: its first n - 1 steps get the same answers as before,
and the n-th raises an exception out of the code under test. That is the step which the worker takes next.

It is checked that the code under test shares nothing else: attributes of objects passed to `World.watch`
must not change, and a task that is run again must take the same steps.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from penstock.runtime.atomics import EMPTY
from tests.runtime.shared_objects import Bag, Bell, Cells, Counter, Flag, Gate, Queue, Variable
from tests.runtime.steps import NOWHERE, Step, effect_of

MOST_STEPS = 500
"""Number of steps of a task in one interleaving above which it is assumed to run for ever."""

Task = Callable[[], "Ready | None"]
"""One or a few calls of the code under test. If it returns a condition, it is run again when that holds."""

Ready = Callable[[], bool]
"""Condition on the shared objects: whether a task can go on."""


Past = tuple[tuple[Step, Any], ...]
"""Steps that a worker has taken in its task, each with its answer."""


class _Paused(BaseException):
    """Raised to leave the code under test at a step. It is no `Exception`, so that no handler catches it."""


class World:
    """The shared objects of a case: an `Atomics`, and objects to observe the workers.

    While no worker runs (when a case is built, and in its checks) steps take effect at once.
    """

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.gates: list[Gate] = []
        self._labels: list[str] = []
        self._watched: list[tuple[Any, dict[str, Any]]] = []
        self._past: Past | None = None
        self._taken = 0
        self._wanted: Step | None = None
        self._made("world", None)

    def counter(self, value: int = 0) -> Counter:
        return Counter(self, self._made("counter {}", value))

    def flag(self) -> Flag:
        return Flag(self, self._made("flag {}", False))

    def cells(self, size: int) -> Cells:
        return Cells(self, self._made("cells {}", (EMPTY,) * size))

    def queue(self) -> Queue:
        return Queue(self, self._made("queue {}", ()))

    def variable(self, label: str) -> Variable:
        """An attribute that workers share. Reading it and writing it are steps."""
        return Variable(self, self._made(label, None))

    def bell(self) -> Bell:
        """A bell that a worker waits for until another worker rings it."""
        return Bell(self, self._made("bell {}", False))

    def bag(self, label: str) -> Bag:
        """A list that workers add to and remove from."""
        return Bag(self, self._made(label, ()))

    def gate(self, label: str, expected: Iterable[Any]) -> Gate:
        """Work that one worker at a time may do, once for each expected value and in this order."""
        gate = Gate(self, self._made(label, (False, tuple(expected))))
        self.gates.append(gate)
        return gate

    def watch(self, *shared: Any) -> None:
        """Check from now on that these objects do not change, apart from the values of their atomics."""
        self._watched += [(each, _attributes(each)) for each in shared]

    @property
    def pausing(self) -> bool:
        """Whether a worker is being paused: its steps no longer count."""
        return self._wanted is not None

    def take(self, step: Step) -> Any:
        """Take a step of the running worker, called from the code under test."""
        if self._past is None:
            self.values[step.place], answer = effect_of(step, self.values[step.place])
            return answer
        if self._wanted is None and self._taken < len(self._past):
            before, answer = self._past[self._taken]
            assert step == before, f"the second run takes {step}, not {before}"
            self._taken += 1
            return answer
        # A step tried while the exception propagates (in a finally clause) is not its next step.
        self._wanted = self._wanted or step
        raise _Paused

    def wanted(self, task: Task, past: Past) -> Step | Ready | None:
        """The next step of a task that has taken these steps; at its end, its return value."""
        assert len(past) < MOST_STEPS, "a worker does not come to an end"
        self._past, self._taken, self._wanted = past, 0, None
        result = None
        try:
            result = task()
        except _Paused:
            pass
        except Exception:
            if self._wanted is None:  # else the code under test made it from the pause
                raise
        finally:
            self._past = None
        for each, before in self._watched:
            changed = [name for name, now in _attributes(each).items() if now != before.get(name)]
            assert not changed, f"{type(each).__name__} shares {changed}, which no atomic holds"
        return self._wanted or result

    def line(self, worker: int, step: Step, answer: Any) -> str:
        """One step as a line of text."""
        suffix = "" if answer is None else f" -> {answer}"
        args = ", ".join(map(repr, step.args))
        label = (*self._labels, f"object {step.place}")[min(step.place, len(self._labels))]
        return f"worker {worker}: {label} {step.effect}({args}){suffix}"

    def _made(self, label: str, value: Any) -> int:
        if self._past is not None:
            return int(self.take(Step(NOWHERE, "make", (label, value))))
        self.values.append(value)
        self._labels.append(label.format(len(self._labels)))
        return len(self.values) - 1


def observed(kind: type, world: World, *names: str) -> Any:
    """The class with attributes of these names as shared objects: what uses them takes steps."""

    def attribute(name: str) -> property:
        variable = world.variable(name)
        return property(lambda self: variable.load(), lambda self, value: variable.store(value))

    return type(kind.__name__, (kind,), {name: attribute(name) for name in names})


def _attributes(shared: Any) -> dict[str, Any]:
    """The attributes of an object, with copies of containers."""
    names = [*getattr(shared, "__dict__", ())]
    for kind in type(shared).__mro__:
        slots = getattr(kind, "__slots__", ())
        names += [slots] if isinstance(slots, str) else slots
    held = {name: getattr(shared, name) for name in names if hasattr(shared, name)}
    return {
        name: copy.copy(value) if isinstance(value, (list, dict, set, deque)) else value
        for name, value in held.items()
    }
