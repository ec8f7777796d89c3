"""Aggregates that users define, and their models: per row and over Arrow, with states of several kinds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.operators.aggregate.aggregates import Aggregate, aggregator, arrow_aggregator
from tests.trials.plain_rows import Row

Range = tuple[int | None, int | None]


def _widened(state: Range, value: int) -> Range:
    low, high = state
    return (value if low is None else min(low, value), value if high is None else max(high, value))


def _both(one: Range, other: Range) -> Range:
    for value in other:
        if value is not None:
            one = _widened(one, value)
    return one


def _width(state: Range) -> int | None:
    low, high = state
    return None if low is None or high is None else high - low


spread = aggregator(
    (None, None),
    _widened,
    _both,
    _width,
    state="low long, high long",
    returns="long",
    name="spread",
)
"""The greatest value minus the smallest."""


def _noted(state: list[int], value: int) -> list[int]:
    state.append(value)
    return state


values = aggregator(
    list,
    _noted,
    lambda one, other: one + other,
    lambda state: " ".join(map(str, sorted(state))),
    state="array<long>",
    returns="string",
    name="values",
)
"""All values, sorted, as text. Its state is changed in place."""


def _powers(rows: pa.RecordBatch, groups: Any, count: int) -> dict[str, Any]:
    numbers = np.asarray(rows.column(0))
    squares = np.bincount(groups, numbers**2, count)
    return {"n": np.bincount(groups, minlength=count), "squares": squares}


def _added(left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
    columns = {name: pc.add(left[name], right[name]) for name in left.schema.names}
    return pa.record_batch(columns)


def _mean(states: pa.RecordBatch) -> pa.Array:
    count = pc.if_else(pc.equal(states["n"], 0), None, states["n"])
    return pc.divide(states["squares"], count)


energy = arrow_aggregator(
    _powers, _added, _mean, state="n long, squares double", returns="double", name="energy"
)
"""The mean of the squares, over Arrow."""


OWN: dict[str, Aggregate] = {
    "width": spread("v"),
    "each": values("v"),
    "energy": energy("v"),
}


def owned(rows: list[Row]) -> Row:
    """The values of `OWN` for rows whose column `v` has no nulls."""
    v = [row["v"] for row in rows]
    energy = sum(n * n for n in v) / len(v)
    return {"width": max(v) - min(v), "each": " ".join(map(str, sorted(v))), "energy": energy}
