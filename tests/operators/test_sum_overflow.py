"""A sum of integers that does not fit into 64 bits is an error, and its channel is undone."""

from __future__ import annotations

import datetime as dt
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock.operators.aggregate.aggregates as ps
from penstock.errors import SumOverflowError, from_wire, to_wire
from penstock.offload.backends.messages import Request, flow_mark
from penstock.offload.backends.worker import BurstWorker
from penstock.operators.aggregate.plan import AggregatePlan
from penstock.operators.operator import CHANGE, PARTIALS, ROWS, EpochTime, Operator, StepPlan
from penstock.operators.window.plan import WindowPlan
from penstock.operators.window.windows import hopping, session_window
from penstock.plan.steps import FlowPlan, KeyedStep, SourcePlan
from tests.trials.trial import everything, trial

MOST, LEAST = 2**63 - 1, -(2**63)
TIME = EpochTime(0, 0)
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("at", pa.timestamp("us"))])
SUM = {"s": ps.sum("v")}
PLANS: dict[str, StepPlan] = {
    "aggregate": AggregatePlan(SCHEMA, ["k"], SUM),
    "window": WindowPlan(SCHEMA, ["k"], SUM, hopping("4s", "2s"), "at"),
    "session": WindowPlan(SCHEMA, ["k"], SUM, session_window("1s"), "at"),
}


def rows_of(*values: int | None, schema: pa.Schema = SCHEMA, **others: Any) -> pa.RecordBatch:
    at = dt.datetime(2024, 1, 1)
    rows = [{"k": 1, "v": value, "at": at} | others for value in values]
    return pa.RecordBatch.from_pylist(rows, schema=schema)


def sent(plan: StepPlan, *values: int, combines: bool = True) -> tuple[str, list[pa.RecordBatch]]:
    """The kind and the batches of a courier's channel for these values."""
    sender = plan.sender(TIME, two_stage=combines)
    if not combines:
        sender.combines = False
    batches = [outgoing.batch for outgoing in sender.add(0, rows_of(*values))]
    kind, rest = sender.finish()
    return kind, batches + [outgoing.batch for outgoing in rest]


def held(operator: Operator) -> list[str]:
    table = operator.table
    return sorted(map(repr, table.export(table.entries_in(np.arange(4))).to_pylist()))


@pytest.mark.parametrize("values", [(MOST, 1), (LEAST, -1), (2**62, 2**62), (LEAST, LEAST)])
@pytest.mark.parametrize("name", PLANS)
def test_a_host_refuses_the_channel(name: str, values: tuple[int, int]) -> None:
    """That holds for rows and for combined states. The state is as before."""
    plan = PLANS[name]
    for combines, kind in ((True, PARTIALS), (False, ROWS)):
        operator = plan.operator(4, "step", "fail")
        operator.open(TIME)
        first, second = (sent(plan, value, combines=combines) for value in values)
        assert first[0] == kind or name != "aggregate"
        operator.apply(*first)
        before = held(operator)
        with pytest.raises(SumOverflowError, match="step step: the sum of column 'v'"):
            operator.apply(*second)
        assert held(operator) == before
        operator.apply(*sent(plan, 0))


@pytest.mark.parametrize("name", PLANS)
def test_a_courier_refuses_rows(name: str) -> None:
    with pytest.raises(SumOverflowError, match="cast the column to double or to a decimal"):
        sent(PLANS[name], MOST, 1)
    assert sent(PLANS[name], MOST, LEAST, 1)[1]


def test_a_burst_worker_refuses_rows() -> None:
    flow = FlowPlan((SourcePlan(SCHEMA),), (KeyedStep("step", 4, PLANS["aggregate"]),))
    worker = BurstWorker(flow)
    request = Request("id", ("step",), TIME, flow_mark(flow), (rows_of(MOST, 1),))
    with pytest.raises(SumOverflowError):
        worker.answer(request.to_bytes())


def test_rows_that_are_taken_back() -> None:
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64()), (CHANGE, pa.int8())])
    plan = AggregatePlan(schema, ["k"], SUM)
    operator = plan.operator(4, "step", "fail")
    operator.open(TIME)
    operator.apply(ROWS, [rows_of(MOST, schema=schema, **{CHANGE: 1})])
    operator.apply(ROWS, [rows_of(MOST, schema=schema, **{CHANGE: -1})])
    operator.apply(ROWS, [rows_of(-5, schema=schema, **{CHANGE: 1})])
    for value, change in ((MOST, -1), (LEAST, 1), (LEAST, -1)):
        with pytest.raises(SumOverflowError):
            operator.apply(ROWS, [rows_of(value, schema=schema, **{CHANGE: change})])
    assert operator.close().batches[0].column("s").to_pylist() == [-5]


def test_unsigned_values_that_int64_cannot_hold() -> None:
    schema = pa.schema([("k", pa.int64()), ("v", pa.uint64())])
    operator = AggregatePlan(schema, ["k"], SUM).operator(4, "step", "fail")
    operator.open(TIME)
    operator.apply(ROWS, [rows_of(2**63 - 1, None, schema=schema)])
    with pytest.raises(SumOverflowError):
        operator.apply(ROWS, [rows_of(2**63, schema=schema)])


@given(st.lists(st.integers(LEAST, MOST), max_size=12), st.booleans())
@settings(max_examples=150, deadline=None)
def test_a_sum_is_right_or_refused(values: list[int], combine: bool) -> None:
    plan = PLANS["aggregate"]
    operator = plan.operator(4, "step", "fail")
    operator.open(TIME)
    total, fits = 0, True
    for value in values:
        total += value
        fits = fits and LEAST <= total <= MOST
    try:
        operator.apply(*(sent(plan, *values) if combine else (ROWS, [rows_of(*values)])))
    except SumOverflowError:
        assert not fits
        return
    assert fits
    sums = [row["s"] for batch in operator.close().batches for row in batch.to_pylist()]
    assert sums == ([total] if values else [])


def test_the_error_is_one_of_arithmetic_and_travels() -> None:
    error = SumOverflowError.of("v")
    assert isinstance(error, ArithmeticError)
    for copy in (from_wire(to_wire(error)), pickle.loads(pickle.dumps(error))):
        assert isinstance(copy, SumOverflowError)
        assert str(copy) == str(error)


def test_a_query_fails_and_its_state_is_as_before(tmp_path: Path) -> None:
    with trial("sums", str(tmp_path)) as flow:
        flow.epoch([[{"k": 3, "v": MOST - 1000}], []])
        with pytest.raises(SumOverflowError, match="step sums"):
            flow.cluster.run([[{"k": 3, "v": 2000}], [{"k": 5, "v": 7}]])
        flow.cluster.restart()
        flow.epoch(everything("sums"))
        flow.check()
