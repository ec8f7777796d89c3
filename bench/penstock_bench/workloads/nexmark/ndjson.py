"""A reader of NDJSON in blocks: by Arrow, and line by line where Arrow fails on a block.

The slow reader decides what is valid. It accepts numbers like 1.0 for ids and columns whose times have
several forms, and its errors name the line and the column.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.json as pj

from penstock.errors import InputError
from penstock_bench.workloads.nexmark.times import FORMS, BadTime, as_times

BLOCK = 16 << 20
_PIECE = 4 << 20


def ndjson_batches(path: Path, schema: pa.Schema, block: int = BLOCK) -> Iterator[pa.RecordBatch]:
    """Rows of a file with these columns, in order. A column that a row lacks is null.

    Each batch has at most a block's rows. Raises `InputError` for invalid lines.
    """
    fast: pa.Schema | None = None
    line = 1
    for data in _blocks(path, block):
        if fast is None and data.strip():
            _check_columns(path, schema, data)
            fast = _fast_schema(schema, data)
        if fast is not None:
            table = _quick(data, fast, schema)
            yield from (
                _Lines(path, schema, line).read(data) if table is None else table
            ).to_batches()
        line += data.count(b"\n")


def _blocks(path: Path, size: int) -> Iterator[bytes]:
    """The file's bytes, in blocks that end with a line."""
    with path.open("rb") as file:
        rest = file.read(3).removeprefix(b"\xef\xbb\xbf")
        while data := file.read(size):
            end = data.rfind(b"\n") + 1
            if end:
                yield rest + data[:end]
                rest = data[end:]
            else:
                rest += data
        if rest:
            yield rest


def _check_columns(path: Path, schema: pa.Schema, data: bytes) -> None:
    missing = [name for name in schema.names if f'"{name}"'.encode() not in data]
    if missing:
        raise InputError(
            f"{path} has no column {', '.join(missing)}",
            hint="each line must be a JSON object with all columns of the stream",
        )


def _fast_schema(schema: pa.Schema, data: bytes) -> pa.Schema:
    """The schema for Arrow's reader, with times as numbers or strings, as in the first rows."""
    first: dict[str, Any] = {}
    for line in data[: 1 << 16].split(b"\n")[:100]:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            first = {name: value for name, value in row.items() if value is not None} | first
    fields = []
    for field in schema:
        if pa.types.is_timestamp(field.type):
            numbers = isinstance(first.get(field.name), int)
            field = field.with_type(pa.int64() if numbers else pa.string())
        fields.append(field)
    return pa.schema(fields)


def _quick(data: bytes, fast: pa.Schema, schema: pa.Schema) -> pa.Table | None:
    """The rows by Arrow; None if only the slow reader can read them or explain the error."""
    reading = pj.ReadOptions(block_size=_PIECE)
    parsing = pj.ParseOptions(explicit_schema=fast, unexpected_field_behavior="ignore")
    try:
        parsed = pj.read_json(io.BytesIO(data), read_options=reading, parse_options=parsing)
        table = parsed.select(schema.names).combine_chunks()
        table.validate(full=True)
        columns = [
            as_times(_one(table.column(field.name)))
            if pa.types.is_timestamp(field.type)
            else table.column(field.name)
            for field in schema
        ]
    except (pa.ArrowException, UnicodeDecodeError, BadTime):
        return None
    return pa.table(columns, schema=schema)


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


class _Lines:
    """The slow reader, line by line, with exact errors."""

    def __init__(self, path: Path, schema: pa.Schema, first_line: int) -> None:
        self._path, self._schema, self._first = path, schema, first_line

    def read(self, data: bytes) -> pa.Table:
        lines, rows = [], []
        for number, line in enumerate(data.split(b"\n"), self._first):
            if line.strip():
                lines.append(number)
                rows.append(self._row(number, line))
        columns = [
            self._column(field, [row.get(field.name) for row in rows], lines)
            for field in self._schema
        ]
        return pa.table(columns, schema=self._schema)

    def _row(self, number: int, line: bytes) -> dict[str, Any]:
        try:
            row = json.loads(line.decode())
        except UnicodeDecodeError as error:
            raise self._bad(number, f"is not UTF-8 ({error})", "save the file as UTF-8") from None
        except ValueError as error:
            hint = "write one JSON object on each line"
            raise self._bad(number, f"is not JSON ({error})", hint) from None
        except RecursionError:
            raise self._bad(number, "is too deeply nested", "leave such columns out") from None
        if not isinstance(row, dict):
            raise self._bad(number, "is not a JSON object", "write one JSON object on each line")
        return row

    def _column(self, field: pa.Field, values: list[Any], lines: list[int]) -> pa.Array:
        if pa.types.is_timestamp(field.type):
            return self._times(field, values, lines)
        taken = self._whole if pa.types.is_integer(field.type) else self._text
        return pa.array(
            [taken(field.name, value, line) for value, line in zip(values, lines, strict=True)],
            field.type,
        )

    def _whole(self, name: str, value: Any, line: int) -> int | None:
        if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
            return int(value)
        if value is None or (type(value) is int and -(2**63) <= value < 2**63):
            return value
        raise self._bad_value(line, name, value, "which is not a 64-bit integer")

    def _text(self, name: str, value: Any, line: int) -> str | None:
        if value is not None and not isinstance(value, str):
            raise self._bad_value(line, name, value, "which is not a string")
        try:
            (value or "").encode()
        except UnicodeEncodeError:
            raise self._bad_value(line, name, value, "which has an incomplete character") from None
        return value

    def _times(self, field: pa.Field, values: list[Any], lines: list[int]) -> pa.Array:
        whole, text = [], []
        for value, line in zip(values, lines, strict=True):
            is_number = value is not None and not isinstance(value, str)
            whole.append(self._whole(field.name, value, line) if is_number else None)
            text.append(None if is_number else self._text(field.name, value, line))
        try:
            parsed = as_times(pa.array(text, pa.string()))
            counted = as_times(pa.array(whole, pa.int64()))
        except BadTime as error:
            line, value = lines[error.place], values[error.place]
            raise self._bad_value(line, field.name, value, error.reason, FORMS) from None
        return pa.array(
            [a if a is not None else b for a, b in zip(_ints(parsed), _ints(counted), strict=True)],
            pa.int64(),
        ).cast(field.type)

    def _bad(self, line: int, what: str, hint: str) -> InputError:
        return InputError(f"line {line} of {self._path} {what}", hint=hint)

    def _bad_value(
        self, line: int, name: str, value: Any, why: str, hint: str = "correct or remove the line"
    ) -> InputError:
        shown = json.dumps(value)
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        return InputError(f"line {line} of {self._path}: {name} is {shown}, {why}", hint=hint)


def _ints(times: pa.Array) -> list[int | None]:
    micros: list[int | None] = times.cast(pa.int64()).to_pylist()
    return micros
