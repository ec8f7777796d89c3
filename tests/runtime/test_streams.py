"""The runtime as a stream, as live hosts and trials use it: submit, drain, finish, stop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from penstock.errors import SettingError
from penstock.runtime import Runtime
from tests.runtime.chains import Link, items_of, operators_of
from tests.runtime.record_operators import stateless
from tests.runtime.serial import run_serially

CHAIN = [Link("stateless", 1, (1, 2), 1), Link("keyed", 7, (1, 0), 8), Link("global", 1, (1,), 1)]


@pytest.mark.parametrize("workers", [1, 2, 6])
@pytest.mark.parametrize("buffer", [2, 1024])
def test_a_stream_gives_what_the_serial_run_gives(workers: int, buffer: int) -> None:
    items = items_of(range(500), None, 50)
    expected = run_serially(operators_of(CHAIN, None), items)
    runtime = Runtime(operators_of(CHAIN, None), workers=workers, buffer=buffer)
    outputs: list[Any] = []
    runtime.open(outputs.append)
    for item in items:
        runtime.submit(item)
    runtime.finish()
    assert outputs == expected
    assert not [t for t in threading.enumerate() if t.name.startswith("penstock-worker")]
    assert len(runtime.run([1])) >= 0


def test_a_stream_that_was_drained_goes_on() -> None:
    """After `drain` all submitted items have left, and the workers stay."""
    runtime = Runtime(operators_of(CHAIN, None), workers=3)
    outputs: list[Any] = []
    runtime.open(outputs.append)
    items = items_of(range(200), None, 50)
    expected = run_serially(operators_of(CHAIN, None), items)
    for begin in range(0, len(items), 40):
        for item in items[begin : begin + 40]:
            runtime.submit(item)
        runtime.drain()
        assert outputs == expected[: len(outputs)]
        threads = [t for t in threading.enumerate() if t.name.startswith("penstock-worker")]
        assert len(threads) == 3
    assert outputs == expected
    runtime.close()
    assert not runtime.is_open


def test_items_can_be_put_behind_the_first_operators() -> None:
    runtime = Runtime(
        [stateless("a", lambda r: [(*r, "a")]), stateless("b", lambda r: [(*r, "b")])], workers=2
    )
    outputs: list[Any] = []
    runtime.open(outputs.append)
    runtime.submit(("first",))
    runtime.drain()
    runtime.submit_ahead(1, [("second",), ("third",)])
    runtime.drain()
    runtime.close()
    assert [name for name, *_ in outputs] == ["first", "second", "third"]


def test_outputs_leave_while_the_stream_goes_on() -> None:
    came = threading.Event()
    runtime = Runtime([stateless("a", lambda r: [r])], workers=2)
    runtime.open(lambda output: came.set())
    runtime.submit(1)
    assert came.wait(10)
    runtime.finish()


def test_an_error_ends_the_stream() -> None:
    def work(record: int) -> list[int]:
        if record == 20:
            raise ValueError("twenty")
        return [record]

    runtime = Runtime([stateless("a", work)], workers=3, buffer=4)
    outputs: list[int] = []
    runtime.open(outputs.append)

    def feed() -> None:
        for record in range(1000):
            runtime.submit(record)
        runtime.finish()

    with pytest.raises(ValueError, match="twenty"):
        feed()
    assert outputs == list(range(len(outputs)))
    assert len(outputs) <= 20
    assert runtime.run([1, 2]) == [1, 2]
    runtime.close()


def test_stop_drops_what_is_under_way() -> None:
    go = threading.Event()

    def work(record: int) -> list[int]:
        go.wait(10)
        return [record]

    outputs: list[int] = []
    runtime = Runtime([stateless("a", work)], workers=2)
    runtime.open(outputs.append)
    for record in range(100):
        runtime.submit(record)
    threading.Timer(0.05, go.set).start()
    runtime.stop()
    assert len(outputs) < 100
    assert runtime.run([7]) == [7]
    runtime.close()


def test_a_stream_must_be_opened_once() -> None:
    runtime = Runtime([stateless("a", lambda r: [r])])
    methods: list[Callable[[], object]] = [lambda: runtime.submit(1), runtime.finish, runtime.stop]
    for method in methods:
        with pytest.raises(SettingError):
            method()
    runtime.open(lambda output: None)
    with pytest.raises(SettingError):
        runtime.run([1])
    with pytest.raises(SettingError):
        runtime.open(lambda output: None)
    runtime.close()
    assert runtime.run([1]) == [1]
