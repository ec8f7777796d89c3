"""The output of any run is that of the serial run, for many chains, keys, skews, chunks, workers and
queues."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import SettingError
from penstock.runtime import ChainOperator, Runtime
from penstock.runtime.reorder import NonBlocking
from penstock.runtime.worklists import HybridQueue
from penstock_bench.ordered.rivals import REORDERINGS, LockBased, PartitionedQueue, SharedQueue
from tests.runtime.chains import Flush, Link, Telling, chains, items_of, operators_of
from tests.runtime.record_operators import chunked, global_, keyed, stateless
from tests.runtime.serial import run_serially
from tests.runtime.switches import forced_switches

QUEUES = [HybridQueue, PartitionedQueue, SharedQueue]
SCHEDULES = ["ct", "et", "lp", "qst"]


@contextmanager
def closing(runtime: Runtime) -> Iterator[Runtime]:
    """Close the runtime afterwards, and check that its threads have ended."""
    try:
        yield runtime
    finally:
        runtime.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("penstock-worker")]


settings_of_a_run = st.fixed_dictionaries(
    {
        "workers": st.integers(1, 8),
        "queue": st.sampled_from(QUEUES),
        "schedule": st.sampled_from(SCHEDULES),
        "reorder": st.sampled_from([NonBlocking, NonBlocking, LockBased]),
        "buffer": st.sampled_from([1, 2, 16, 1024]),
        "slice_ms": st.sampled_from([0.01, 1.0]),
    }
)


@given(
    chain=chains,
    records=st.lists(st.integers(0, 50), max_size=60),
    chunk=st.sampled_from([None, 1, 4, 25]),
    marks_every=st.sampled_from([None, 1, 5]),
    options=settings_of_a_run,
)
@settings(max_examples=150, derandomize=True)
def test_any_run_is_the_serial_run(
    chain: list[Link],
    records: list[int],
    chunk: int | None,
    marks_every: int | None,
    options: dict[str, Any],
) -> None:
    items = items_of(records, chunk, marks_every)
    expected = run_serially(operators_of(chain, chunk), items)
    with closing(Runtime(operators_of(chain, chunk), **options)) as runtime:
        # In two runs: state and serial numbers continue.
        half = len(items) // 2
        assert runtime.run(items[:half]) + runtime.run(iter(items[half:])) == expected


@given(
    chain=chains,
    records=st.lists(st.integers(0, 50), min_size=100, max_size=300),
    chunk=st.sampled_from([None, 3]),
    marks_every=st.sampled_from([None, 7]),
    options=settings_of_a_run,
)
@settings(max_examples=40, derandomize=True)
def test_any_run_is_the_serial_run_under_forced_switches(
    chain: list[Link],
    records: list[int],
    chunk: int | None,
    marks_every: int | None,
    options: dict[str, Any],
) -> None:
    items = items_of(records, chunk, marks_every)
    expected = run_serially(operators_of(chain, chunk), items)
    options["workers"] += 1
    with forced_switches(), closing(Runtime(operators_of(chain, chunk), **options)) as runtime:
        assert runtime.run(items) == expected


@pytest.mark.parametrize("queue", QUEUES)
@pytest.mark.parametrize("workers", [1, 2, 6])
def test_a_mark_finds_the_state_of_a_serial_run(queue: Any, workers: int) -> None:
    def chain() -> list[ChainOperator]:
        kinds = [
            Link("stateless", 1, (1, 2), 1),
            Link("keyed", 7, (1, 0), 4),
            Link("keyed", 5, (1,), 3),
            Link("global", 1, (1,), 1),
        ]
        made = operators_of(kinds, None)
        return [made[0], *map(Telling, made[1:])]

    items = items_of(range(400), None, 20)
    items[50:50] = [Flush(-1), Flush(-2)]
    expected = run_serially(chain(), items)
    with forced_switches(), closing(Runtime(chain(), workers=workers, queue=queue)) as runtime:
        assert runtime.run(items) == expected


@pytest.mark.slow
@pytest.mark.parametrize("queue", QUEUES)
def test_long_runs_under_forced_switches(queue: Any) -> None:
    chain = [
        Link("stateless", 1, (1, 2), 1),
        Link("keyed", 7, (1, 0), 100),
        Link("global", 1, (1,), 1),
        Link("keyed", 1000, (0, 1, 3), 16),
    ]
    items = items_of(range(20_000), None, 1000)
    expected = run_serially(operators_of(chain, None), items)
    for workers, buffer in ((2, 4), (8, 64), (16, 1024)):
        runtime = Runtime(operators_of(chain, None), workers=workers, queue=queue, buffer=buffer)
        with forced_switches(), closing(runtime):
            assert runtime.run(items) == expected


@given(chain=chains, records=st.lists(st.integers(0, 50), max_size=60), options=settings_of_a_run)
@settings(max_examples=40, derandomize=True)
def test_without_order_a_stateless_chain_gives_the_same_records(
    chain: list[Link], records: list[int], options: dict[str, Any]
) -> None:
    chain = [Link("stateless", link.modulus, link.outputs, 1) for link in chain]
    items = items_of(records, None, 5)
    expected = run_serially(operators_of(chain, None), items)
    options["reorder"] = REORDERINGS["none"]
    with closing(Runtime(operators_of(chain, None), **options)) as runtime:
        outputs = runtime.run(items)
    # Marks are barriers even without order.
    assert [sorted(part) for part in _between_marks(outputs)] == [
        sorted(part) for part in _between_marks(expected)
    ]


def _between_marks(outputs: list[Any]) -> list[list[Any]]:
    parts: list[list[Any]] = [[]]
    for output in outputs:
        if isinstance(output, Flush):
            parts.append([])
        else:
            parts[-1].append(output)
    return parts


@pytest.mark.parametrize("queue", QUEUES)
def test_sleeping_work_is_done_side_by_side_and_parts_never_twice(queue: Any) -> None:
    busy = [0] * 8
    seen_together = 0

    def work(record: int, state: list[int]) -> list[tuple[int, int]]:
        nonlocal seen_together
        part = record % 8
        busy[part] += 1
        assert busy[part] == 1
        seen_together = max(seen_together, sum(busy))
        time.sleep(0.001)
        busy[part] -= 1
        state.append(record)
        return [(record, len(state))]

    chain = [keyed("k", work, lambda r: r % 8, 8, list, part_of=lambda key: key)]
    with closing(Runtime(chain, workers=4, queue=queue)) as runtime:
        assert runtime.run(range(80)) == [(r, r // 8 + 1) for r in range(80)]
    assert 2 <= seen_together <= 4


@pytest.mark.parametrize("queue", [HybridQueue, PartitionedQueue])
def test_sixteen_workers_are_at_work_at_once(queue: Any) -> None:
    # No worker continues before all have arrived.
    everybody = threading.Barrier(16, timeout=30)

    def meet(record: int, state: object = None) -> list[int]:
        everybody.wait()
        return [record]

    shared = stateless("shared", meet)
    parted = keyed("parted", meet, lambda r: r, 16, list, part_of=lambda key: key)
    for operator in (shared, parted):
        with closing(Runtime([operator], workers=16, queue=queue)) as runtime:
            assert runtime.run(range(64)) == list(range(64))


def test_an_item_without_pieces_still_goes_through_join() -> None:
    class Rows:
        name, kind, parts = "rows", "keyed", 4

        def split(self, item: list[int]) -> list[tuple[int, list[int]]]:
            return [(part, [r for r in item if r % 4 == part]) for part in {r % 4 for r in item}]

        def work(self, part: int, piece: list[int]) -> int:
            return sum(piece)

        def join(self, item: list[int], results: list[int]) -> list[int]:
            return [sum(results)]

        def size(self, item: Any) -> int:
            return 1

        def mark(self, mark: Any) -> list[int]:
            return []

    items = [[1, 2, 3, 5], [], [4]]
    for queue in QUEUES:
        with closing(Runtime([Rows()], workers=2, queue=queue)) as runtime:  # type: ignore[arg-type, list-item]
            assert runtime.run(items) == [11, 0, 4]


def test_items_are_fed_as_they_are_needed() -> None:
    fed = done = most = 0

    def source() -> Iterator[int]:
        nonlocal fed, most
        for number in range(1000):
            fed += 1
            most = max(most, fed - done)
            yield number

    def count(record: int, state: None) -> list[int]:
        nonlocal done
        done += 1
        return [record]

    chain: list[ChainOperator] = [stateless("a", lambda r: [r]), global_("count", count, None)]
    with closing(Runtime(chain, buffer=8, schedule="lp")) as runtime:
        assert runtime.run(source()) == list(range(1000))
    assert most < 100


def test_meters() -> None:
    chain = [
        chunked(stateless("twice", lambda r: [r, r])),
        chunked(keyed("odd", lambda r, s: [r] * (r % 2), lambda r: r, 8, list)),
    ]
    with closing(Runtime(chain, workers=3)) as runtime:
        runtime.run([list(range(at, at + 10)) for at in range(0, 1000, 10)])
        twice, odd = runtime.meters
    assert (twice.name, twice.records_in, twice.records_out) == ("twice", 1000, 2000)
    assert (odd.name, odd.records_in, odd.records_out) == ("odd", 2000, 1000)
    assert twice.cost > 0
    assert twice.worked > 0
    assert twice.waiting == odd.waiting == 0


def test_a_runtime_that_nobody_uses_ends_its_threads() -> None:
    runtime = Runtime([stateless("a", lambda r: [r])], workers=3)
    assert runtime.run(range(100)) == list(range(100))
    threads = [t for t in threading.enumerate() if t.name.startswith("penstock-worker")]
    assert len(threads) == 2
    known = weakref.ref(runtime)
    del runtime
    gc.collect()
    for thread in threads:
        thread.join(10)
    assert known() is None
    assert not any(thread.is_alive() for thread in threads)


def test_one_worker_has_no_threads() -> None:
    before = threading.active_count()
    ran_by: set[int] = set()
    runtime = Runtime([stateless("a", lambda r: [ran_by.add(threading.get_ident())])])
    runtime.run(range(10))
    assert threading.active_count() == before
    assert ran_by == {threading.get_ident()}


@pytest.mark.parametrize("wrong", [{"workers": 0}, {"schedule": "x"}, {"buffer": 0}])
def test_settings_that_do_not_fit(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingError):
        Runtime([stateless("a", lambda r: [r])], **wrong)


@pytest.mark.parametrize("workers", [1, 4])
def test_items_ahead_come_first_at_their_operator(workers: int) -> None:
    def chain() -> list[ChainOperator]:
        return operators_of([Link("keyed", 3, (1, 2), 4), Link("keyed", 2, (1,), 4)] * 2, None)

    serial = chain()
    expected = run_serially(serial[3:], [5, 6])
    expected += run_serially(serial[1:], range(20))
    expected += run_serially(serial, range(100))
    with forced_switches(), closing(Runtime(chain(), workers=workers)) as runtime:
        assert runtime.run(range(100), ahead={1: list(range(20)), 3: [5, 6]}) == expected
