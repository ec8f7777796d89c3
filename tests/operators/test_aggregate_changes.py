"""Aggregates of change streams, and aggregates that emit changes."""

from __future__ import annotations

import math
from collections import Counter
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock.operators.aggregate.aggregates as ps
from penstock.errors import FlowError
from penstock.operators.aggregate.aggregates import Aggregate, AggregatePlan
from penstock.operators.changes import differing
from tests.operators.trials import Epoch, Row, bag, epochs_of, net, run

SCHEMA = pa.schema(
    [
        ("k", pa.string()),
        ("i", pa.int32()),
        ("f", pa.float64()),
        ("d", pa.decimal128(8, 2)),
        ("s", pa.string()),
        ("yes", pa.bool_()),
    ]
)
SIGNED = SCHEMA.append(pa.field("_change", pa.int8()))
SUMS: dict[str, Aggregate] = {
    "n": ps.count(),
    "n i": ps.count("i"),
    "n yes": ps.count(where="yes"),
    "sum i": ps.sum("i"),
    "sum f": ps.sum("f"),
    "sum d": ps.sum("d"),
    "avg i": ps.avg("i"),
    "avg d": ps.avg("d"),
    "sum i yes": ps.sum("i", where="yes"),
    "avg f yes": ps.avg("f", where="yes"),
    "sum d yes": ps.sum("d", where="yes"),
}
ALL = SUMS | {
    "min i": ps.min("i", where="yes"),
    "max s": ps.max("s"),
    "max s yes": ps.max("s", where="yes"),
    "max f": ps.max("f"),
    "about": ps.approx_distinct("s", where="yes"),
    "exactly": ps.count_distinct("i"),
    "exactly yes": ps.count_distinct("i", where="yes"),
    "exactly f": ps.count_distinct("f", where="yes"),
}
rows = st.fixed_dictionaries(
    {
        "k": st.sampled_from("abc"),
        "i": st.none() | st.integers(-2, 3),
        "f": st.sampled_from([None, 0.25, 0.5, -4.0, 8.0]),
        "d": st.sampled_from([None, Decimal("0.25"), Decimal("-3.50")]),
        "s": st.sampled_from([None, "", "a", "é"]),
        "yes": st.sampled_from([None, True, False]),
    }
)


def value(aggregate: Aggregate, rows: list[Row]) -> Any:
    if aggregate.where is not None:
        rows = [row for row in rows if row[aggregate.where]]
    if aggregate.column is None:
        return len(rows)
    values = [row[aggregate.column] for row in rows if row[aggregate.column] is not None]
    kind = aggregate.kind
    if kind in ("count_distinct", "approx_distinct"):
        return len({"nan" if value != value else value for value in values})
    if kind == "count":
        return len(values)
    if not values:
        return None
    if kind == "avg":
        return float(sum(values)) / len(values)
    fold: Any = {"sum": sum, "min": min, "max": max}[kind]
    return fold(values)


def expected(rows: list[Row], aggregates: dict[str, Aggregate]) -> list[Row]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["k"], []).append(row)
    return [
        {"k": key} | {name: value(a, group) for name, a in aggregates.items()}
        for key, group in groups.items()
    ]


@settings(max_examples=50)
@given(epochs_of(rows), st.booleans())
def test_changes_come_to_what_the_aggregates_are(epochs: list[Epoch], raw: bool) -> None:
    outcome = run(AggregatePlan(SCHEMA, ["k"], ALL, emit="changes"), epochs, raw=raw)
    came: list[Row] = []
    emitted: list[Row] = []
    for epoch, got in zip(epochs, outcome.rows, strict=True):
        came += [row for channel in epoch.channels for row in channel]
        emitted += got
        assert net(emitted) == bag(expected(came, ALL))
        # no row is taken back and put in again unchanged
        assert all(abs(count) == 1 for count in _sums(got).values())


def _sums(rows: list[Row]) -> Counter[Any]:
    counts: Counter[Any] = Counter()
    for row in rows:
        counts[tuple(value for name, value in row.items() if name != "_change")] += row["_change"]
    return counts


