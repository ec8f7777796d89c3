"""Joins without time bounds, of plain streams and of change streams."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.operators.join.plan import JoinPlan, Regular
from penstock.operators.operator import CHANGE, EpochTime
from penstock.state.table.bags import Bags
from tests.operators.join_trials import (
    OneStream,
    Tagged,
    in_one_stream,
    rows_of,
    tagged_rows,
    timed_epochs,
)
from tests.operators.trials import MISHAPS, Epoch, Row, bag, net, run

LEFT = pa.schema([("k", pa.string()), ("a", pa.int64())])
RIGHT = pa.schema([("k", pa.string()), ("a", pa.float64()), ("b", pa.list_(pa.int32()))])
ON = (("k", "k"),)
KEYS = st.sampled_from(["x", "y", None])
LEFT_ROWS = st.fixed_dictionaries({"k": KEYS, "a": st.none() | st.integers(0, 1)})
RIGHT_ROWS = st.fixed_dictionaries(
    {"k": KEYS, "a": st.sampled_from([None, 0.5]), "b": st.sampled_from([None, [], [1, 2]])}
)
ROWS = tagged_rows(LEFT_ROWS, RIGHT_ROWS)


def changing(schema: pa.Schema) -> pa.Schema:
    return schema.append(pa.field(CHANGE, pa.int8()))


def paired(left: Row, right: Row | None) -> Row:
    right = right or {}
    return {"k": left["k"], "a": left["a"], "a_right": right.get("a"), "b": right.get("b")}


def equal_keys(left: Row, right: Row) -> bool:
    return left["k"] is not None and left["k"] == right["k"]


def hashable(rows: list[Row]) -> list[Row]:
    return [row | {"b": None if row["b"] is None else tuple(row["b"])} for row in rows]


@settings(max_examples=100)
@given(timed_epochs(ROWS, st.integers(0, 5)), st.sampled_from([None, 1, 4]))
def test_an_inner_join_of_rows_that_stay_is_append_only(
    epochs: list[Epoch], ttl_ms: int | None
) -> None:
    stream = OneStream(JoinPlan(LEFT, RIGHT, ON, "inner", Regular(ttl_ms)))
    outcome = run(stream, in_one_stream(stream, epochs))
    assert bag(hashable(outcome.all)) == bag(hashable(pairs_within(epochs, ttl_ms)[0]))


@settings(max_examples=100)
@given(timed_epochs(ROWS, st.integers(0, 5)), st.sampled_from([None, 1, 4]))
def test_a_left_join_takes_back_rows_without_a_match(
    epochs: list[Epoch], ttl_ms: int | None
) -> None:
    stream = OneStream(JoinPlan(LEFT, RIGHT, ON, "left", Regular(ttl_ms)))
    outcome = run(stream, in_one_stream(stream, epochs))
    pairs, alone = pairs_within(epochs, ttl_ms)
    assert net(hashable(outcome.all)) == bag(hashable(pairs + alone))


def pairs_within(epochs: list[Epoch], ttl_ms: int | None) -> tuple[list[Row], list[Row]]:
    """The pairs of rows whose first row has not expired when the second arrives, and the left rows without a
    pair."""
    rows = [(epoch.now_ms, *row) for epoch in epochs for row in rows_of(epoch)]
    pairs, alone = [], []
    for came, input, left in rows:
        if input == 1:
            continue
        matches = [
            paired(left, right)
            for at, other, right in rows
            if other == 1
            and equal_keys(left, right)
            and (ttl_ms is None or abs(at - came) < ttl_ms)
        ]
        pairs += matches
        alone += [] if matches else [paired(left, None)]
    return pairs, alone


@st.composite
def change_epochs(draw: st.DrawFn, sides: tuple[bool, bool]) -> list[Epoch]:
    """Epochs in which rows are put in and, on the sides that change, taken back some time later. The
    order within an epoch is random."""
    there: tuple[list[Row], list[Row]] = ([], [])
    epochs = []
    for _ in range(draw(st.integers(1, 4))):
        rows: list[Tagged] = []
        for _ in range(draw(st.integers(0, 8))):
            input, row = draw(ROWS)
            if sides[input] and there[input] and draw(st.booleans()):
                row = there[input].pop(draw(st.integers(0, len(there[input]) - 1)))
                rows.append((input, row | {CHANGE: -1}))
            else:
                there[input].append(row)
                rows.append((input, row | {CHANGE: 1}))
        rows = draw(st.permutations(rows))
        cut = draw(st.integers(0, len(rows)))
        channels: Any = [rows[:cut], rows[cut:]]
        epochs.append(Epoch(channels, mishap=draw(st.sampled_from(MISHAPS))))
    return epochs


@settings(max_examples=200)
@given(
    st.sampled_from([(True, False), (False, True), (True, True)]).flatmap(
        lambda sides: st.tuples(st.just(sides), change_epochs(sides))
    ),
    st.sampled_from(["inner", "left"]),
)
def test_changes_come_to_the_join_of_what_is_there(
    case: tuple[tuple[bool, bool], list[Epoch]], how: Any
) -> None:
    sides, epochs = case
    schemas = [changing(s) if yes else s for s, yes in zip((LEFT, RIGHT), sides, strict=True)]
    stream = OneStream(JoinPlan(schemas[0], schemas[1], ON, how, Regular()))
    outcome = run(stream, in_one_stream(stream, epochs))
    out: list[Row] = []
    there: tuple[Counter[Any], Counter[Any]] = (Counter(), Counter())
    for epoch, rows in zip(epochs, outcome.rows, strict=True):
        out += hashable(rows)
        for input, row in rows_of(epoch):
            values = {
                n: tuple(v) if isinstance(v, list) else v for n, v in row.items() if n != CHANGE
            }
            there[input][tuple(values.items())] += row[CHANGE]
        lefts, rights = ([dict(row) for row in side.elements()] for side in there)
        expected = []
        for left in lefts:
            matches = [paired(left, right) for right in rights if equal_keys(left, right)]
            expected += matches or ([paired(left, None)] if how == "left" else [])
        assert net(out) == bag(hashable(expected))
    assert outcome.operator is not None
    operator: Any = outcome.operator
    entries = operator.table.entries_in(np.arange(8))
    for input, side in enumerate(there):
        there_with_key = [
            row for row in side.elements() if dict(row)["k"] or (how, input) == ("left", 0)
        ]
        assert operator.bags[input].counts(entries).sum() == len(there_with_key)
    if how == "inner":
        held = {dict(row)["k"] for side in there for row in +side}
        assert len(entries) == len(held - {None})


def test_a_row_whose_match_outlived_its_ttl_is_taken_back_without_its_nulls() -> None:
    stream = OneStream(JoinPlan(changing(LEFT), RIGHT, ON, "left", Regular(10)))
    row = {"k": "x", "a": 1}
    rows: list[tuple[int, Tagged]] = [
        (0, (1, {"k": "x", "a": 0.5, "b": None})),
        (5, (0, row | {CHANGE: 1})),
        (12, (0, row | {CHANGE: -1})),
        (13, (0, row | {CHANGE: 1})),
        (14, (0, row | {CHANGE: -1})),
    ]
    epochs = [Epoch([[row]], now_ms=now) for now, row in rows]
    outcome = run(stream, in_one_stream(stream, epochs))
    out = [[(row["a_right"], row[CHANGE]) for row in rows] for rows in outcome.rows]
    assert out == [[], [(0.5, 1)], [], [(None, 1)], [(None, -1)]]


def test_rows_that_outlived_their_ttl_match_no_more() -> None:
    """That holds for expired rows that are still stored because most rows of their key have not expired,
    and for the last match of a left row that has not expired."""
    left = {"k": "x", "a": 1}
    right = {"k": "x", "a": 0.5, "b": None}
    stream = OneStream(JoinPlan(LEFT, RIGHT, ON, "inner", Regular(10)))
    came = [(0, 0, 1), (2, 0, 1), (5, 0, 9), (10, 0, 0), (13, 1, 1)]
    epochs = [
        Epoch([[(input, (left, right)[input])] * many], now_ms=now) for now, input, many in came
    ]
    outcome = run(stream, in_one_stream(stream, epochs))
    assert [len(rows) for rows in outcome.rows] == [0, 0, 0, 0, 9]
    stream = OneStream(JoinPlan(LEFT, RIGHT, ON, "left", Regular(10)))
    epochs = [
        Epoch([[row]], now_ms=now)
        for now, row in [(0, (1, right)), (5, (0, left)), (10, (0, left))]
    ]
    outcome = run(stream, in_one_stream(stream, epochs))
    out = [[(row["a_right"], row[CHANGE]) for row in rows] for rows in outcome.rows]
    assert out == [[], [(0.5, 1)], [(None, 1)]]


def test_a_channel_is_taken_whole_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = JoinPlan(LEFT, RIGHT, ON, "left", Regular())
    operator = plan.operator(8, "step", "fail")
    left = pa.RecordBatch.from_pylist([{"k": "x", "a": 1}], LEFT)
    right = pa.RecordBatch.from_pylist([{"k": "x", "a": 0.5, "b": [1]}], RIGHT)
    operator.open(EpochTime(0, 0))
    operator.apply("rows", [plan.tagged.pack(0, left)])
    operator.table.seal()
    before = operator.table.export(operator.table.entries_in(range(8)))  # type: ignore[arg-type]
    append = Bags.append

    def broken(bags: Bags, *rows: Any) -> None:
        append(bags, *rows)
        if "left" in bags.column.name:
            raise MemoryError

    operator.open(EpochTime(1, 0))
    both = [plan.tagged.pack(0, left), plan.tagged.pack(1, right)]
    with monkeypatch.context() as patch:
        patch.setattr(Bags, "append", broken)
        with pytest.raises(MemoryError):
            operator.apply("rows", both)
    assert operator.table.export(operator.table.entries_in(range(8))).equals(before)  # type: ignore[arg-type]
    rows = [row for batch in operator.apply("rows", both).batches for row in batch.to_pylist()]
    assert sorted(row[CHANGE] for row in rows) == [-1, 1, 1]
