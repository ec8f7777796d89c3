"""Aggregates that users define: types, nulls, errors, and equality with built-in ones."""

from __future__ import annotations

import pickle
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import penstock as ps
from penstock.errors import FlowError, StepError
from penstock.offload.backends.messages import flow_mark
from penstock.operators.aggregate.aggregates import Aggregate, AggregatePlan, Aggregator
from penstock.operators.operator import EpochTime
from penstock.plan.steps import FlowPlan, KeyedStep, SourcePlan
from penstock.testing import FlowTester, source
from tests.operators.trials import Epoch, run
from tests.trials.own_aggregates import energy, spread, values

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64()), ("w", pa.int64()), ("paid", pa.bool_())])
total = ps.aggregator(0, lambda s, v: s + v, lambda a, b: a + b, state="long", name="total")
sold = ps.aggregator(
    0.0, lambda s, v, w: s + v * w, lambda a, b: a + b, state="double", name="sold"
)
arrow_total = ps.arrow_aggregator(
    lambda rows, groups, count: np.bincount(groups, np.asarray(rows.column(0)), count),
    lambda left, right: pc.add(left.column(0), right.column(0)),
    lambda states: states.column(0),
    state="double",
    returns="long",
)


def row(k: str, v: int | None, w: int | None = 1, paid: bool | None = True) -> dict[str, Any]:
    return {"k": k, "v": v, "w": w, "paid": paid}


def outcome(rows: list[dict[str, Any]], two_stage: Any = "none", **own: Aggregate) -> list[Any]:
    """The last values of each key's aggregates, with rows in three epochs."""
    plan = AggregatePlan(SCHEMA, ["k"], own)
    epochs = [Epoch([rows[:2], rows[2:4]]), Epoch([rows[4:]], mishap="exported"), Epoch([[]])]
    last = {made["k"]: made for made in run(plan, epochs, two_stage=two_stage).all}
    return [tuple(last[key].values()) for key in sorted(last)]


ROWS = [row("a", 3), row("b", 5), row("a", -1), row("a", 9, 2), row("b", 5, 3)]


@pytest.mark.parametrize("two_stage", ["none", "some", "all"])
def test_they_equal_built_in_ones(two_stage: str) -> None:
    own = {"own": total("v"), "fast": arrow_total("v"), "sum": ps.sum("v"), "both": sold("v", "w")}
    wanted = [("a", 11, 11, 11, 20.0), ("b", 10, 10, 10, 20.0)]
    assert outcome(ROWS, two_stage, **own) == wanted


def test_a_state_may_be_changed_in_place_and_belongs_to_one_key() -> None:
    shared: list[int] = []  # not a function: each group gets a copy
    notes = ps.aggregator(
        shared,
        lambda s, v: s.append(v) or s,
        lambda a, b: a + b,
        lambda s: sorted(s),
        state="array<long>",
        returns="array<long>",
    )
    assert outcome(ROWS, x=notes("v"), y=values("v")) == [
        ("a", [-1, 3, 9], "-1 3 9"),
        ("b", [5, 5], "5 5"),
    ]
    assert shared == []


def test_rows_with_a_null_are_left_out_unless_the_aggregate_wants_them() -> None:
    seen = ps.aggregator(
        0, lambda s, v: s + (v is None), lambda a, b: a + b, state="long", nulls=True
    )
    rows = [row("a", None), row("a", 2), row("b", None, paid=None), row("b", 7, paid=False)]
    own = {"n": seen("v"), "total": total("v"), "width": spread("v"), "mean": energy("v")}
    assert outcome(rows, **own) == [("a", 1, 2, 0, 4.0), ("b", 1, 7, 0, 49.0)]
    paid = {"total": total("v", where="paid"), "width": spread("v", where="paid")}
    assert outcome(rows, mean=energy("v", where="paid"), **paid) == [
        ("a", 4.0, 2, 0),
        ("b", None, 0, None),
    ], "without any row, the result is that of zero"


def test_a_field_of_the_state_may_be_null() -> None:
    newest = ps.aggregator(
        (None, "none"),
        lambda s, v: (v if v and v > 4 else s[0], s[1]),
        lambda a, b: (b[0] if a[0] is None else a[0] if b[0] is None else max(a[0], b[0]), a[1]),
        lambda s: s[0],
        state="high long, name string",
        returns="long",
        nulls=True,
    )
    rows = [row("a", 3), row("a", None), row("b", 1), row("b", 8)]
    for two_stage in ("none", "all"):
        assert outcome(rows, two_stage, x=newest("v")) == [("a", None), ("b", 8)]


@pytest.mark.parametrize("two_stage", ["none", "all"])
def test_an_error_names_the_aggregate_and_the_row(two_stage: Any) -> None:
    inverse = ps.aggregator(0.0, lambda s, v: s + 1 / v, lambda a, b: a + b, state="double")
    plan = AggregatePlan(SCHEMA, ["k"], {"x": inverse("v")})
    rows = [row("a", n % 8) for n in range(1, 12)]
    with pytest.raises(StepError, match=r"x = aggregator\(v\): add failed on row") as raised:
        run(plan, [Epoch([rows])], cut=12, two_stage=two_stage)
    assert raised.value.row == '{"v": 0}'
    assert "ZeroDivisionError" in str(raised.value)
    assert "test_own_aggregates.py" in raised.value.hint


