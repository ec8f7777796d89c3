"""From all that a flow gave to the rows that stand at its end.

A flow gives rows in one of three ways, and its end is read accordingly:

    rows that stay                      all of them
    rows with `_change` (+1, -1)        each as often as it was put in more than taken back
    a row per key whenever it changed   the newest of each key

The rows of one epoch are in any order; what an epoch leaves is known only when it is whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.operators.operator import CHANGE

_LEAST = 100_000
"""Rows that are always worth keeping until they are reduced together."""


def final_schema(schema: pa.Schema) -> pa.Schema:
    """The columns of the final rows of a flow that gives these.

    >>> final_schema(pa.schema({"id": pa.int64(), "_change": pa.int8()})).names
    ['id']
    """
    return pa.schema([field.with_nullable(True) for field in schema if field.name != CHANGE])


def final_rows(
    epochs: Iterable[Iterable[pa.RecordBatch]], schema: pa.Schema, latest: Sequence[str] = ()
) -> Iterator[pa.RecordBatch]:
    """What stands at the end of these epochs, which are in order.

    `latest` names the key of a flow that gives a key's row anew when it changed.
    """
    output = final_schema(schema)
    if CHANGE in schema.names:
        yield from _repeated(_reduced(epochs, schema, net), output)
    elif latest:
        yield from _reduced(epochs, schema, lambda table: newest(table, latest)).to_batches()
    else:
        for epoch in epochs:
            yield from epoch


def net(changes: pa.Table) -> pa.Table:
    """Each distinct row once, with the sum of its changes; none of those that cancel out.

    >>> rows = pa.table({"id": [1, 2, 1], "_change": pa.array([1, 1, -1])})
    >>> net(rows).to_pylist()
    [{'id': 2, '_change': 1}]
    """
    names = [name for name in changes.column_names if name != CHANGE]
    sums = changes.group_by(names).aggregate([(CHANGE, "sum")])
    sums = sums.rename_columns([*names, CHANGE]).select(changes.column_names)
    return sums.filter(pc.not_equal(sums[CHANGE], 0))


def newest(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    """The last row of each key.

    >>> newest(pa.table({"id": [1, 2, 1], "n": [1, 1, 2]}), ["id"]).to_pylist()
    [{'id': 2, 'n': 1}, {'id': 1, 'n': 2}]
    """
    rows = table.select(list(keys)).append_column("__row", pa.array(np.arange(len(table))))
    last = rows.group_by(list(keys)).aggregate([("__row", "max")])["__row_max"]
    return table.take(last.sort())


def _reduced(
    epochs: Iterable[Iterable[pa.RecordBatch]],
    schema: pa.Schema,
    reduce: Callable[[pa.Table], pa.Table],
) -> pa.Table:
    """All rows, reduced again and again: memory holds little more than what is left of them.

    A table is reduced when it has doubled, so that each row is looked at a few times only.
    """
    wide = _summing(schema)
    held, kept = wide.empty_table(), 0
    for epoch in epochs:
        held = pa.concat_tables([held, pa.Table.from_batches(epoch, schema).cast(wide)])
        if len(held) > 2 * kept + _LEAST:
            held = reduce(held)
            kept = len(held)
    return reduce(held)


def _summing(schema: pa.Schema) -> pa.Schema:
    """The schema with room for sums of changes."""
    return pa.schema(
        [field.with_type(pa.int64()) if field.name == CHANGE else field for field in schema]
    )


def _repeated(changes: pa.Table, output: pa.Schema) -> Iterator[pa.RecordBatch]:
    times = changes[CHANGE].to_numpy()
    rows = np.repeat(np.arange(len(times)), np.maximum(times, 0))
    yield from changes.take(pa.array(rows)).select(output.names).to_batches()


def read_epochs(folder: Path, schema: pa.Schema) -> Iterator[Iterator[pa.RecordBatch]]:
    """The epochs that a file sink wrote below a folder, oldest first."""
    epochs = {int(found.name.partition("=")[2]): found for found in folder.glob("epoch=*")}
    for _, epoch in sorted(epochs.items()):
        yield _batches(sorted(epoch.glob("*.parquet")), schema)


def _batches(files: Sequence[Path], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for file in files:
        with pq.ParquetFile(file) as opened:
            for batch in opened.iter_batches():
                yield batch.select(schema.names).cast(schema)
