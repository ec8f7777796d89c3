"""Stateless steps on columns: select, with_columns, filter."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import penstock as ps
from penstock.errors import FlowError
from penstock.plan.steps import MapStep

SOURCE = ps.rate(1000, content=None)
FLOW = ps.flow(SOURCE, event_time="arrival")
ROWS = pa.RecordBatch.from_pylist(
    [{"arrival": n, "key": n % 3, "value": n} for n in range(6)], schema=SOURCE.schema
)


def result(flow: ps.Flow, rows: pa.RecordBatch = ROWS) -> list[dict]:
    """The rows that the flow's steps return, after pickling them."""
    for step in flow.plan.steps:
        assert isinstance(step, MapStep)
        rows = pickle.loads(pickle.dumps(step.function))(rows)
        assert rows.schema == step.output
    return list(rows.to_pylist())


def doubled(batch: pa.RecordBatch) -> pa.Array:
    return pc.multiply(batch.column("value"), 2)


def test_select_chooses_renames_and_computes() -> None:
    flow = FLOW.select("key", v="value", sum=pc.field("key") + pc.field("value"), twice=doubled)
    assert flow.schema.names == ["key", "v", "sum", "twice"]
    assert result(flow)[4] == {"key": 1, "v": 4, "sum": 5, "twice": 8}
    assert flow.time is None
    assert FLOW.select("arrival").time == "arrival"


def test_with_columns_adds_and_replaces() -> None:
    flow = FLOW.with_columns(value=pc.field("value") * 10, even=pc.equal(pc.field("key"), 0))
    assert flow.schema.names == ["arrival", "key", "value", "even"]
    rows = result(flow)
    assert [row["value"] for row in rows] == [0, 10, 20, 30, 40, 50]
    assert [row["even"] for row in rows] == [True, False, False] * 2


def test_filter_keeps_rows_for_which_the_condition_is_true() -> None:
    expected = [3, 4, 5]
    for condition in (pc.field("value") > 2, lambda batch: pc.greater(batch.column("value"), 2)):
        flow = FLOW.filter(condition)
        assert flow.schema == FLOW.schema
        step = flow.plan.steps[0]
        assert isinstance(step, MapStep)
        assert step.function(ROWS).column("value").to_pylist() == expected
        assert step.function(ROWS.slice(0, 0)).num_rows == 0
    nulls = pa.RecordBatch.from_pylist([{"value": None}], schema=SOURCE.schema)
    assert result(FLOW.filter(pc.field("value") > 2), nulls) == []


def test_steps_follow_one_another() -> None:
    flow = FLOW.filter(pc.field("key") == 1).with_columns(w=pc.field("value") + 1).select("w")
    assert result(flow) == [{"w": 2}, {"w": 5}]
    assert [step.id for step in flow.plan.steps] == ["map-1", "map-2", "map-3"]


def test_impossible_steps_are_refused_at_once() -> None:
    for make, words in (
        (lambda: FLOW.select("nothing"), "no column 'nothing' to select"),
        (lambda: FLOW.select(), "select needs a column"),
        (lambda: FLOW.select(x=pc.field("nothing")), "nothing"),
        (lambda: FLOW.filter(pc.field("value") + 1), "not a boolean"),
        (lambda: FLOW.filter("value > 3"), "as a condition"),
        (lambda: FLOW.with_columns(x=lambda batch: pa.array([1])), "1 values for 0 rows"),
    ):
        with pytest.raises(FlowError, match=words):
            make()


def test_a_declared_schema_needs_no_session() -> None:
    flow = FLOW.map_batches(lambda batch: batch.select(["value"]), schema="value long")
    assert flow.schema == pa.schema([("value", pa.int64())])


def test_explain_names_them(capsys: pytest.CaptureFixture) -> None:
    FLOW.filter(pc.field("value") > 2).select("key", double=doubled).explain()
    printed = capsys.readouterr().out
    assert "filter (value > 2)" in printed
    assert "select key, doubled as double" in printed
