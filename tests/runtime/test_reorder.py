"""Reorder buffers: outputs are sent in order, once, and none is left behind."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from penstock.runtime.operators import Mark
from penstock.runtime.reorder import NonBlocking, Reorder, Unordered
from penstock_bench.ordered.rivals import LockBased
from tests.runtime.switches import run_side_by_side


@pytest.mark.parametrize("make", [lambda: NonBlocking(64), LockBased])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_outputs_leave_in_order(make: Callable[[], Reorder], threads: int) -> None:
    reorder = make()
    sent: list[Any] = []
    numbers = list(range(4000))
    for at in range(0, len(numbers), 32):  # disorder within reach of the buffer
        part = numbers[at : at + 32]
        random.Random(at).shuffle(part)
        numbers[at : at + 32] = part
    source = iter(numbers)
    taking = threading.Lock()

    def work() -> None:
        while True:
            with taking:
                serial = next(source, None)
            if serial is None:
                return
            while not reorder.send(serial, f"output {serial}", sent.append):
                pass

    run_side_by_side(*[work] * threads)
    assert sent == [f"output {serial}" for serial in range(4000)]
    assert reorder.next.load() == 4000


def test_a_bounded_buffer_has_no_place_far_ahead() -> None:
    buffer = NonBlocking(4)
    sent: list[Any] = []
    assert not buffer.send(4, "e", sent.append)
    assert buffer.send(3, None, sent.append)
    assert [buffer.send(serial, serial, sent.append) for serial in (0, 1)] == [True, True]
    assert buffer.send(4, "e", sent.append)
    assert sent == [0, 1]
    assert buffer.send(2, 2, sent.append)
    assert sent == [0, 1, 2, None, "e"]


def test_a_worker_leaves_its_output_to_another_that_is_sending() -> None:
    buffer = NonBlocking(8)
    sent: list[str] = []

    def downstream(output: str) -> None:
        sent.append(output)
        if output == "a":  # another worker comes while this one sends
            assert buffer.send(1, "b", downstream)
            assert sent == ["a"]

    assert buffer.send(0, "a", downstream)
    assert sent == ["a", "b"]


def test_without_order_a_mark_waits_for_what_came_before() -> None:
    unordered, mark = Unordered(), Mark()
    sent: list[Any] = []
    unordered.send(1, "b", sent.append)
    unordered.send(2, mark, sent.append)
    assert sent == ["b"]
    unordered.send(0, "a", sent.append)
    assert sent == ["b", "a", mark]
    assert unordered.next.load() == 3
