"""Rows are sorted in Spark's order; compared with Python's stable sort, column by column."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.operators.ordering import run_starts, sort_order

FLOATS = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1.5, -1.5, 5e-324, -5e-324]
TEXTS = ["", "a", "ab", "b", "B", "ü", "z", "🙂", "\uffff", "a\0"]
POOLS: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int64(), [-(2**63), -1, 0, 1, 2**63 - 1]),
    (pa.int8(), [-128, 0, 127]),
    (pa.uint64(), [0, 1, 2**63, 2**64 - 1]),
    (pa.float64(), FLOATS),
    (pa.float32(), [math.nan, -1.5, 0.0, -0.0, 3.0]),
    (pa.bool_(), [False, True]),
    (pa.timestamp("us", "UTC"), [datetime(y, 1, 1, tzinfo=UTC) for y in (1, 1970, 2026)]),
    (pa.decimal128(20, 2), [Decimal("-1.25"), Decimal(0), Decimal("99.5")]),
    (pa.string(), TEXTS),
    (pa.large_string(), TEXTS),
    (pa.binary(), [b"", b"\0", b"a", b"\xff", b"a\xff"]),
    (pa.binary(2), [b"\0\0", b"ab", b"\xff\0"]),
    (pa.dictionary(pa.int8(), pa.string()), TEXTS),
    (pa.null(), []),
    (pa.list_(pa.int64()), [[], [1], [1, None], [1, 2], [2]]),
    (pa.struct([("x", pa.float64()), ("s", pa.string())]),
     [{"x": x, "s": s} for x in (None, 1.0, math.nan) for s in (None, "b", "ü")]),
]  # fmt: skip


def comparable(value: Any) -> Any:
    """A Python value that compares as the value does in Spark."""
    if value is None:
        return (0,)
    if isinstance(value, dict):
        return (1, [comparable(part) for part in value.values()])
    if isinstance(value, list):
        return (1, [comparable(part) for part in value])
    if isinstance(value, float):
        return (2,) if math.isnan(value) else (1, value)
    return (1, value.encode() if isinstance(value, str) else value)


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[tuple[pa.Array, bool]], list[int]]:
    groups = draw(st.lists(st.integers(-2, 3), max_size=30))
    columns = []
    for type, pool in draw(st.lists(st.sampled_from(POOLS), max_size=4)):
        values = draw(
            st.lists(
                st.sampled_from([None, *pool] if draw(st.booleans()) or not pool else pool),
                min_size=len(groups),
                max_size=len(groups),
            )
        )
        columns.append((pa.array(values, type), draw(st.booleans())))
    return columns, groups


@settings(max_examples=300)
@given(cases())
def test_it_is_the_order_of_a_stable_sort_column_by_column(
    case: tuple[list[tuple[pa.Array, bool]], list[int]],
) -> None:
    columns, groups = case
    keys = [[comparable(value) for value in column.to_pylist()] for column, _ in columns]
    expected = list(range(len(groups)))
    for (_, descending), values in reversed(list(zip(columns, keys, strict=True))):
        expected.sort(key=lambda at, values=values: values[at], reverse=descending)  # type: ignore[misc]
    expected.sort(key=lambda at: groups[at])

    numbers = np.array(groups, np.int64)
    order = sort_order(columns, numbers)
    assert order.tolist() == expected

    rows = [(groups[at], *(values[at] for values in keys)) for at in expected]
    starts = [at == 0 or rows[at] != rows[at - 1] for at in range(len(rows))]
    assert run_starts(columns, numbers, order).tolist() == starts


def test_chunks_and_slices_are_columns_too() -> None:
    values = pa.chunked_array([pa.array([9, 3, 1]).slice(1), pa.array([2])])
    assert sort_order([(values, False)], np.zeros(3, np.int64)).tolist() == [1, 2, 0]


@pytest.mark.parametrize("rows", [0, 1])
def test_few_rows(rows: int) -> None:
    groups = np.zeros(rows, np.int64)
    assert sort_order([(pa.array(["a"] * rows), True)], groups).tolist() == list(range(rows))


def test_many_rows() -> None:
    rng = np.random.default_rng(3)
    groups, prices = rng.integers(0, 1000, 50_000), rng.integers(0, 50, 50_000)
    order = sort_order([(pa.array(prices), True)], groups)
    assert order.tolist() == np.lexsort((-prices, groups)).tolist()
