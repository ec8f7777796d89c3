"""Readers of a stream's file: batches with the canonical columns and types, whatever types the file has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.errors import InputError
from penstock_bench.workloads.nexmark.columns import SCHEMAS, STREAMS, Stream
from penstock_bench.workloads.nexmark.ndjson import ndjson_batches
from penstock_bench.workloads.nexmark.times import FORMS, BadTime, as_times

_ROWS = 65_536


def find_files(folder: str | Path) -> dict[Stream, Path]:
    """The streams' files in a folder."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder", hint="name the folder that holds the events")
    by_stream: dict[Stream, Path] = {}
    for stream in STREAMS:
        files = [folder / f"{stream}.{ending}" for ending in ("ndjson", "parquet")]
        files = [file for file in files if file.exists()]
        if len(files) == 2:
            raise InputError(
                f"{folder} has {stream} twice, as NDJSON and as Parquet", hint="remove one of them"
            )
        for file in files:
            if not file.is_file():
                raise InputError(f"{file} is not a file", hint="put a stream's events in one file")
            by_stream[stream] = file
    if not by_stream:
        raise InputError(
            f"{folder} has no events",
            hint="it must hold person, auction or bid, as .ndjson or .parquet; "
            "penstock nexmark generate makes them",
        )
    return by_stream


def schema_of(stream: Stream, columns: Sequence[str]) -> pa.Schema:
    """The canonical schema of a stream's columns."""
    schema = SCHEMAS[stream]
    return pa.schema([schema.field(name) for name in columns])


def stream_batches(
    file: Path | None, stream: Stream, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Rows of a stream in the file's order, with only these columns; none if there is no file."""
    schema = schema_of(stream, columns)
    if file is None:
        return
    try:
        if file.suffix == ".ndjson":
            yield from ndjson_batches(file, schema)
        else:
            yield from _parquet_batches(file, schema)
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error}", hint="check the file") from error


def _parquet_batches(path: Path, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    try:
        file = pq.ParquetFile(path)
    except pa.ArrowException as error:
        raise InputError(f"{path} is not a Parquet file: {error}", hint="write it again") from error
    with file:
        missing = [name for name in schema.names if name not in file.schema_arrow.names]
        if missing:
            raise InputError(
                f"{path} has no column {', '.join(missing)}",
                hint=f"it has {', '.join(file.schema_arrow.names)}",
            )
        row = 0
        try:
            for batch in file.iter_batches(_ROWS, columns=schema.names):
                arrays = [_canonical(path, row, batch.column(f.name), f) for f in schema]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)
                row += batch.num_rows
        except pa.ArrowException as error:
            raise InputError(f"{path} is damaged: {error}", hint="write it again") from error


def _canonical(path: Path, first_row: int, column: pa.Array, field: pa.Field) -> pa.Array:
    """A Parquet column, cast to the canonical type. Raises `InputError` if that is not possible."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind, hint = column.type, f"write it as {field.type}"
    try:
        if pa.types.is_null(kind):
            return pa.nulls(len(column), field.type)
        if pa.types.is_timestamp(field.type):
            hint = FORMS
            return as_times(column)
        if pa.types.is_integer(field.type):
            fits = pa.types.is_integer(kind) or pa.types.is_floating(kind)
            fits = fits or pa.types.is_decimal(kind)
        else:
            fits = kind in (pa.string(), pa.large_string(), pa.string_view(), pa.binary())
        if not fits:
            raise TypeError(f"{kind} is not {field.type}")
        return column.cast(field.type)
    except BadTime as error:
        place = f"row {first_row + error.place + 1} of {path}"
        value = column[error.place].as_py() if not pa.types.is_timestamp(kind) else "a time"
        raise InputError(f"{place}: {field.name} is {value!r}, {error.reason}", hint=hint) from None
    except (TypeError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InputError(
            f"column {field.name} of {path} is {kind}, which does not fit: {error}", hint=hint
        ) from None