@pytest.mark.parametrize(
    ("own", "message"),
    [
        (ps.aggregator(0, lambda s, v: "one", lambda a, b: a, state="long"), "takes int64"),
        (
            ps.aggregator(0, lambda s, v: s, lambda a, b: a, str, state="long", returns="long"),
            r"result failed: TypeError: the column 'result' takes int64, not '0'",
        ),
        (
            ps.arrow_aggregator(
                lambda rows, groups, count: rows.column(0), len, len, state="long", returns="long"
            ),
            "returned 3 rows instead of 1",
        ),
        (
            ps.arrow_aggregator(
                lambda rows, groups, count: {"x": groups}, len, len, state="long", returns="long"
            ),
            "the returned columns are x, not value",
        ),
    ],
)
def test_what_a_function_returns_must_fit_the_declared_types(own: Aggregator, message: str) -> None:
    plan = AggregatePlan(SCHEMA, ["k"], {"x": own("v")})
    with pytest.raises(StepError, match=message):
        run(plan, [Epoch([[row("a", 1)] * 3])])


def test_what_cannot_work_is_refused_when_the_flow_is_made() -> None:
    with pytest.raises(FlowError, match="not among the columns"):
        AggregatePlan(SCHEMA, ["k"], {"x": total("nope")})
    with pytest.raises(FlowError, match="change stream"):
        AggregatePlan(SCHEMA.append(pa.field("_change", pa.int8())), ["k"], {"x": total("v")})
    with pytest.raises(FlowError, match="unknown"):
        ps.aggregator(0, max, max, str, state="long")
    with pytest.raises(FlowError, match="is not one value"):
        ps.aggregator(0, max, max, str, state="long", returns="a long, b long")
    with pytest.raises(FlowError, match="merge of aggregator is 3"):
        ps.aggregator(0, lambda s: s, 3, state="long")  # type: ignore[arg-type]
    with pytest.raises(FlowError, match="applied to"):
        total()


def test_many_partial_states_of_a_key_take_few_calls_of_merge() -> None:
    calls: list[int] = []

    def merge(left: pa.RecordBatch, right: pa.RecordBatch) -> pa.Array:
        calls.append(left.num_rows)
        return pc.add(left.column(0), right.column(0))

    counted = ps.arrow_aggregator(
        lambda rows, groups, count: np.bincount(groups, minlength=count),
        merge,
        lambda states: states.column(0),
        state="long",
        returns="long",
    )
    plan = AggregatePlan(SCHEMA, ["k"], {"n": counted("v")})
    sender = plan.sender(EpochTime(0, 0), two_stage=True)
    sent: list[pa.RecordBatch] = []
    for _ in range(64):
        list(sender.add(0, pa.RecordBatch.from_pylist([row("a", 1), row("b", 2)], SCHEMA)))
        sent += [out.batch for out in sender.finish()[1]]
    calls.clear()
    operator = plan.operator(4, "step", "fail")
    operator.open(EpochTime(0, 0))
    operator.apply("partials", [pa.concat_batches(sent)])
    assert len(calls) == 6
    assert operator.close().batches[0].to_pydict() == {"k": ["a", "b"], "n": [64, 64]}


def test_functions_travel_with_the_plan_and_are_part_of_the_flow_mark() -> None:
    def flow(own: Aggregator) -> FlowPlan:
        plan = AggregatePlan(SCHEMA, ["k"], {"x": own("v")})
        return FlowPlan((SourcePlan(SCHEMA),), (KeyedStep("x", 4, plan),))

    one = ps.aggregator(0, lambda s, v: s + v, lambda a, b: a + b, state="long")
    other = ps.aggregator(0, lambda s, v: s - v, lambda a, b: a + b, state="long")
    assert flow_mark(flow(one)) != flow_mark(flow(other))
    run(flow(one).keyed[0].plan, [Epoch([[row("a", 1)]])])
    there = pickle.loads(cloudpickle.dumps(flow(one)))
    made = run(there.keyed[0].plan, [Epoch([[row("a", 4)]])]).all
    assert made == [{"k": "a", "x": 4}]
    assert str(there.keyed[0].plan) == "x=aggregator(v)"


@pytest.mark.parametrize("where", ["add", "result"])
def test_an_error_fails_the_flow_with_the_name_of_the_step(where: str) -> None:
    """In a courier, and on a host."""
    fails = ps.aggregator(
        0.0,
        lambda s, v: s + (1 / v if where == "add" else v),
        lambda a, b: a + b,
        lambda s: 1 / (s - 3) if where == "result" else s,
        state="double",
        returns="double",
    )
    flow = ps.flow(source("k string, v long")).key_by("k", slots=4)
    with FlowTester(flow.aggregate(x=fails("v"), name="inverse")) as tester:
        tester.run([("a", 1), ("b", 2)])
        with pytest.raises(StepError, match=f"step inverse: .*{where} failed") as raised:
            tester.run([("a", 2), ("b", 0)])
    assert raised.value.step == "inverse"
