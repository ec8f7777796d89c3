"""Picking and renaming columns, as a stateless step."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True)
class Select:
    """Keeps some columns of a batch, under these names, in this order. Picklable.

    >>> batch = pa.RecordBatch.from_pydict({"a": [1], "b": [2], "c": [3]})
    >>> Select((("c", "c"), ("x", "a")))(batch).to_pylist()
    [{'c': 3, 'x': 1}]
    """

    columns: tuple[tuple[str, str], ...]
    """(new name, name so far)."""

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        fields = [batch.schema.field(old).with_name(new) for new, old in self.columns]
        arrays = [batch.column(old) for _, old in self.columns]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    @property
    def __name__(self) -> str:
        names = (new if new == old else f"{old} as {new}" for new, old in self.columns)
        return f"select {', '.join(names)}"
