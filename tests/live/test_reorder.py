"""The reorder buffer of a courier: rows leave in input order, in whatever order hosts reply."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.live.junction import Reach
from penstock.live.reorder import ReorderBuffer
from penstock.operators.places import Places, with_both


def answer(serials: Sequence[int], courier: int = 0) -> pa.RecordBatch:
    """The reply of a host that outputs two rows for each record."""
    twice = np.repeat(np.array(serials, np.int64), 2)
    rows = pa.RecordBatch.from_pydict({"n": twice, "copy": np.arange(len(twice)) % 2})
    return with_both(rows, Places.of_records(courier, twice))


def due(times_ms: Sequence[int], final: bool = False) -> pa.RecordBatch:
    """Rows caused by timers at these times, for keys with the hash of an empty key."""
    times = np.array(times_ms, np.int64)
    rows = pa.RecordBatch.from_pydict({"n": times, "copy": np.zeros(len(times), np.int64)})
    return with_both(rows, Places.of_due(times, np.zeros(len(times), np.uint64), final))


def numbers(batches: Sequence[pa.RecordBatch]) -> list[tuple[int, int]]:
    return [(row["n"], row["copy"]) for batch in batches for row in batch.to_pylist()]


@given(
    chunks=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=8),
    pick=st.randoms(use_true_random=False),
)
def test_rows_leave_in_the_order_of_records(chunks: list[list[int]], pick: random.Random) -> None:
    """Chunks go to up to three hosts. Hosts apply them in any order and in any pieces, and replies arrive in
    any order. No row leaves too early."""
    buffer, left = ReorderBuffer(), list[tuple[int, int]]()
    firsts, parts, serial = [], list[tuple[int, int, list[int]]](), 0
    for number, owners in enumerate(chunks):
        firsts.append(serial)
        for host in range(3):
            mine = [serial + place for place, owner in enumerate(owners) if owner == host]
            if mine:
                parts.append((number, host, mine))
        serial += len(owners)
    pick.shuffle(parts)
    open_parts = {number: {h for n, h, _ in parts if n == number} for number in range(len(chunks))}
    for number, host, serials in parts:
        pick.shuffle(serials)
        cut = pick.randint(0, len(serials))
        for some in (serials[:cut], serials[cut:]):
            if some:
                buffer.put(answer(some))
                left += numbers(buffer.ready())
        open_parts[number].discard(host)
        unapplied = [n for n in open_parts if open_parts[n]]
        buffer.before = firsts[min(unapplied)] if unapplied else serial
        left += numbers(buffer.ready())
        assert len(left) == 2 * buffer.before
    assert left == [(n, copy) for n in range(serial) for copy in (0, 1)]
    assert not buffer.flush()


@given(
    times=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 40)), max_size=20),
    steps=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 50)), max_size=20),
)
def test_rows_of_timers_leave_by_event_time(
    times: list[tuple[int, int]], steps: list[tuple[int, int]]
) -> None:
    """Hosts fire timers as they get watermarks, each at its own pace."""
    buffer, left = ReorderBuffer(), list[tuple[int, int]]()
    marks = [0, 0, 0]
    for host, to in [*steps, (0, 60), (1, 60), (2, 60)]:
        before, marks[host] = marks[host], max(marks[host], to)
        fired = [time for of, time in times if of == host and before < time <= marks[host]]
        if fired:
            buffer.put(due(fired), marks[host])
        left += numbers(buffer.ready_due(Reach(min(marks), idle=False, final=False)))
        assert len(left) == sum(time <= min(marks) for _, time in times)
    assert [time for time, _ in left] == sorted(time for _, time in times)


def test_a_checkpoint_releases_all_rows() -> None:
    buffer = ReorderBuffer()
    buffer.put(due([7, 3]), 9)
    buffer.put(answer([4]))
    buffer.put(answer([2]))
    assert not buffer.ready()
    assert [n for n, _ in numbers(buffer.flush())] == [2, 2, 4, 4, 3, 7]
    assert not buffer.flush()


def test_rows_due_at_the_end_wait_for_the_end_of_all_hosts() -> None:
    buffer = ReorderBuffer()
    buffer.put(due([5], final=True), 3)
    assert not buffer.ready_due(Reach(3, idle=False, final=False))
    buffer.put(due([4], final=True), 3)
    assert numbers(buffer.ready_due(Reach(3, idle=False, final=True))) == [(4, 0), (5, 0)]
