"""Workers that become idle and are woken, under every interleaving: no wake-up is lost.

The runtime and its crew are the real ones. The chain is a simple one that only has pieces: stages are checked
separately, and would take too many steps here.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.runtime.atomics import EMPTY
from penstock.runtime.crew import Crew
from penstock.runtime.runtime import Runtime
from penstock.runtime.scheduler import Turn
from tests.runtime.explorer import Case, Make, Violation, explore, explore_all
from tests.runtime.mutants import mutant
from tests.runtime.record_operators import stateless
from tests.runtime.shared_objects import Bell
from tests.runtime.world import Ready, Task, World, observed


class PlainChain:
    """A chain with one worklist and scheduler. A piece goes through it `lives` times."""

    def __init__(self, world: World, crew: Crew, lives: int, buffer: int) -> None:
        self._crew, self._lives, self._buffer = crew, lives, buffer
        self._pieces = world.queue()
        self._under_way = world.counter(0)
        self.halt, self.scheduler = SimpleNamespace(on=False), self
        self.first = SimpleNamespace(worklist=self._pieces)

    def feed(self, item: int) -> None:
        self._under_way.fetch_add(1)
        self._pieces.put(self._lives)

    def has_room(self) -> bool:
        return self._under_way.load() < self._buffer

    def is_empty(self) -> bool:
        return self._under_way.load() == 0

    def ready(self) -> bool:
        return len(self._pieces) > 0

    def begin(self) -> Turn | None:
        lives = self._pieces.take()
        if lives is EMPTY:
            return None
        stage: Any = SimpleNamespace(work=lambda budget: self._work(lives))
        return Turn(stage, 1, False)

    def end(self, *done: Any) -> None:
        pass

    def fail(self, error: BaseException) -> None:
        raise error

    def _work(self, lives: int) -> tuple[int, int]:
        if lives == 1:
            self._under_way.fetch_add(-1)
        else:
            self._pieces.put(lives - 1)
            if self._crew.idle:
                self._crew.wake()
        return 1, 1


def resting(
    patch: pytest.MonkeyPatch,
    items: int,
    threads: int = 1,
    lives: int = 1,
    buffer: int = 2,
    kind: Any = Runtime,
    stream: bool = False,
) -> Make:
    """One worker calls `run` with this many items (or submits them); the others are the threads."""

    def make(world: World) -> Case:
        def crew() -> Any:
            made: Any = Crew()
            made.idle, made.watchers = world.bag("idle"), world.bag("watchers")
            made.send_home = lambda: None
            return made

        def chain(*made_of: Any) -> PlainChain:
            return PlainChain(world, made_of[-1], lives, buffer)

        for name, made in {"Bell": world.bell, "Crew": crew, "StageChain": chain}.items():
            patch.setitem(kind.__init__.__globals__, name, made)
        runtime = observed(kind, world, "_feeding")(
            [stateless("same", lambda item: [item])], workers=2, clock=float, atomics=world
        )
        runtime.is_open = stream
        bells = [world.bell() for _ in range(threads)]
        for bell in bells:
            runtime._crew.idle.append(bell)
        world.watch(runtime, runtime._chain, runtime._crew)

        def run() -> None:
            runtime._run(iter(range(items)))

        def finish() -> None:
            runtime._await(runtime._complete, watch=True)

        def serve(bell: Bell) -> Ready:
            bell.wait()
            runtime._serve(bell)
            return lambda: True

        calls: list[Task] = [run]
        if stream:
            calls = [*(partial(runtime.submit, item) for item in range(items)), finish]
        return Case([calls, *([partial(serve, bell)] for bell in bells)], servants=threads)

    return make


CASES: dict[str, dict[str, Any]] = {
    "a run": {"items": 2},
    "a run of two operators": {"items": 1, "lives": 2},
    "a stream": {"items": 2, "stream": True},
    "a stream with little room": {"items": 2, "stream": True, "buffer": 1},
    "a stream of two operators": {"items": 2, "stream": True, "lives": 2},
}

LARGE_CASES: dict[str, dict[str, Any]] = {
    "a longer run": {"items": 3},
    "a run of two operators": {"items": 2, "lives": 2},
    "a run with little room": {"items": 2, "lives": 2, "buffer": 1},
    "a stream with two threads": {"items": 2, "threads": 2, "stream": True},
}

MUTANT_RUNTIMES = {
    "the caller does not look once more": (
        "if not (condition() and self._crew.leave(self._bell)):",
        "if True:",
        "all workers wait",
    ),
    "a thread does not look once more": (
        "to_do = not self._chain.halt.on and self._chain.scheduler.ready()",
        "to_do = False",
        "all workers wait",
    ),
    "nobody tells the caller of the end": (
        "if self._chain.halt.on or self._feeding or self._complete():",
        "if self._chain.halt.on or self._feeding:",
        "all workers wait",
    ),
    "a bell that is off the list is waited for": (
        "if not (to_do and self._crew.leave(bell)):",
        "if not to_do or self._crew.leave(bell):",
        "all workers wait",
    ),
}
"""Name -> source text, its faulty replacement, and the violation that this causes."""


@pytest.mark.parametrize("name", CASES)
def test_no_call_is_lost(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    explored = explore(resting(monkeypatch, **CASES[name]))
    assert explored.interleavings > 1_000


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE_CASES)
def test_no_call_is_lost_in_larger_cases(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    explored = explore(resting(monkeypatch, **LARGE_CASES[name]), most=5_000_000)
    assert explored.interleavings > 1_000


@pytest.mark.parametrize("name", MUTANT_RUNTIMES)
def test_a_lost_call_is_found_out(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    old, new, what = MUTANT_RUNTIMES[name]
    wrong = mutant(Runtime, old, new)
    cases = [{**case, "kind": wrong} for case in CASES.values()]
    with pytest.raises(Violation, match=what):
        explore_all(resting(monkeypatch, **case) for case in cases)
