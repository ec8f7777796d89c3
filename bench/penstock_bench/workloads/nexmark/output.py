"""The final rows of a flow, written to one file: Parquet or NDJSON, by its suffix."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.errors import SettingError
from penstock.operators.operator import CHANGE

_LEAST = 100_000
"""Fewest new rows before the rows so far are reduced."""


def final_schema(schema: pa.Schema) -> pa.Schema:
    """Schema of the final rows of a flow with this output schema.

    >>> final_schema(pa.schema({"id": pa.int64(), "_change": pa.int8()})).names
    ['id']
    """
    return pa.schema([field.with_nullable(True) for field in schema if field.name != CHANGE])


def final_rows(
    epochs: Iterable[Iterable[pa.RecordBatch]], schema: pa.Schema, latest: Sequence[str] = ()
) -> Iterator[pa.RecordBatch]:
    """The rows that remain after these epochs, which are in order.

    `latest` names the key columns of a flow that emits a key's row again when it changes.
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
    """Each distinct row once, with the sum of its changes; rows whose changes cancel out are left out.

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
    """All rows, reduced repeatedly, so that memory holds little more than the remaining rows.

    A table is reduced when it has doubled, so that each row is processed only a few times.
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
    """The schema with changes as 64-bit integers, which have room for sums."""
    return pa.schema(
        [field.with_type(pa.int64()) if field.name == CHANGE else field for field in schema]
    )


def _repeated(changes: pa.Table, output: pa.Schema) -> Iterator[pa.RecordBatch]:
    times = changes[CHANGE].to_numpy()
    rows = np.repeat(np.arange(len(times)), np.maximum(times, 0))
    yield from changes.take(pa.array(rows)).select(output.names).to_batches()


def read_epochs(folder: Path, schema: pa.Schema) -> Iterator[Iterator[pa.RecordBatch]]:
    """The epochs that a file sink wrote below a folder, oldest first."""
    epochs = {int(path.name.partition("=")[2]): path for path in folder.glob("epoch=*")}
    for _, epoch in sorted(epochs.items()):
        yield _batches(sorted(epoch.glob("*.parquet")), schema)


def _batches(files: Sequence[Path], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for file in files:
        with pq.ParquetFile(file) as opened:
            for batch in opened.iter_batches():
                yield batch.select(schema.names).cast(schema)


SUFFIXES = (".parquet", ".ndjson")
_LINES = 50_000
"""Rows that are converted to text at once."""
Write = Callable[[pa.RecordBatch], None]


def check_output(path: Path) -> None:
    """Raise `SettingError` if the file cannot be written, before hours of work are spent on its rows."""
    if path.suffix not in SUFFIXES:
        raise SettingError(
            f"{path} has no known file format",
            hint=f"use a name that ends in {' or '.join(SUFFIXES)}",
        )
    if path.is_dir():
        raise SettingError(f"{path} is a folder", hint="name a file to write")
    if not path.parent.is_dir():
        raise SettingError(
            f"cannot write {path}: there is no folder {path.parent}", hint="make the folder first"
        )
    if not os.access(path.parent, os.W_OK):
        raise SettingError(
            f"cannot write {path}: this user may not write to {path.parent}",
            hint="choose another folder, or get write permission for it",
        )


@contextmanager
def rows_file(path: Path, schema: pa.Schema) -> Iterator[Write]:
    """Yield a function that writes batches of this schema. The file replaces an older one at the end."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    opened = _parquet if path.suffix == ".parquet" else _ndjson
    try:
        with opened(part, schema) as write:
            yield write
        part.replace(path)
    except OSError as refused:
        raise SettingError(
            f"cannot write {path}: {refused}", hint="check the folder and its free space"
        ) from refused
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


@contextmanager
def _parquet(part: Path, schema: pa.Schema) -> Iterator[Write]:
    with pq.ParquetWriter(part, schema) as writer:
        yield lambda batch: writer.write_batch(batch.cast(schema))


@contextmanager
def _ndjson(part: Path, schema: pa.Schema) -> Iterator[Write]:
    with part.open("wb") as file:
        yield lambda batch: _write_lines(file, batch.cast(schema))


def _write_lines(file: BinaryIO, batch: pa.RecordBatch) -> None:
    for start in range(0, len(batch), _LINES):
        lines = json_lines(batch.slice(start, _LINES))
        # The bytes of a text column are its values one after the other: the lines of the file.
        file.write(lines.buffers()[2][: pc.sum(pc.binary_length(lines)).as_py()])


def json_lines(batch: pa.RecordBatch) -> pa.Array:
    """Each row as a JSON object on its own line. Whole columns are converted to text at once.

    >>> json_lines(pa.RecordBatch.from_pydict({"id": [1], "name": ["Bo"]})).to_pylist()
    ['{"id":1,"name":"Bo"}\\n']
    """
    pieces: list[pa.Array | pa.Scalar] = []
    for number, field in enumerate(batch.schema):
        name = json.dumps(field.name, ensure_ascii=False)
        begin = f"{'{' if number == 0 else ','}{name}:"
        pieces += [pa.scalar(begin), _json_values(batch.column(number))]
    return pc.binary_join_element_wise(*pieces, pa.scalar("}\n"), pa.scalar(""))


def _json_values(column: pa.Array) -> pa.Array:
    """The values of a column as JSON; null for missing values, and for those that JSON cannot express."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        text = _quoted(_iso(column))
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        text = _json_strings(column.cast(pa.string()))
    elif pa.types.is_floating(kind):
        finite = pc.if_else(pc.is_finite(column), column, pa.scalar(None, kind))
        text = finite.cast(pa.string())
    elif pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_decimal(kind):
        text = column.cast(pa.string())
    else:
        raise TypeError(f"{kind} cannot be written as JSON")
    return pc.fill_null(text, "null")


def _iso(column: pa.Array) -> pa.Array:
    """Times in UTC, in milliseconds, or in microseconds where they are not whole milliseconds."""
    zoneless = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.timestamp("us"))
    text = pc.replace_substring(zoneless.cast(pa.string()), " ", "T")
    return pc.binary_join_element_wise(pc.replace_substring_regex(text, "000$", ""), "Z", "")


def _json_strings(column: pa.Array) -> pa.Array:
    """Quoted text. Rows with control characters, which are rare, are written by `json` instead."""
    escaped = pc.replace_substring(pc.replace_substring(column, "\\", "\\\\"), '"', '\\"')
    odd = pc.fill_null(pc.match_substring_regex(column, r"[\x00-\x1f]"), False)
    if not pc.any(odd).as_py():
        return _quoted(escaped)
    written = [json.dumps(text, ensure_ascii=False) for text in column.filter(odd).to_pylist()]
    return pc.replace_with_mask(_quoted(escaped), odd, pa.array(written, pa.string()))


def _quoted(column: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise('"', column, '"', "")
