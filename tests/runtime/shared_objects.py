"""The shared objects of a world: each method is one step of the worker that calls it.

Counter, Flag, Cells and Queue are the objects of an `Atomics`. The others stand for further state that the
runtime shares, or observe the workers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.runtime.atomics import EMPTY
from tests.runtime.steps import Step

if TYPE_CHECKING:
    from tests.runtime.world import World


@dataclass(frozen=True)
class Counter:
    world: World
    place: int

    def load(self) -> int:
        return int(self.world.take(Step(self.place, "load", ())))

    def fetch_add(self, number: int) -> int:
        return int(self.world.take(Step(self.place, "fetch_add", (number,))))


@dataclass(frozen=True)
class Flag:
    world: World
    place: int

    def test_and_set(self) -> bool:
        return bool(self.world.take(Step(self.place, "test_and_set", ())))

    def clear(self) -> None:
        self.world.take(Step(self.place, "clear", ()))


@dataclass(frozen=True)
class Cells:
    world: World
    place: int

    def load(self, index: int) -> Any:
        return self.world.take(Step(self.place, "load_cell", (index,)))

    def store(self, index: int, value: Any) -> None:
        self.world.take(Step(self.place, "store_cell", (index, value)))


@dataclass(frozen=True)
class Queue:
    world: World
    place: int

    def put(self, item: Any) -> None:
        self.world.take(Step(self.place, "put", (item,)))

    def take(self) -> Any:
        return self.world.take(Step(self.place, "take", ()))

    def peek(self) -> Any:
        return self.world.take(Step(self.place, "peek", ()))

    def __len__(self) -> int:
        return int(self.world.take(Step(self.place, "length", ())))


@dataclass(frozen=True)
class Variable:
    world: World
    place: int

    def load(self) -> Any:
        return self.world.take(Step(self.place, "load", ()))

    def store(self, value: Any) -> None:
        self.world.take(Step(self.place, "store", (value,)))


@dataclass(frozen=True)
class Bell:
    world: World
    place: int

    def wait(self) -> None:
        self.world.take(Step(self.place, "wait", ()))

    def ring(self) -> None:
        self.world.take(Step(self.place, "ring", ()))


@dataclass(frozen=True)
class Bag:
    """A deque, with the methods that `Crew` uses."""

    world: World
    place: int

    def append(self, item: Any) -> None:
        self.world.take(Step(self.place, "put", (item,)))

    def pop(self) -> Any:
        if (last := self.world.take(Step(self.place, "pop", ()))) is EMPTY:
            raise IndexError
        return last

    def remove(self, item: Any) -> None:
        if not self.world.take(Step(self.place, "remove", (item,))):
            raise ValueError

    def __len__(self) -> int:
        return int(self.world.take(Step(self.place, "length", ())))


@dataclass(frozen=True)
class Gate:
    """See `World.gate`. The work is done between `enter` and `leave`: a worker may pause there."""

    world: World
    place: int

    def enter(self, name: Any) -> None:
        self.world.take(Step(self.place, "enter", (name,)))

    def leave(self) -> None:
        self.world.take(Step(self.place, "leave", ()))

    def touch(self, name: Any) -> None:
        """Enter and leave, in one step."""
        self.world.take(Step(self.place, "touch", (name,)))

    def due(self) -> tuple[Any, ...]:
        """The values that have not entered yet. Not a step: for checks."""
        due: tuple[Any, ...] = self.world.values[self.place][1]
        return due
