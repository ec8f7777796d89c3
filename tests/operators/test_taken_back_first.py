"""Rows that are taken back before they are put in: the final result is the same."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import penstock as ps
from penstock.operators.aggregate.aggregates import AggregatePlan
from penstock.operators.operator import ROWS, EpochTime
from penstock.state.table.table import ColumnTable

SIGNED = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("_change", pa.int8())])
GONE_AND_BACK = [(1, 10, 1), (1, 7, -1), (1, 7, 1), (1, 3, 1)]


@pytest.mark.parametrize("kind", [pa.int64(), pa.decimal128(30, 2)])
def test_a_sum_outlives_a_count_of_none(kind: pa.DataType) -> None:
    schema = SIGNED.set(1, pa.field("v", kind))
    plan = AggregatePlan(schema, ["k"], {"n": ps.count(), "t": ps.sum("v")})
    operator = plan.operator(8, "sum", "fail")
    for key, value, change in GONE_AND_BACK:  # one round for each
        operator.begin(EpochTime(0, 0))
        row = pa.RecordBatch.from_pylist([{"k": key, "v": value, "_change": change}], SIGNED)
        operator.apply(ROWS, [row.cast(schema)])
        answer = operator.close()
        operator.table.step()
    assert answer.batches[0].to_pylist() == [{"k": 1, "n": 2, "t": 13}]


def test_a_key_of_which_all_is_taken_back_is_gone() -> None:
    plan = AggregatePlan(SIGNED, ["k"], {"n": ps.count(), "t": ps.sum("v")})
    operator = plan.operator(8, "sum", "fail")
    for change in (1, -1):
        operator.begin(EpochTime(0, 0))
        rows = pa.RecordBatch.from_pylist([{"k": 1, "v": 5, "_change": change}], SIGNED)
        operator.apply(ROWS, [rows])
        operator.close()
        operator.table.step()
    table = operator.table
    assert isinstance(table, ColumnTable)
    assert not table.present(table.entries_in(np.arange(8))).any()
