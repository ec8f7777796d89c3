"""A whole stage under every interleaving: items are fed, processed, joined and sent, and marks pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import pytest

from penstock.runtime import stages
from penstock.runtime.crew import Crew
from penstock.runtime.operators import Kind, Mark
from penstock.runtime.reorder import NonBlocking, Unordered
from penstock.runtime.stages import Halt, Stage
from penstock.runtime.worklists import GlobalWorklist, HybridQueue, SharedWorklist
from tests.runtime.explorer import Case, Make, Violation, explore
from tests.runtime.mutants import mutant
from tests.runtime.shared_objects import Cells
from tests.runtime.world import Ready, World, observed


class NamedMark(Mark):
    """A mark with a name, as items have one."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


class Item(NamedTuple):
    """An item with one piece for each of its parts."""

    name: str
    parts: tuple[int, ...] = (0,)


MARK, SECOND = NamedMark("mark"), NamedMark("second mark")
Entry = Item | NamedMark


class Watched:
    """An operator whose work is to enter gates, one per part; marks enter all of them."""

    def __init__(self, world: World, kind: Kind, entries: Sequence[Entry]) -> None:
        self.name, self.kind, self.parts = "watched", kind, 1
        items = [each for each in entries if isinstance(each, Item)]
        if kind == "keyed":
            self.parts = 1 + max(part for item in items for part in item.parts)
        self._gates = [
            world.gate(
                f"part {part}",
                [each.name for each in entries if isinstance(each, Mark) or part in each.parts],
            )
            for part in range(self.parts)
        ]

    def split(self, item: Item) -> tuple[tuple[int, Item], ...]:
        return tuple((part, item) for part in item.parts)

    def work(self, part: int, piece: Item) -> str:
        self._gates[part].enter(piece.name)
        self._gates[part].leave()
        return f"{piece.name}{part}"

    def join(self, item: Item, results: Any) -> tuple[str, ...]:
        assert [*results] == [f"{item.name}{part}" for part in item.parts], "a result is missing"
        return (item.name,)

    def size(self, item: Item) -> int:
        return 1

    def mark(self, mark: NamedMark) -> Sequence[str]:
        for gate in self._gates:
            gate.touch(mark.name)
        return ()


class Carefree(Watched):
    """A stateless operator: items are processed in any order, but not across marks."""

    def __init__(self, world: World, entries: Sequence[Entry]) -> None:
        self.name, self.kind, self.parts = "carefree", "stateless", 1
        self._passed = world.counter(0)
        self._before = {
            each.name: sum(isinstance(other, Mark) for other in entries[:place])
            for place, each in enumerate(entries)
        }

    def work(self, part: int, piece: Item) -> str:
        assert self._passed.load() == self._before[piece.name], "a mark was overtaken"
        return f"{piece.name}{part}"

    def mark(self, mark: NamedMark) -> Sequence[str]:
        self._passed.fetch_add(1)
        return ()


@dataclass(frozen=True)
class Results:
    """The results of an item's pieces, in shared memory."""

    cells: Cells
    pieces: int

    def __setitem__(self, index: int, result: Any) -> None:
        self.cells.store(index, result)

    def __iter__(self) -> Iterator[Any]:
        return (self.cells.load(index) for index in range(self.pieces))


class Ticket(stages._Ticket):
    """A ticket that is compared by value, since a task that is run again makes it again."""

    def __init__(self, serial: int, item: Any, pieces: int, size: int, atomics: Any) -> None:
        super().__init__(serial, item, pieces, size, atomics)
        if pieces > 1:
            self.results: Any = Results(atomics.cells(pieces), pieces)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ticket) and self._value() == other._value()

    def __hash__(self) -> int:
        return hash(self._value())

    def _value(self) -> tuple[Any, ...]:
        return self.serial, self.item, self.pending

    def __repr__(self) -> str:
        return f"ticket {self.serial}"


class Outlet:
    """The end of the chain, after the stage."""

    def __init__(self, world: World, entries: Sequence[Entry]) -> None:
        self._gate = world.gate("outlet", [each.name for each in entries])

    def prepare(self, items: Sequence[str]) -> Sequence[str]:
        return items

    def feed(self, prepared: str) -> None:
        self._gate.touch(prepared)

    def feed_mark(self, mark: NamedMark) -> None:
        self.feed(mark.name)


