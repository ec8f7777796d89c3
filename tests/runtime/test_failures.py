"""Errors in operators end the run, but not the runtime."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from penstock.runtime import ChainOperator, Mark, Runtime
from penstock_bench.ordered.rivals import QUEUES, REORDERINGS
from tests.runtime.record_operators import global_, keyed, stateless
from tests.runtime.serial import run_serially


class Wrong(Exception):
    """The error that operators of these tests raise."""


def raise_at(number: int) -> Any:
    def work(record: int, state: object = None) -> list[int]:
        if record == number:
            raise Wrong(record)
        return [record]

    return work


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("queue", ["hybrid", "partitioned", "shared"])
@pytest.mark.parametrize("reorder", ["nonblocking", "lock", "none"])
def test_an_error_is_raised_and_the_runtime_usable_again(
    workers: int, queue: str, reorder: str
) -> None:
    chains: list[list[ChainOperator]] = [
        [stateless("ok", lambda r: [r]), stateless("bad", raise_at(70))],
        [keyed("bad", raise_at(70), lambda r: r % 5, 3, list), stateless("ok", lambda r: [r])],
        [global_("bad", raise_at(70), None)],
    ]
    for chain in chains:
        runtime = Runtime(
            chain, workers=workers, queue=QUEUES[queue], reorder=REORDERINGS[reorder], buffer=16
        )
        for _ in range(3):
            with pytest.raises(Wrong, match="70"):
                runtime.run(range(100))
            assert sorted(runtime.run(range(50))) == list(range(50))
        runtime.close()


@pytest.mark.parametrize("where", ["split", "join", "mark", "size"])
def test_errors_outside_work(where: str) -> None:
    class Bad:
        name, kind, parts = "bad", "keyed", 2

        def split(self, item: int) -> list[tuple[int, int]]:
            self._maybe("split", item)
            return [(item % 2, item)]

        def work(self, part: int, piece: int) -> int:
            return piece

        def join(self, item: int, results: list[int]) -> list[int]:
            self._maybe("join", item)
            return results

        def size(self, item: int) -> int:
            self._maybe("size", item)
            return 1

        def mark(self, mark: object) -> list[int]:
            self._maybe("mark", 70)
            return []

        def _maybe(self, place: str, item: int) -> None:
            if place == where and item == 70:
                raise Wrong(where)

    first = stateless("first", lambda r: [r])
    for chain in ([Bad()], [first, Bad()], [Bad(), first]):
        runtime = Runtime(chain, workers=3)  # type: ignore[arg-type]
        with pytest.raises(Wrong, match=where):
            runtime.run([*range(100), Mark(), *range(5)])
        assert runtime.run(range(5)) == list(range(5))
        runtime.close()


def test_the_earliest_known_error_is_raised() -> None:
    # Both have failed before either is reported: the later operator's item came earlier.
    both = threading.Barrier(2, timeout=10)

    def first(record: int) -> list[int]:
        if record == 1:
            both.wait()
            raise Wrong("later item")
        return [record]

    def second(record: int) -> list[int]:
        both.wait()
        raise Wrong("earlier item")

    runtime = Runtime([stateless("first", first), stateless("second", second)], workers=2)
    with pytest.raises(Wrong, match="earlier item"):
        runtime.run(range(2))
    runtime.close()


def test_nothing_new_is_begun_after_an_error() -> None:
    begun = []

    def work(record: int) -> list[int]:
        begun.append(record)
        if record == 3:
            raise Wrong(record)
        return [record]

    runtime = Runtime([stateless("bad", work)])
    with pytest.raises(Wrong):
        runtime.run(range(1000))
    assert begun == [0, 1, 2, 3]


def test_an_error_of_the_source_is_raised() -> None:
    def source() -> Any:
        yield from range(10)
        raise Wrong("source")

    runtime = Runtime([stateless("ok", lambda r: [r])], workers=2)
    with pytest.raises(Wrong, match="source"):
        runtime.run(source())
    assert runtime.run([1]) == [1]
    runtime.close()


def test_one_worker_that_takes_one_item_at_a_time_fails_as_the_serial_run() -> None:
    chain: list[ChainOperator] = [stateless("a", raise_at(9)), global_("b", raise_at(5), None)]
    with pytest.raises(Wrong, match="5"):
        run_serially(chain, range(10))
    with pytest.raises(Wrong, match="5"):
        Runtime(chain, schedule="lp", slice_ms=0).run(range(10))


def test_an_interrupt_leaves_the_runtime_usable() -> None:
    def work(record: int) -> list[int]:
        if record == 5:
            raise KeyboardInterrupt
        return [record]

    runtime = Runtime([stateless("a", work)], workers=3)
    with pytest.raises(KeyboardInterrupt):
        runtime.run(range(10))
    assert runtime.run(range(5)) == list(range(5))
    runtime.close()
