"""The reorder buffer and the hybrid queue under every interleaving of their atomic steps.

The cases are small, but explored completely: see `tests.runtime.explorer`. Faulty classes that differ
from the real ones in a line or two show that it would find errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from penstock.runtime.atomics import EMPTY
from penstock.runtime.reorder import NonBlocking
from penstock.runtime.worklists import HybridQueue
from tests.runtime.explorer import Case, Make, Violation, explore, explore_all
from tests.runtime.mutants import mutant
from tests.runtime.world import Ready, World


def reordering(serials: Sequence[Sequence[int]], size: int, kind: Any = NonBlocking) -> Make:
    """Each worker sends the outputs with its serial numbers through a buffer of this size."""
    count = sum(map(len, serials))

    def make(world: World) -> Case:
        buffer = kind(size, world)
        world.watch(buffer)
        sent = world.gate("downstream", range(count))

        def downstream(output: int) -> None:
            sent.enter(output)
            sent.leave()

        def send(serial: int) -> Ready | None:
            if buffer.send(serial, serial, downstream):
                return None
            return lambda: serial < buffer.next.load() + size

        def at_rest(done: list[int]) -> None:
            pairs = zip(serials, done, strict=True)
            missing = {serial for numbers, n in pairs for serial in numbers[n:]}
            due = sent.due()
            assert not due or due[0] in missing, f"{due[0]} is ready and left behind"

        return Case([[partial(send, s) for s in numbers] for numbers in serials], at_rest)

    return make


def draining(
    parts: Sequence[int], workers: int, waiting: int, kind: Any = HybridQueue, budget: int = 100
) -> Make:
    """Workers process pieces of these parts; `waiting` pieces wait at first, and the first worker puts
    the others.

    A worker takes turns of `budget` pieces, until there is nothing left.
    """

    def make(world: World) -> Case:
        queue = kind(max(parts) + 1, world)
        gates = [
            world.gate(f"part {part}", [n for n, each in enumerate(parts) if each == part])
            for part in range(max(parts) + 1)
        ]

        def operate(number: Any) -> int:
            assert number is not EMPTY, "no piece where one was promised"
            gates[parts[number]].enter(number)
            gates[parts[number]].leave()
            return 1

        def bound() -> int:
            return len(parts)

        def put(number: int) -> None:
            queue.put(number, parts[number], number)

        def consume() -> Ready | None:
            pieces, _ = queue.consume(operate, budget, bound)
            return (lambda: True) if pieces else None

        for number in range(waiting):
            put(number)
        world.watch(queue)
        puts = [partial(put, number) for number in range(waiting, len(parts))]
        return Case([[*puts, consume], *[[consume]] * (workers - 1)])

    return make


SENDING = {
    "two workers": ([[0], [1]], 2),
    "a buffer of one": ([[0], [1], [2]], 1),
    "a buffer of two": ([[0], [1], [2]], 2),
    "three workers": ([[0], [1], [2]], 3),
    "two each": ([[0, 3], [1, 2]], 2),
    "two each, in turn": ([[0, 2], [1, 3]], 4),
}

MUTANT_BUFFERS = {
    "without the last look": ("if load(place) is EMPTY:", "if True:", "left behind"),
    "the last look before the flag is cleared": (
        """flag.clear()
            # A worker that came between the last check and the clearing found the flag set and left.
            if load(place) is EMPTY:
""",
        """last = load(place)
            flag.clear()
            if last is EMPTY:
""",
        "left behind",
    ),
    "the flag cleared too early": (
        "place = self.next.load() % size",
        "flag.clear(); place = self.next.load() % size",
        "enters where another is",
    ),
    "the next number before the place is empty": (
        """store(place, EMPTY)
                place = (self.next.fetch_add(1) + 1) % size
""",
        """after = (self.next.fetch_add(1) + 1) % size
                store(place, EMPTY)
                place = after
""",
        "left behind",
    ),
    "one place too many": ("< first + self._size", "<= first + self._size", "is due"),
    "everybody sends": (
        "while not flag.test_and_set():",
        "while flag.test_and_set() is not None:",
        "enters where another is",
    ),
}
"""Name -> source text, its faulty replacement, and the violation that this causes."""

DRAINING = {
    "one part": ([0, 0, 0], 2, 0),
    "two parts": ([0, 0, 1, 0], 2, 1),
    "three workers": ([0, 0], 3, 2),
    "three workers, two parts": ([0, 1], 3, 2),
}

MUTANT_QUEUES = {
    "counted out before the work": (
        """records += operate(queue.take())
                    pieces += 1
                    if count.fetch_add(-1) <= 1:
