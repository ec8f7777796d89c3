"""Exact counts of distinct values: large sets, many conditions, moves."""

from __future__ import annotations

import datetime as dt
import math
import time
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock.operators.aggregate.aggregates as ps
from penstock.operators.aggregate.aggregates import AggregatePlan
from penstock.operators.aggregate.distinct_sets import SetColumn
from penstock.operators.aggregate.step import AggregateOperator
from penstock.operators.operator import EpochTime
from penstock.operators.window.plan import WindowPlan
from penstock.operators.window.windows import hopping, session_window, tumbling
from tests.operators.trials import Epoch, Row, epochs_of, run

CONDITIONS = [f"c{n}" for n in range(10)]
SCHEMA = pa.schema(
    [
        ("k", pa.string()),
        ("a.b", pa.int64()),
        ("u", pa.uint64()),
        ("f", pa.float32()),
        ("t", pa.timestamp("us", "UTC")),
        *((name, pa.bool_()) for name in CONDITIONS),
    ]
)
rows = st.fixed_dictionaries(
    {
        "k": st.sampled_from("ab"),
        "a.b": st.none() | st.integers(0, 3) | st.just(-(2**63)),
        "u": st.sampled_from([None, 0, 2**64 - 1]),
        "f": st.sampled_from([None, 0.0, -0.0, math.nan, 1.5]),
        "t": st.none(),
    }
    | {name: st.sampled_from([None, True, False]) for name in CONDITIONS}
)


def distinct(values: list[Any]) -> int:
    return len({"nan" if v != v else v for v in values if v is not None})


@settings(max_examples=50)
@given(epochs_of(rows), st.booleans(), st.sampled_from([["k"], []]))
def test_values_are_counted_under_each_condition(
    epochs: list[Epoch], raw: bool, keys: list[str]
) -> None:
    aggregates = {f"{c} {w}": ps.count_distinct(c, w) for c in ("a.b", "u", "f", "t") for w in
                  [None, *CONDITIONS]}  # fmt: skip
    outcome = run(AggregatePlan(SCHEMA, keys, aggregates), epochs, raw=raw)
    came: list[Row] = []
    for epoch, got in zip(epochs, outcome.rows, strict=True):
        came += [row for channel in epoch.channels for row in channel]
        for answer in got:
            group = [row for row in came if all(row[key] == answer[key] for key in keys)]
            for name, aggregate in aggregates.items():
                where = aggregate.where
                some = [row for row in group if where is None or row[where]]
                assert answer[name] == distinct([row[aggregate.column or ""] for row in some])


def batch(keys: Any, values: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(keys), pa.array(values)], ["k", "v"])


def test_a_large_set_costs_what_is_new_in_it() -> None:
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    operator = AggregateOperator(
        AggregatePlan(schema, ["k"], {"n": ps.count_distinct("v")}), 8, "s"
    )
    rng = np.random.default_rng(0)
    values = rng.integers(0, 2**62, 1_000_000)
    operator.apply("rows", [batch(np.zeros(len(values), np.int64), values)])
    operator.table.seal()
    took = []
    for epoch in range(3):
        some = np.concatenate([values[:1000], rng.integers(0, 2**62, 1000)])
        began = time.thread_time()
        operator.open(EpochTime(epoch, 0))
        operator.apply("rows", [batch(np.zeros(len(some), np.int64), some)])
        answer = operator.close().batches[0].to_pylist()
        delta = operator.table.delta()
        took.append(time.thread_time() - began)
        assert answer == [{"k": 0, "n": 1_000_000 + 1000 * (epoch + 1)}]
        assert len(delta.column("distinct(v).__list")[0]) == 1000
        operator.table.seal()
    assert min(took) < 0.1


def test_sets_of_windows_that_are_gone_are_forgotten() -> None:
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    operator = AggregateOperator(
        AggregatePlan(schema, ["k"], {"n": ps.count_distinct("v")}), 8, "s"
    )
    values = np.arange(50_000)
    sizes = []
    for epoch in range(12):
        operator.open(EpochTime(epoch, 0))
        operator.apply("rows", [batch(np.full(len(values), epoch), values)])
        assert operator.close().batches[0].to_pylist() == [{"k": epoch, "n": 50_000}]
        operator.table.seal()
        operator.table.remove(operator.table.find(operator.plan.codec.encode(
            pa.RecordBatch.from_pydict({"k": [epoch]}))))  # fmt: skip
        operator.table.seal()
        sizes.append(operator.table.nbytes)
    assert sizes[-1] <= 2 * max(sizes[:4])


WINDOWED = pa.schema([("k", pa.string()), ("v", pa.int64()), ("at", pa.timestamp("ms"))])
timed = st.fixed_dictionaries(
    {
        "k": st.sampled_from("ab"),
        "v": st.none() | st.integers(0, 3),
        "at": st.integers(0, 8).map(
            lambda n: dt.datetime(1970, 1, 1) + dt.timedelta(milliseconds=400 * n)
        ),
    }
)


@settings(max_examples=40)
@given(
    epochs_of(timed),
    st.sampled_from([tumbling("1s"), hopping("2s", "1s"), session_window("500ms")]),
)
def test_values_are_counted_in_windows(epochs: list[Epoch], window: Any) -> None:
    aggregates = {"n": ps.count_distinct("v")}
    epochs[-1].final = True
    outcome = run(WindowPlan(WINDOWED, ["k"], aggregates, window, "at"), epochs)
    came = [row for epoch in epochs for channel in epoch.channels for row in channel]
    for answer in outcome.all:
        start, end = answer["window_start"], answer["window_end"]
        inside = [r for r in came if r["k"] == answer["k"] and start <= r["at"] < end]
        assert answer["n"] == distinct([row["v"] for row in inside])
    assert {row["k"] for row in came} == {row["k"] for row in outcome.all}


def test_a_failure_in_between_loses_no_value(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    operator = AggregateOperator(
        AggregatePlan(schema, ["k"], {"n": ps.count_distinct("v")}), 8, "s"
    )
    rows = batch([1, 1], [5, 6])

    def full(*arguments: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr("penstock.operators.aggregate.distinct_sets.ValueSets.append", full)
        with pytest.raises(MemoryError):
            operator.apply("rows", [rows])
    operator.apply("rows", [rows])
    assert operator.close().batches[0].to_pylist() == [{"k": 1, "n": 2}]


@pytest.mark.parametrize("groups", [0, 3])
def test_passing_sets_grow_and_become_a_column(groups: int) -> None:
    column = SetColumn("s")
    sets: Any = column.empty(1)
    for place in range(groups):
        longer: Any = column.empty(place + 2)
        longer[:place] = sets[:place]
        sets = longer
        sets.add(np.full(place, place), np.arange(place), np.ones(place, np.uint8))
    array = column.to_arrow(sets[slice(0, groups)])
    array.validate(full=True)
    assert [len(members) for members in array.to_pylist()] == list(range(groups))
