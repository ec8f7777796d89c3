"""Couriers with more rows than hosts can take: how many go to burst workers, and always the same ones."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.offload.courier.router import Router
from penstock.offload.plan.segments import Segment
from penstock.operators.aggregate.aggregates import AggregatePlan, count
from penstock.plan.epoch import Offload
from penstock.plan.reflex import Reflex
from penstock.plan.steps import KeyedStep

CLICK = pa.schema([("user", pa.int64()), ("at", pa.int64())])
SEGMENT = Segment(
    "clicks", (), KeyedStep("clicks", 4, AggregatePlan(CLICK, ["user"], {"n": count()})), (0,), 1
)
REFLEX = Reflex(limit=800.0, room=600.0, each=300.0, merge=0.0, workers=80)


def rows(number: int, seed: int = 0) -> pa.RecordBatch:
    users = np.random.default_rng(seed).integers(0, 50, number)
    return pa.RecordBatch.from_arrays([pa.array(users), pa.array(np.arange(number))], schema=CLICK)


def router(share: float = 0.0, reflex: Reflex | None = REFLEX) -> Router:
    return Router(SEGMENT, Offload(np.full(4, share), 1, 100), reflex)


def batches(whole: pa.RecordBatch, each: int) -> Iterator[pa.RecordBatch]:
    for first in range(0, whole.num_rows, each):
        yield whole.slice(first, each)


def test_rows_that_hosts_can_take_stay() -> None:
    made = router()
    assert sum(b.num_rows for b in made.through(batches(rows(800), 100))) == 800
    assert (made.kept, made.carried, made.aside) == (800, 0, [])


@pytest.mark.parametrize("number", [801, 2_000, 10_000])
def test_beyond_the_limit_hosts_keep_what_they_have_room_for(number: int) -> None:
    made = router()
    kept = sum(b.num_rows for b in made.through(batches(rows(number), 70)))
    assert kept == made.kept == number - made.carried
    assert kept == pytest.approx(600, rel=0.15)


@settings(max_examples=30)
@given(st.integers(900, 3_000), st.integers(100, 400), st.integers(0, 5))
def test_a_retried_task_chooses_the_same_rows(number: int, each: int, seed: int) -> None:
    whole = rows(number, seed)
    order = np.random.default_rng(seed).permutation(number)
    once, again = router(), router()
    stayed = pa.Table.from_batches(list(once.through(batches(whole, 1_000))), CLICK)
    shuffled = whole.take(pa.array(order))
    other = pa.Table.from_batches(list(again.through(batches(shuffled, each))), CLICK)
    assert stayed["at"].to_pylist() == sorted(other["at"].to_pylist())


def test_a_decided_share_is_only_raised() -> None:
    few, many = router(0.5), router(0.9)
    list(few.through([rows(2_000)]))
    list(many.through([rows(2_000)]))
    assert few.carried == pytest.approx(1_400, rel=0.1)
    assert many.carried == pytest.approx(1_800, rel=0.1)


def test_no_more_rows_are_held_than_the_share_needs() -> None:
    read = 0

    def endless() -> Iterator[pa.RecordBatch]:
        nonlocal read
        while True:
            read += 1_000
            yield rows(1_000)

    next(router().through(endless()))
    assert read <= REFLEX.most + 2_000


def test_rows_of_a_key_come_side_by_side_to_burst_workers() -> None:
    made = router(1.0, None)
    list(made.through(batches(rows(500), 60)))
    [aside] = made.by_key()
    users, at = (aside.column(n).to_numpy() for n in ("user", "at"))
    assert np.count_nonzero(np.diff(users)) == len(np.unique(users)) - 1
    assert all(np.all(np.diff(at[users == user]) > 0) for user in np.unique(users))


@given(
    st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 0.9), st.floats(0, 2e6), st.floats(0, 1e5)
)
def test_more_rows_never_mean_a_smaller_share(
    limit: float, room: float, merge: float, number: float, more: float
) -> None:
    reflex = Reflex(limit, min(room, limit), 10.0, merge, 4)
    fewer, share = reflex.share(number), reflex.share(number + more)
    assert 0.0 <= fewer <= share <= 1.0


def test_few_burst_workers_do_not_keep_hosts_waiting() -> None:
    few = Reflex(limit=800.0, room=600.0, each=300.0, merge=0.0, workers=2)
    share = few.share(10_000)
    hosts, functions = (1 - share) * 10_000 / 600, share * 10_000 / (2 * 300)
    assert hosts == pytest.approx(functions)
