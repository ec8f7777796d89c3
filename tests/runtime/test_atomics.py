"""Atomics: no step is lost, however threads are switched."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from penstock.runtime.atomics import EMPTY, Atomics
from tests.runtime.switches import run_side_by_side

THREADS, STEPS = 4, 5_000


def _by_all(work: Callable[[int], None]) -> None:
    run_side_by_side(*(partial(work, number) for number in range(THREADS)))


def test_a_counter_gives_each_number_once() -> None:
    counter = Atomics().counter(7)
    seen: list[list[int]] = [[] for _ in range(THREADS)]

    def work(number: int) -> None:
        for _ in range(STEPS):
            seen[number].append(counter.fetch_add(1))

    _by_all(work)
    assert sorted(value for own in seen for value in own) == list(range(7, 7 + THREADS * STEPS))


def test_a_counter_goes_up_and_down() -> None:
    counter = Atomics().counter(0)

    def work(number: int) -> None:
        for _ in range(STEPS):
            counter.fetch_add(3)
            counter.fetch_add(-2)

    _by_all(work)
    assert counter.load() == THREADS * STEPS
    assert counter.fetch_add(2**40) == THREADS * STEPS
    assert counter.load() == THREADS * STEPS + 2**40


def test_a_flag_has_one_owner() -> None:
    flag = Atomics().flag()
    inside = done = 0

    def work(number: int) -> None:
        nonlocal inside, done
        for _ in range(STEPS):
            if not flag.test_and_set():
                inside += 1
                assert inside == 1
                done += 1
                inside -= 1
                flag.clear()

    _by_all(work)
    assert inside == 0
    assert done > 0
    assert not flag.test_and_set()


def test_a_queue_gives_everything_once_and_in_order() -> None:
    queue = Atomics().queue()
    taken: list[list[tuple[int, int]]] = [[] for _ in range(THREADS)]

    def work(number: int) -> None:
        for step in range(STEPS):
            queue.put((number, step))
            if (value := queue.take()) is not EMPTY:
                taken[number].append(value)

    _by_all(work)
    everything = [pair for own in taken for pair in own]
    while (value := queue.take()) is not EMPTY:
        everything.append(value)
    assert len(everything) == len(set(everything)) == THREADS * STEPS
    for own in taken:
        for putter in range(THREADS):
            steps = [step for number, step in own if number == putter]
            assert steps == sorted(steps)
    assert queue.peek() is EMPTY
    assert len(queue) == 0


def test_cells_are_empty_until_stored() -> None:
    cells = Atomics().cells(3)
    cells.store(1, None)
    assert [cells.load(place) for place in range(3)] == [EMPTY, None, EMPTY]
