"""Interval and window joins, compared with a plain model, with mishaps on the way."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.operators.join import interval_join
from penstock.operators.join.plan import Interval, InWindow, JoinPlan
from penstock.operators.operator import EpochTime
from penstock.operators.window.windows import hopping, tumbling
from penstock.state.arrays import Array
from penstock.state.table.bags import Bags
from tests.operators.join_trials import (
    OneStream,
    in_one_stream,
    rows_of,
    tagged_rows,
    timed_epochs,
)
from tests.operators.trials import Epoch, Row, bag, run

TIME = pa.timestamp("us", "UTC")
AUCTIONS = pa.schema([("id", pa.int64()), ("at", TIME), ("until", TIME), ("item", pa.string())])
BIDS = pa.schema([("auction", pa.int64()), ("at", pa.timestamp("ms")), ("price", pa.int32())])


def at(ms: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)


def ms(time: datetime) -> int:
    return round(
        (time.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(milliseconds=1)
    )


TIMES = st.integers(-5, 15).map(at)
LEFT = st.fixed_dictionaries(
    {
        "id": st.none() | st.integers(0, 2),
        "at": TIMES,
        "until": st.none() | TIMES,
        "item": st.none() | st.sampled_from(["", "é", "x"]),
    }
)
RIGHT = st.fixed_dictionaries(
    {
        "auction": st.none() | st.integers(0, 2),
        "at": TIMES.map(lambda time: time.replace(tzinfo=None)),
        "price": st.integers(0, 2),
    }
)
EPOCHS = timed_epochs(tagged_rows(LEFT, RIGHT), st.integers(0, 8))
EMPTY = {"auction": None, "at_right": None, "price": None}


def paired(left: Row, right: Row | None) -> Row:
    if right is None:
        return left | EMPTY
    return left | {"at_right" if name == "at" else name: right[name] for name in right}


def in_time(epochs: list[Epoch], lateness: int) -> tuple[list[Row], list[Row], int]:
    """Left and right rows that were not late, and the number of late rows."""
    sides: tuple[list[Row], list[Row]] = ([], [])
    late = 0
    for epoch in epochs:
        for input, row in rows_of(epoch):
            if epoch.watermark_ms is not None and ms(row["at"]) < epoch.watermark_ms - lateness:
                late += 1
            else:
                sides[input].append(row)
    return *sides, late


@settings(max_examples=150)
@given(
    EPOCHS,
    st.sampled_from(["inner", "left"]),
    st.integers(-4, 4),
    st.integers(0, 6) | st.just("until"),
    st.integers(0, 3),
    st.booleans(),
)
def test_an_interval_join_gives_what_the_model_gives(
    epochs: list[Epoch], how: Any, low: int, high: Any, lateness: int, by_sorting: bool
) -> None:
    bound = Interval("at", "at", low, high if high == "until" else low + high)
    stream = OneStream(
        JoinPlan(AUCTIONS, BIDS, (("id", "auction"),), how, bound, lateness_ms=lateness)
    )
    with pytest.MonkeyPatch.context() as patch:
        if by_sorting:
            patch.setattr(interval_join, "_CANDIDATES", 0)
            patch.setattr(interval_join, "_FEW_CANDIDATES", 0)
        outcome = run(stream, in_one_stream(stream, epochs))
    lefts, rights, late = in_time(epochs, lateness)
    expected = []
    for left in lefts:
        first = ms(left["at"]) + low
        last = first + high if high != "until" else left["until"] and ms(left["until"])
        matches = [
            paired(left, right)
            for right in rights
            if left["id"] is not None
            and left["id"] == right["auction"]
            and last is not None
            and first <= ms(right["at"]) <= last
        ]
        expected += matches or ([paired(left, None)] if how == "left" else [])
    assert bag(outcome.all) == bag(expected)
    assert sum(map(len, outcome.late)) == late
    assert outcome.operator is not None
    assert len(outcome.operator.table) == 0


@settings(max_examples=150)
@given(
    EPOCHS,
    st.sampled_from(["inner", "left"]),
    st.sampled_from([tumbling(0.004), tumbling(0.004, offset=0.001), hopping(0.005, 0.002)]),
    st.booleans(),
    st.integers(0, 3),
)
def test_a_window_join_gives_what_the_model_gives(
    epochs: list[Epoch], how: Any, window: Any, distinct: bool, lateness: int
) -> None:
    bound = InWindow(window, "at", "at")
    on = (("id", "auction"),)
    plan = JoinPlan(AUCTIONS, BIDS, on, how, bound, distinct=distinct, lateness_ms=lateness)
    stream = OneStream(plan)
    outcome = run(stream, in_one_stream(stream, epochs))
    size, every, offset = (us // 1000 for us in (window.size_us, window.every_us, window.offset_us))
    sides: dict[int, tuple[list[Row], list[Row]]] = {}
    for epoch in epochs:
        for input, row in rows_of(epoch):
            for start in range(-40 + offset, 40, every):
                over = (
                    epoch.watermark_ms is not None and start + size + lateness <= epoch.watermark_ms
                )
                if start <= ms(row["at"]) < start + size and not over:
                    side = sides.setdefault(start, ([], []))[input]
                    if not distinct or row not in side:
                        side.append(row)
    expected = []
    for start, (lefts, rights) in sides.items():
        for left in lefts:
            key = left["id"]
            matches = [paired(left, r) for r in rights if key is not None and r["auction"] == key]
            rows = matches or ([paired(left, None)] if how == "left" else [])
            bounds = {"window_start": at(start), "window_end": at(start + size)}
            expected += [row | bounds for row in rows]
    assert bag(outcome.all) == bag(expected)
    assert outcome.operator is not None
    assert len(outcome.operator.table) == 0


def test_a_left_row_without_a_match_comes_out_when_the_watermark_is_past_it() -> None:
    plan = JoinPlan(AUCTIONS, BIDS, (("id", "auction"),), "left", Interval("at", "at", 0, 5))
    stream = OneStream(plan)
    row = {"id": 1, "at": at(0), "until": None, "item": "x"}
    epochs = [Epoch([[(0, row)]]), *(Epoch([[]], watermark) for watermark in (4, 5, 6))]
    outcome = run(stream, in_one_stream(stream, epochs))
    assert [len(rows) for rows in outcome.rows] == [0, 0, 0, 1]


def test_each_of_many_left_rows_comes_out_in_its_time() -> None:
    plan = JoinPlan(AUCTIONS, BIDS, (("id", "auction"),), "left", Interval("at", "at", 0, 0))
    stream = OneStream(plan)
    rows = [(0, {"id": 1, "at": at(i % 10), "until": None, "item": "x"}) for i in range(100)]
    epochs = [Epoch([rows]), *(Epoch([[]], watermark) for watermark in range(12))]
    outcome = run(stream, in_one_stream(stream, epochs))
    assert [len(rows) for rows in outcome.rows] == [0, 0, *[10] * 10, 0]


def test_rows_that_are_over_do_not_pile_up() -> None:
    """Each side gets a thousand rows per ms, which expire 20 ms later. At most twice as many rows are
    stored as have not expired, and bags are seldom scanned."""
    plan = JoinPlan(AUCTIONS, BIDS, (("id", "auction"),), "inner", Interval("at", "at", -20, 20))
    operator = plan.operator(8, "step", "fail")
    rights = pa.RecordBatch.from_pylist([{"auction": 1, "at": None, "price": 1}] * 1000, BIDS)
    looks, before = 0, 0
    for epoch in range(100):
        operator.open(EpochTime(epoch, 0, epoch))
        entries = operator.table.entries_in(np.arange(8))
        held = int(operator.bags[1].counts(entries).sum())
        looks, before = looks + (held < before), held
        rows = rights.set_column(1, "at", pa.array([epoch] * 1000, pa.timestamp("ms")))
        operator.apply("rows", [plan.tagged.pack(1, rows)])
        before += 1000
        operator.table.seal()
        assert held <= 2 * 21_000
    assert looks <= 20


def test_rows_without_a_time_are_unfit() -> None:
    plan = JoinPlan(AUCTIONS, BIDS, (("id", "auction"),), "inner", Interval("at", "at", 0, 5))
    batch = pa.RecordBatch.from_pydict({"auction": [1, 2], "at": [None, 3], "price": [1, 1]}, BIDS)
    unfit = plan.unfit(1, batch)
    assert unfit is not None
    assert unfit.rows.tolist() == [True, False]
    assert unfit.reason == "a null in the event time (at)"
    assert plan.unfit(1, batch.slice(1)) is None


@pytest.mark.parametrize("input", [0, 1])
def test_an_enormous_key_costs_no_more_than_its_rows_and_pairs(input: int) -> None:
    """20,000 rows are joined with 20,000, and each matches two. Comparing all pairs would take 400 million
    comparisons."""
    plan = JoinPlan(AUCTIONS, BIDS, (("id", "auction"),), "inner", Interval("at", "at", 0, 1))
    many = 20_000
    lefts = pa.RecordBatch.from_pydict(
        {
            "id": [1] * many,
            "at": [1000 * i for i in range(many)],
            "until": [None] * many,
            "item": ["x"] * many,
        },
        AUCTIONS,
    )
    rights = pa.RecordBatch.from_pydict(
        {"auction": [1] * many, "at": list(range(many)), "price": [1] * many}, BIDS
    )
    operator = plan.operator(8, "step", "fail")
    sides = [(0, lefts), (1, rights)]
    with pytest.MonkeyPatch.context() as patch:
        seen: list[int] = []
        real_ids = Bags.ids

        def ids(bags: Bags, entries: Array) -> tuple[Array, Array]:
            owner, rows = real_ids(bags, entries)
            seen.append(len(rows))
            return owner, rows

        patch.setattr(Bags, "ids", ids)
        for side, rows in [sides[input], sides[1 - input]]:
            answer = operator.apply("rows", [plan.tagged.pack(side, rows)])
    assert max(seen) == many
    assert sum(batch.num_rows for batch in answer.batches) == 2 * many - 1
