"""Penstock's figures in the progress events of Spark's `StreamingQueryListener`, as observed metrics.

Spark fills `observedMetrics` only from `DataFrame.observe`: from aggregates over rows of the query itself. So
the courier of partition 0 emits one row more, with the figures in a hidden column, which is null in all other
rows. The query observes that column, then drops it and the row. The figures are those of the newest second
before the epoch. They come with the epoch, in a local property of its Spark jobs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everywhere in PySpark

from penstock.observe.figures import FIGURES
from penstock.spark.schema import spark_schema

PROPERTY = "penstock.figures"
"""Local property of Spark that carries the figures to an epoch's tasks, as JSON text."""
NAME = "penstock"
"""Name of the observed metrics."""
_COLUMN = "_penstock_figures"
_TYPE = pa.struct(
    [(name, pa.int64() if type is int else pa.float64()) for name, type in FIGURES.items()]
)

Courier = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def with_observed(source: DataFrame, courier: Courier, output: pa.Schema) -> DataFrame:
    """`source.mapInArrow(courier, output)`, observed. The result has the same rows and columns."""
    hidden = output.append(pa.field(_COLUMN, _TYPE))
    rows = source.mapInArrow(_WithFigures(courier, output).__call__, spark_schema(hidden))
    # The highest value is right however often a courier is run.
    figures = [F.max(f"{_COLUMN}.{name}").alias(name) for name in FIGURES]
    return rows.observe(NAME, *figures).where(F.col(_COLUMN).isNull()).drop(_COLUMN)


@dataclass(frozen=True)
class _WithFigures:
    """A courier whose output has the hidden column."""

    courier: Courier
    output: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        text = context.getLocalProperty(PROPERTY) if context is not None else None
        if context is not None and text and context.partitionId() == 0:
            blank = [_blank(field) for field in self.output]
            row = pa.RecordBatch.from_arrays(blank, schema=self.output)
            yield _with(row, pa.array([json.loads(text)], _TYPE))
        for batch in self.courier(batches):
            yield _with(batch, pa.nulls(batch.num_rows, _TYPE))


def _with(batch: pa.RecordBatch, figures: pa.Array) -> pa.RecordBatch:
    columns = [*batch.columns, figures]
    schema = batch.schema.append(pa.field(_COLUMN, _TYPE))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _blank(field: pa.Field) -> pa.Array:
    """One value of a column: null, or zero or empty where null is not allowed."""
    type: Any = field.type
    if field.nullable:
        return pa.nulls(1, type)
    if pa.types.is_struct(type):
        return pa.StructArray.from_arrays([_blank(inner) for inner in type], fields=list(type))
    if pa.types.is_nested(type):
        return pa.array([[]], type)
    if pa.types.is_primitive(type) or pa.types.is_decimal(type):
        zero = pa.py_buffer(bytes(max(1, type.bit_width // 8)))
        return pa.Array.from_buffers(type, 1, [None, zero])
    return pa.array([b""], pa.binary()).cast(type)
