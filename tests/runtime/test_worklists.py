"""Worklists: every piece once, the pieces of a part in order and one at a time."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from penstock.runtime.worklists import GlobalWorklist, HybridQueue, SharedWorklist, Worklist
from penstock_bench.ordered.rivals import PartitionedQueue, SharedQueue
from tests.runtime.switches import run_side_by_side

PARTS = 3
KEYED = [HybridQueue, PartitionedQueue, SharedQueue]


def _without_bound() -> int:
    return sys.maxsize


@pytest.mark.parametrize("make", KEYED)
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_parts_are_worked_on_in_order_and_one_at_a_time(
    make: Callable[[int], Worklist], threads: int
) -> None:
    worklist, pieces = make(PARTS), 3000
    seen: list[list[int]] = [[] for _ in range(PARTS)]
    busy = [0] * PARTS
    wrong: list[str] = []

    def operate(piece: tuple[int, int]) -> float:
        part, serial = piece
        busy[part] += 1
        if busy[part] != 1:
            wrong.append(f"two workers at part {part}")
        seen[part].append(serial)
        busy[part] -= 1
        return 1

    def put() -> None:
        for serial in range(pieces):
            part = serial * serial % PARTS
            worklist.put(serial, part, (part, serial))

    def work() -> None:
        while sum(map(len, seen)) < pieces and not wrong:
            worklist.consume(operate, 10, _without_bound)

    run_side_by_side(*[work] * threads, put)
    assert not wrong
    for part in range(PARTS):
        assert seen[part] == [s for s in range(pieces) if s * s % PARTS == part]
    assert len(worklist) == 0
    assert not worklist.ready(_without_bound)


@pytest.mark.parametrize(
    "make", [*KEYED, lambda parts: SharedWorklist(), lambda parts: GlobalWorklist()]
)
def test_nothing_beyond_the_bound_or_the_budget_is_taken(make: Callable[[int], Worklist]) -> None:
    worklist, seen = make(1), []

    def operate(piece: int) -> float:
        seen.append(piece)
        return 2

    for serial in range(10):
        worklist.put(serial, 0, serial)
    assert worklist.consume(operate, 100, lambda: 0) == (0, 0)
    assert not worklist.ready(lambda: 0)
    assert worklist.consume(operate, 100, lambda: 4) == (4, 8)
    assert worklist.ready(lambda: 5)
    assert worklist.consume(operate, 3, lambda: 10) == (2, 4)
    assert worklist.consume(operate, 0, lambda: 10) == (1, 2)
    assert seen == list(range(7))
    assert len(worklist) == 3


def test_a_busy_part_is_left_to_the_worker_that_is_there() -> None:
    worklist = HybridQueue(2)
    seen: list[str] = []
    for serial, part in enumerate([0, 0, 1]):
        worklist.put(serial, part, f"{serial} of part {part}")

    def operate(piece: Any) -> float:
        seen.append(f"begin {piece}")
        if piece == "0 of part 0":  # another worker comes: it can do only part 1
            assert worklist.consume(operate, 100, _without_bound) == (1, 1)
        seen.append(f"end {piece}")
        return 1

    assert worklist.consume(operate, 100, _without_bound) == (2, 2)
    assert seen == [
        "begin 0 of part 0",
        "begin 2 of part 1",
        "end 2 of part 1",
        "end 0 of part 0",
        "begin 1 of part 0",
        "end 1 of part 0",
    ]


def test_a_taken_part_is_passed_over() -> None:
    worklist = PartitionedQueue(2)
    for serial in range(4):
        worklist.put(serial, serial % 2, serial)
    seen: list[int] = []

    def operate(piece: int) -> float:
        if not seen:
            seen.append(piece)
            assert worklist.consume(operate, 100, _without_bound) == (2, 2)
        else:
            seen.append(piece)
        return 1

    worklist.consume(operate, 100, _without_bound)
    assert sorted(seen) == [0, 1, 2, 3]
    assert [s % 2 for s in seen] in ([0, 1, 1, 0], [1, 0, 0, 1])


def test_a_global_worklist_has_one_worker() -> None:
    worklist = GlobalWorklist()
    for serial in range(3):
        worklist.put(serial, 0, serial)

    def operate(piece: int) -> float:
        assert not worklist.ready(_without_bound)
        assert worklist.consume(operate, 100, _without_bound) == (0, 0)
        return 1

    assert worklist.consume(operate, 100, _without_bound) == (3, 3)
