"""Input of a tester: turns rows of tests, or Arrow tables, into batches of a source's columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import pyarrow as pa

from penstock.errors import FlowError
from penstock.plan.steps import FlowPlan
from penstock.state.variables.values import RowForm

Input = Any
"""Rows of one source: a list of dicts or of tuples in the order of the columns, an Arrow table or batch, or
a DataFrame of pandas or Polars."""


def input_batch(rows: Input, schema: pa.Schema, source: str) -> pa.RecordBatch:
    """Convert rows to one batch of a source's columns. `source` is its name in errors.

    >>> schema = pa.schema([("user", pa.string()), ("at", pa.timestamp("us", "UTC"))])
    >>> input_batch([{"user": "ann", "at": "2026-01-01 00:00:05"}], schema, "the source").num_rows
    1
    >>> input_batch([{"user": 7, "at": None}], schema, "the source")
    Traceback (most recent call last):
    ...
    penstock.errors.FlowError: row 0 of the source: the column 'user' takes string, not 7 (int). What to do: \
give the columns user string, at timestamp[us, tz=UTC]
    """
    if hasattr(rows, "__arrow_c_stream__") or hasattr(rows, "__arrow_c_array__"):
        return _from_arrow(pa.table(rows), schema, source)
    if isinstance(rows, Mapping | str) or not isinstance(rows, Iterable):
        raise FlowError(
            f"{source} got {rows!r:.100}, which is not a list of rows",
            hint='give a list, such as run([{"user": "ann"}]), or an Arrow table',
        )
    form, written = RowForm(schema), []
    for number, row in enumerate(rows):
        try:
            written.append(form.write(_with_times(row, schema)))
        except (TypeError, ValueError) as refused:
            raise _refused(f"row {number} of {source}: {refused}", schema) from None
    return form.batch(written)


def partitioned(
    flow: FlowPlan, batches: list[pa.RecordBatch], partitions: int
) -> list[list[pa.RecordBatch]]:
    """Divide the batches of all sources among tasks: row n goes to task n modulo `partitions`."""
    parts = []
    for number in range(partitions):
        part = batches
        if partitions > 1:
            part = [batch.take(_every(partitions, number, batch.num_rows)) for batch in batches]
        if flow.tagged is not None:
            part = [flow.tagged.pack(source, batch) for source, batch in enumerate(part)]
        parts.append([batch for batch in part if batch.num_rows])
    return parts


def _every(step: int, first: int, rows: int) -> pa.Array:
    return pa.array(range(first, rows, step), pa.int64())


def _from_arrow(table: pa.Table, schema: pa.Schema, source: str) -> pa.RecordBatch:
    if sorted(table.column_names) != sorted(schema.names):
        raise _refused(f"{source} got the columns {', '.join(table.column_names)}", schema)
    try:
        table = table.select(schema.names).cast(schema).combine_chunks()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as refused:
        raise _refused(f"{source} got columns of other types: {refused}", schema) from refused
    return (table.to_batches() or [pa.RecordBatch.from_pylist([], schema)])[0]


def _with_times(row: Any, schema: pa.Schema) -> Any:
    """The row with times in text form replaced by datetimes, if it is a dict."""
    if not isinstance(row, Mapping):
        return row
    times = {field.name for field in schema if pa.types.is_timestamp(field.type)}
    return {
        name: datetime.fromisoformat(value) if name in times and isinstance(value, str) else value
        for name, value in row.items()
    }


def _refused(problem: str, schema: pa.Schema) -> FlowError:
    columns = ", ".join(f"{field.name} {field.type}" for field in schema)
    return FlowError(problem, hint=f"give the columns {columns}")