""",
        """left = count.fetch_add(-1)
                    records += operate(queue.take())
                    pieces += 1
                    if left <= 1:
""",
        "enters where another is|is due",
    ),
    "the master queue first": (
        "self._queues[part].put(piece)\n        self._queue.put((serial, part))",
        "self._queue.put((serial, part))\n        self._queues[part].put(piece)",
        "no piece where one was promised",
    ),
    "a count that is looked at, then raised": (
        "if count.fetch_add(1) == 0:",
        "if (count.load(), count.fetch_add(1))[0] == 0:",
        "enters where another is|is due",
    ),
    "pieces left to a worker are forgotten": (
        "if count.fetch_add(-1) <= 1:",
        "if count.fetch_add(-1):",
        "left behind",
    ),
    "a worker that leaves too late": (
        "if count.fetch_add(-1) <= 1:",
        "if count.fetch_add(-1) <= 0:",
        "no piece where one was promised",
    ),
    "pieces are left to nobody": (
        "if count.fetch_add(1) == 0:",
        "if count.fetch_add(1) >= 0:",
        "enters where another is|is due",
    ),
}


@pytest.mark.parametrize("name", SENDING)
def test_outputs_are_sent_once_in_order_and_none_is_left_behind(name: str) -> None:
    serials, size = SENDING[name]
    explored = explore(reordering(serials, size))
    assert explored.interleavings > 1_000
    assert explored.alone <= 7 + 5 * size, "no more than to send what is in a full buffer"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("serials", "size"), [([[0, 3, 4], [1, 2, 5]], 3), ([[0, 3], [1], [2]], 2)]
)
def test_more_outputs_are_sent_in_order(serials: list[list[int]], size: int) -> None:
    explored = explore(reordering(serials, size), most=5_000_000)
    assert explored.alone <= 7 + 5 * size


@pytest.mark.parametrize("name", MUTANT_BUFFERS)
def test_a_wrong_reorder_buffer_is_found_out(name: str) -> None:
    old, new, what = MUTANT_BUFFERS[name]
    wrong = mutant(NonBlocking, old, new)
    with pytest.raises(Violation, match=what):
        explore_all(reordering(*case, wrong) for case in SENDING.values())


@pytest.mark.parametrize("budget", [1, 100])
@pytest.mark.parametrize("name", DRAINING)
def test_pieces_are_worked_on_once_in_order_one_at_a_time_in_a_part(name: str, budget: int) -> None:
    parts, workers, waiting = DRAINING[name]
    explored = explore(draining(parts, workers, waiting, budget=budget))
    assert explored.interleavings > 1_000
    assert explored.alone <= 2 + 7 * len(parts), "no more than to work on all pieces"


@pytest.mark.slow
@pytest.mark.parametrize(("parts", "waiting"), [([0, 0, 0], 0), ([0, 1, 0], 3)])
def test_more_pieces_are_worked_on_in_order(parts: list[int], waiting: int) -> None:
    explored = explore(draining(parts, 3, waiting, budget=1), most=5_000_000)
    assert explored.alone <= 2 + 7 * len(parts)


@pytest.mark.parametrize("name", MUTANT_QUEUES)
def test_a_wrong_hybrid_queue_is_found_out(name: str) -> None:
    old, new, what = MUTANT_QUEUES[name]
    wrong = mutant(HybridQueue, old, new)
    with pytest.raises(Violation, match=what):
        explore_all(draining(*case, wrong) for case in DRAINING.values())


def test_a_violation_has_a_shortest_interleaving() -> None:
    old, new, _ = MUTANT_BUFFERS["without the last look"]
    with pytest.raises(Violation) as caught:
        explore(reordering([[0], [1]], 2, mutant(NonBlocking, old, new)))
    assert caught.value.what.startswith("0 is ready and left behind")
    # Worker 1 finds nothing to send; before it clears the flag, worker 0 hands in output 0 and leaves.
    assert [line[:8] for line in caught.value.trace].count("worker 1") == 6
    assert len(caught.value.trace) == 9
