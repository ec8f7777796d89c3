"""Rows as dicts and as tuples, as tests write and compare them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any

import pyarrow as pa

from penstock.operators.operator import CHANGE
from penstock.operators.tagged import INPUT
from penstock.plan.steps import FlowPlan

_START_OF_TIME = datetime(1970, 1, 1, tzinfo=UTC)

Row = dict[str, Any]
"""A row. Times are milliseconds since 1970. In a flow with several sources, "_input" is the row's source."""


def arrow_batch(flow: FlowPlan, rows: Sequence[Row]) -> pa.RecordBatch:
    """Rows as a courier gets them: tagged and in any order, if there are several sources."""
    if flow.tagged is None:
        return of_schema(rows, flow.sources[0].schema)
    runs = groupby(rows, key=lambda row: int(row[INPUT]))
    return pa.concat_batches(
        flow.tagged.pack(source, of_schema(list(some), flow.sources[source].schema))
        for source, some in runs
    )


def of_schema(rows: Sequence[Row], schema: pa.Schema) -> pa.RecordBatch:
    """Rows of one source as a batch."""
    in_ms = [
        field.with_type(pa.timestamp("ms", field.type.tz))
        if pa.types.is_timestamp(field.type)
        else field
        for field in schema
    ]
    return pa.RecordBatch.from_pylist(list(rows), pa.schema(in_ms)).cast(schema)


def values(row: Row) -> tuple[Any, ...]:
    """The values of a row, times as milliseconds since 1970."""
    return tuple(_in_ms(v) if isinstance(v, datetime) else v for v in row.values())


def _in_ms(time: datetime) -> int:
    return (time.replace(tzinfo=UTC) - _START_OF_TIME) // timedelta(milliseconds=1)


def plain(rows: Sequence[Row]) -> list[tuple[Any, ...]]:
    """The values of rows, in a fixed order."""
    return sorted(map(values, rows), key=repr)


def net(rows: Sequence[Row]) -> list[tuple[Any, ...]]:
    """The net of changes: (values, count), in a fixed order."""
    left: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        left[values({name: v for name, v in row.items() if name != CHANGE})] += row[CHANGE]
    return sorted(((*row, times) for row, times in left.items() if times), key=repr)