@settings(max_examples=50)
@given(epochs_of(rows), st.booleans(), st.sampled_from(["update", "changes"]), st.data())
def test_rows_are_taken_back(
    epochs: list[Epoch], raw: bool, emit: Any, data: st.DataObject
) -> None:
    there: list[Row] = []
    after: list[list[Row]] = []
    for epoch in epochs:
        new = [row for channel in epoch.channels for row in channel]
        gone = data.draw(st.lists(st.sampled_from(there), unique_by=id)) if there else []
        there = [row for row in there if not any(row is g for g in gone)]
        there += [row | {} for row in new]
        after.append(list(there))
        epoch.channels = [[row | {"_change": 1} for row in rows] for rows in epoch.channels]
        taken = data.draw(st.integers(0, len(epoch.channels) - 1))
        epoch.channels[taken] += [row | {"_change": -1} for row in gone]
    plan = AggregatePlan(SIGNED, ["k"], SUMS, emit=emit)
    outcome = run(plan, epochs, raw=raw)
    held: dict[str, Row] = {}
    emitted: list[Row] = []
    for rows, got in zip(after, outcome.rows, strict=True):
        wanted = expected(rows, SUMS)
        emitted += got
        if emit == "changes":
            assert net(emitted) == bag(wanted)
            continue
        held = {row["k"]: row for row in [*held.values(), *got]}
        held = {k: row for k, row in held.items() if any(w["k"] == k for w in wanted)}
        assert bag(list(held.values())) == bag(wanted)
    assert outcome.operator is not None
    assert len(outcome.operator.table) == len(expected(after[-1], SUMS))


def test_nothing_is_left_of_values_that_were_taken_back() -> None:
    schema = pa.schema([("k", pa.int64()), ("f", pa.float64()), ("_change", pa.int8())])

    def row(value: float | None, change: int) -> Row:
        return {"k": 1, "f": value, "_change": change}

    plan = AggregatePlan(schema, ["k"], {"sum": ps.sum("f"), "n": ps.count()})
    epochs = [
        Epoch([[row(None, 1), row(math.nan, 1), row(1e300, 1)]]),
        Epoch([[row(math.nan, -1), row(1e300, -1)]]),
        Epoch([[row(0.5, 1)]]),
    ]
    outcome = run(plan, epochs)
    assert outcome.rows[1] == [{"k": 1, "sum": None, "n": 1}]
    assert outcome.rows[2] == [{"k": 1, "sum": 0.5, "n": 2}]


@pytest.mark.parametrize(
    ("schema", "aggregates", "options", "complaint"),
    [
        (SIGNED, {"x": ps.max("i")}, {}, r"max\(i\) cannot take rows back"),
        (SIGNED, {"x": ps.count_distinct("i")}, {}, "cannot take rows back"),
        (SIGNED, {"x": ps.sum(None)}, {}, "sum needs a column"),  # type: ignore[arg-type]
        (SCHEMA, {"x": ps.count(where="i")}, {}, "needs a column of bools"),
        (SCHEMA, {"x": ps.count(where="no")}, {}, "not among the columns"),
        (SCHEMA, {"x": ps.count_distinct("s")}, {}, "does not support values of type string"),
        (SCHEMA, {"_change": ps.count()}, {}, "'_change' is reserved"),
        (SCHEMA, {"x": ps.count()}, {"emit": "close"}, "without a window"),
    ],
)
def test_what_cannot_work_is_refused(
    schema: pa.Schema, aggregates: dict[str, Aggregate], options: Any, complaint: str
) -> None:
    with pytest.raises(FlowError, match=complaint):
        AggregatePlan(schema, ["k"], aggregates, **options)


def test_null_is_a_key_where_nulls_are() -> None:
    row = {"k": None, "i": 1, "f": None, "d": None, "s": None, "yes": None}
    plan = AggregatePlan(SCHEMA, ["k"], {"n": ps.count()}, nulls=True)
    assert run(plan, [Epoch([[row, row]])]).all == [{"k": None, "n": 2}]


def test_differing_rows_of_any_type() -> None:
    for old, new in [
        (["a", None, "b"], ["a", None, "c"]),
        ([1.0, math.nan, 2.0], [1.0, math.nan, None]),
        ([[1], None, []], [[1], None, [2]]),
        ([Decimal(1), None, None], [Decimal(1), None, Decimal(2)]),
        ([True, None, True], [True, None, False]),
    ]:
        assert differing([pa.array(old)], [pa.array(new)]).tolist() == [False, False, True]