def staging(
    kind: Kind, entries: Sequence[Entry], workers: int, room: int, stage_kind: Any = Stage
) -> Make:
    """One worker feeds all entries, the others take turns until all have been sent."""

    def make(world: World) -> Case:
        stateless = kind == "stateless"
        operator = Carefree(world, entries) if stateless else Watched(world, kind, entries)
        atomics: Any = world
        worklist: Any
        if kind == "keyed":
            worklist = HybridQueue(operator.parts, atomics)
        elif kind == "global":
            worklist = observed(GlobalWorklist, world, "_taken")(atomics)
        else:
            worklist = SharedWorklist(atomics)
        reorder = Unordered(atomics) if kind == "global" else NonBlocking(room + workers, atomics)
        stage = observed(stage_kind, world, "_holding", "_barred")(
            0, operator, worklist, reorder, room, Outlet(world, entries), Crew(), Halt(), atomics
        )
        world.watch(stage, worklist, reorder)

        def feed(each: Entry) -> None:
            if isinstance(each, Mark):
                stage.feed_mark(each)
            else:
                stage.feed(stage.prepare((each,))[0])

        def complete() -> bool:
            return bool(stage.sent.load() == len(entries))

        def work() -> Ready | None:
            stage.work(1)
            return None if complete() else (lambda: stage.ready() or complete())

        return Case([[partial(feed, each) for each in entries], *[[work]] * workers])

    return make


A, B = Item("a"), Item("b")

CASES: dict[str, tuple[Kind, list[Entry], int, int]] = {
    "stateless": ("stateless", [A, B], 2, 2),
    "stateless, little room": ("stateless", [A, B], 2, 1),
    "stateless, a mark": ("stateless", [A, MARK, B], 1, 2),
    "global": ("global", [A, B], 1, 2),
    "global, a mark": ("global", [MARK, A, B], 1, 2),
    "keyed": ("keyed", [Item("a", (0, 1)), Item("b", (1, 0))], 1, 2),
    "keyed, two workers": ("keyed", [Item("a", (0, 1))], 2, 2),
    "keyed, a mark": ("keyed", [Item("a", (1,)), MARK, Item("b", (0, 1))], 1, 2),
    "keyed, two after a mark": ("keyed", [MARK, A, B], 1, 2),
}
"""Name -> kind of operator, its input, number of workers, room in the reorder buffer."""

LARGE_CASES: dict[str, tuple[Kind, list[Entry], int, int]] = {
    "stateless, two marks": ("stateless", [MARK, SECOND, A], 1, 2),
    "stateless, two after a mark": ("stateless", [MARK, A, B], 1, 2),
    "stateless, a mark and two workers": ("stateless", [MARK, A], 2, 2),
    "keyed, a mark and two workers": ("keyed", [MARK, A], 2, 2),
    "keyed, two workers, two items": ("keyed", [Item("a", (0, 1)), Item("b", (1,))], 2, 2),
}

MUTANT_STAGES = {
    "the holding ends while another lets in": (
        "if feeding and head is EMPTY:",
        "if feeding and not self._barred:",
        CASES["global, a mark"],
        "comes where a is due",
    ),
    "barred once the mark is in": (
        """self._barred = isinstance(head[1], Mark)
                self._enqueue(*head)
""",
        """self._enqueue(*head)
                self._barred = isinstance(head[1], Mark)
""",
        CASES["stateless, a mark"],
        "all workers wait",
    ),
    "without the last look": (
        "if self._barred or not len(held):",
        "if True:",
        CASES["keyed, a mark"],
        "all workers wait",
    ),
    "no bar": (
        "self._barred = isinstance(head[1], Mark)",
        "pass",
        LARGE_CASES["stateless, a mark and two workers"],
        "overtaken",
    ),
}
"""Name -> source text, its faulty replacement, the case, and the violation that this causes."""


@pytest.fixture(autouse=True)
def comparable_tickets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "_Ticket", Ticket)


@pytest.mark.parametrize("name", CASES)
def test_a_stage_does_what_a_serial_run_would_do(name: str) -> None:
    explored = explore(staging(*CASES[name]))
    assert explored.interleavings > 1_000


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE_CASES)
def test_a_stage_in_larger_cases(name: str) -> None:
    explored = explore(staging(*LARGE_CASES[name]), most=5_000_000)
    assert explored.interleavings > 1_000


@pytest.mark.parametrize("name", MUTANT_STAGES)
def test_a_wrong_stage_is_found_out(name: str) -> None:
    old, new, case, what = MUTANT_STAGES[name]
    with pytest.raises(Violation, match=what):
        explore(staging(*case, mutant(Stage, old, new)))
