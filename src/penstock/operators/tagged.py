"""Several inputs in one stream of batches: a tag names the input of a row, and columns are shared by type.

Spark hands a task one stream, and a channel to a host carries batches of one schema. So that inputs with
different columns fit into one schema, columns of the same type are shared by all inputs. A row has nulls
in the columns that its own input does not use.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import FlowError, ProtocolError
from penstock.state.arrays import Array, fixed_array, fixed_values

INPUT = "_input"
"""Name of the column (int8) with the number of each row's input."""
_MOST = 127
"""Highest number of inputs that an int8 tag can tell apart."""


class TaggedSchema:
    """The common schema of several inputs, and the conversions to and from it.

    Picklable. Equal inputs always get the same schema.

    >>> people = pa.schema([("id", pa.int64()), ("name", pa.string())])
    >>> bids = pa.schema([("price", pa.int64()), ("auction", pa.int64())])
    >>> tagged = TaggedSchema((people, bids))
    >>> [f"{field.name} {field.type}" for field in tagged.schema]
    ['_input int8', '_0 int64', '_1 string', '_2 int64']
    >>> tagged.places(0), tagged.places(1)
    ([0, 1], [0, 2])
    >>> bid = pa.RecordBatch.from_pydict({"price": [5], "auction": [7]}, bids)
    >>> tagged.pack(1, bid).to_pylist()
    [{'_input': 1, '_0': 5, '_1': None, '_2': 7}]
    >>> [(input, batch.to_pylist()) for input, batch in tagged.unpack(tagged.pack(1, bid))]
    [(1, [{'price': 5, 'auction': 7}])]
    """

    schema: pa.Schema
    """The tag, then the shared columns "_0", "_1" and so on. Each type has as many columns as the input
    with the most columns of that type."""

    def __init__(self, inputs: tuple[pa.Schema, ...]) -> None:
        if not 0 < len(inputs) <= _MOST:
            raise FlowError(
                f"{len(inputs)} inputs cannot share one stream", hint=f"use 1 to {_MOST} of them"
            )
        self.inputs = tuple(inputs)
        shared: dict[tuple[pa.DataType, int], int] = {}
        self._places: list[list[int]] = []
        for schema in inputs:
            used: dict[pa.DataType, int] = {}
            places = []
            for type in schema.types:
                nth = used.get(type, 0)
                used[type] = nth + 1
                places.append(shared.setdefault((type, nth), len(shared)))
            self._places.append(places)
        self._types = [type for type, _ in shared]
        self.schema = pa.schema(
            [
                pa.field(INPUT, pa.int8(), nullable=False),
                *(pa.field(f"_{i}", type) for i, type in enumerate(self._types)),
            ]
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return (TaggedSchema, (self.inputs,))

    def places(self, input: int) -> list[int]:
        """The number of the shared column of each column of an input."""
        return list(self._places[input])

    def pack(self, input: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Put rows of one input into the shared columns, without copying their values."""
        rows = batch.num_rows
        columns: list[pa.Array | None] = [None] * len(self._types)
        for place, column in zip(self._places[input], batch.columns, strict=True):
            columns[place] = column
        arrays = [
            pa.nulls(rows, type) if column is None else column
            for column, type in zip(columns, self._types, strict=True)
        ]
        tags = fixed_array(np.full(rows, input, np.int8), pa.int8())
        return pa.RecordBatch.from_arrays([tags, *arrays], schema=self.schema)

    def rows(self, input: int, batch: pa.RecordBatch) -> Array:
        """The numbers of the rows of a batch that belong to an input, ascending."""
        return np.flatnonzero(fixed_values(batch.column(0)) == input)

    def unpack(self, batch: pa.RecordBatch) -> list[tuple[int, pa.RecordBatch]]:
        """Split a batch into (input, rows) pairs, ordered by input. Rows keep their order, and inputs without
        rows are left out."""
        tags = fixed_values(batch.column(0))
        present = np.unique(tags) if len(tags) and (tags != tags[0]).any() else tags[:1]
        if len(present) and not 0 <= present[0] <= present[-1] < len(self.inputs):
            raise ProtocolError(
                f"a batch holds rows of input {present[-1]}, but there are {len(self.inputs)} inputs",
                hint="couriers and hosts must run the same version of Penstock",
            )
        parts = []
        for tag in present.tolist():
            part = batch if len(present) == 1 else _some(batch, np.flatnonzero(tags == tag))
            columns = [part.column(1 + place) for place in self._places[tag]]
            parts.append((tag, pa.RecordBatch.from_arrays(columns, schema=self.inputs[tag])))
        return parts


class AllInputs:
    """The rows of all inputs of a step as one stream: tagged if there are several inputs."""

    schema: pa.Schema

    def __init__(self, inputs: tuple[pa.Schema, ...]) -> None:
        self._tagged = TaggedSchema(inputs) if len(inputs) > 1 else None
        self.schema = inputs[0] if self._tagged is None else self._tagged.schema

    def pack(self, input: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Put rows of one input into the stream."""
        return batch if self._tagged is None else self._tagged.pack(input, batch)

    def unpack(self, batch: pa.RecordBatch) -> list[tuple[int, pa.RecordBatch]]:
        """Split a batch of the stream into (input, rows) pairs."""
        return [(0, batch)] if self._tagged is None else self._tagged.unpack(batch)


def _some(batch: pa.RecordBatch, rows: Array) -> pa.RecordBatch:
    first, last = int(rows[0]), int(rows[-1])
    if last - first + 1 == len(rows):
        return batch.slice(first, len(rows))
    return batch.take(fixed_array(rows, pa.int64()))
