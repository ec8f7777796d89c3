"""The reorder buffer and the hybrid queue with the real atomics, threads switched at any opcode.

The model check assumes that each method of an atomic is one step. These tests do not: the turn may pass
between any two opcodes, also within the atomics.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import pytest

from penstock.runtime.atomics import Atomics, Counter
from penstock.runtime.reorder import NonBlocking
from penstock.runtime.worklists import HybridQueue
from tests.runtime.switches import RUNTIME, Switched

TRACED = (RUNTIME, __file__)

Turns = list[tuple[int, int]]


def sending(turns: Turns, atomics: Atomics, workers: int) -> Switched:
    """Let each worker send one output; the last worker has the first one."""
    buffer, sent = NonBlocking(workers, atomics), list[int]()

    def send(serial: int) -> None:
        assert buffer.send(serial, serial, sent.append)

    switched = Switched([partial(send, workers - 1 - n) for n in range(workers)], turns, TRACED)
    switched.run()
    assert sent == list(range(workers))
    return switched


def draining(turns: Turns, atomics: Atomics, workers: int) -> Switched:
    """Let the first worker put three pieces of two parts, then all workers process them."""
    queue, parts = HybridQueue(2, atomics), [0, 1, 0]
    begun: list[list[int]] = [[], []]
    busy = [False, False]

    def operate(number: int) -> int:
        part = parts[number]
        assert not busy[part]
        busy[part] = True
        begun[part].append(number)
        busy[part] = False
        return 1

    def consume() -> None:
        queue.consume(operate, 100, lambda: 100)

    def put_and_consume() -> None:
        for number, part in enumerate(parts):
            queue.put(number, part, number)
        consume()

    switched = Switched([put_and_consume, *[consume] * (workers - 1)], turns, TRACED)
    switched.run()
    assert begun == [[0, 2], [1]]
    return switched


class TornCounter(Counter):
    """A counter that reads, adds and writes: three steps where there should be one."""

    def __init__(self, value: int) -> None:
        self._value = value

    def load(self) -> int:
        return self._value

    def fetch_add(self, number: int) -> int:
        before = self._value
        self._value = before + number
        return before


class TornAtomics(Atomics):
    """Atomics with counters that are not atomic."""

    def counter(self, value: int = 0) -> Counter:
        return TornCounter(value)


CASES = [sending, draining]
Run = Callable[[Turns, Atomics, int], Switched]


def opcodes_of(run: Run, atomics: Atomics, workers: int) -> list[int]:
    """Number of opcodes of each worker when none is stopped."""
    run([], atomics, workers)  # Python 3.13 does not trace opcodes of the first traced thread
    return run([], atomics, workers).opcodes


def one_switch(run: Run, atomics: Atomics) -> None:
    """Stop one worker at each opcode in turn, and let the other one run to its end meanwhile."""
    far = max(opcodes_of(run, atomics, 2))
    for first in (0, 1):
        for opcodes in range(far):
            run([(first, opcodes), (1 - first, 10 * far)], atomics, 2)


def some_switches(run: Run, atomics: Atomics, workers: int, rounds: int) -> None:
    """Stop workers at random opcodes, several times."""
    drawn = random.Random(workers)
    far = max(opcodes_of(run, atomics, workers))
    for _ in range(rounds):
        turns = [
            (drawn.randrange(workers), drawn.randrange(1, far // 2))
            for _ in range(drawn.randint(2, 4 * workers))
        ]
        run(turns, atomics, workers)


@pytest.mark.parametrize("run", CASES)
def test_no_switch_does_harm(run: Run) -> None:
    one_switch(run, Atomics())


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("run", CASES)
def test_switches_do_no_harm(run: Run, workers: int) -> None:
    some_switches(run, Atomics(), workers, rounds=150)


def test_a_torn_counter_is_found_out() -> None:
    with pytest.raises(AssertionError):
        some_switches(draining, TornAtomics(), 3, rounds=400)


@pytest.mark.slow
@pytest.mark.parametrize(("run", "stride"), [(sending, 1), (draining, 13)])
def test_no_two_switches_do_harm(run: Run, stride: int) -> None:
    taken = opcodes_of(run, Atomics(), 2)
    for first in (0, 1):
        for opcodes in range(taken[first]):
            for others in range(opcodes % stride, max(taken), stride):
                run([(first, opcodes), (1 - first, others)], Atomics(), 2)
