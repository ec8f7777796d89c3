"""Stateless steps on columns: select, rename, compute, filter. They are picklable functions on Arrow
batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.acero as acero
import pyarrow.compute as pc

from penstock.errors import FlowError

Value: TypeAlias = str | pc.Expression | Callable[[pa.RecordBatch], Any]
"""A column, given by its name, as an expression on columns, or as a function of the batch."""


@dataclass(frozen=True, eq=False)
class Select:
    """A step that makes batches of these columns, under these names, in this order.

    >>> batch = pa.RecordBatch.from_pydict({"a": [1], "b": [2], "c": [3]})
    >>> Select((("c", "c"), ("x", "a"), ("y", pc.field("a") + pc.field("b"))))(batch).to_pylist()
    [{'c': 3, 'x': 1, 'y': 3}]
    """

    columns: tuple[tuple[str, Value], ...]
    """(name, value) of each output column."""

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays = _computed(batch, [value for _, value in self.columns])
        fields = [
            batch.schema.field(value).with_name(name)
            if isinstance(value, str)
            else pa.field(name, array.type)
            for (name, value), array in zip(self.columns, arrays, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    @property
    def __name__(self) -> str:
        texts = [(name, _text(value)) for name, value in self.columns]
        return f"select {', '.join(t if t == name else f'{t} as {name}' for name, t in texts)}"


@dataclass(frozen=True, eq=False)
class Where:
    """A step that keeps the rows for which a condition is true: neither false nor null.

    >>> batch = pa.RecordBatch.from_pydict({"a": [1, 5, None]})
    >>> Where(pc.field("a") > 3)(batch).to_pylist()
    [{'a': 5}]
    """

    condition: pc.Expression | Callable[[pa.RecordBatch], Any]

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        (mask,) = _computed(batch, [self.condition])
        if not pa.types.is_boolean(mask.type):
            raise FlowError(
                f"the condition of a filter returns {mask.type}, not a boolean",
                hint='use a comparison, such as flow.filter(pc.field("n") > 3)',
            )
        return batch.filter(mask)

    @property
    def __name__(self) -> str:
        return f"filter {_text(self.condition)}"


def _computed(batch: pa.RecordBatch, values: Sequence[Value]) -> list[pa.Array]:
    """Compute columns for a batch. All expressions are evaluated together."""
    expressions = [value for value in values if isinstance(value, pc.Expression)]
    evaluated = iter(_evaluated(batch, expressions)) if expressions else iter(())
    return [
        batch.column(value)
        if isinstance(value, str)
        else next(evaluated)
        if isinstance(value, pc.Expression)
        else _called(batch, value)
        for value in values
    ]


def _evaluated(batch: pa.RecordBatch, expressions: list[pc.Expression]) -> list[pa.Array]:
    names = [str(number) for number in range(len(expressions))]
    rows = acero.TableSourceNodeOptions(pa.Table.from_batches([batch]))
    table = (
        acero.Declaration.from_sequence(
            [
                acero.Declaration("table_source", rows),
                acero.Declaration("project", acero.ProjectNodeOptions(expressions, names)),
            ]
        )
        .to_reader(use_threads=False)
        .read_all()
    )
    return [_whole(column) for column in table.columns]


def _called(batch: pa.RecordBatch, function: Callable[[pa.RecordBatch], Any]) -> pa.Array:
    column = function(batch)
    if not isinstance(column, pa.Array | pa.ChunkedArray):
        column = pa.array(column)
    if len(column) != batch.num_rows:
        raise FlowError(
            f"{_text(function)} returned {len(column)} values for {batch.num_rows} rows",
            hint="return one value for each row of the batch",
        )
    return _whole(column)


def _whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if isinstance(column, pa.Array):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _text(value: Value) -> str:
    if isinstance(value, str | pc.Expression):
        return str(value)
    return getattr(value, "__name__", type(value).__name__)
