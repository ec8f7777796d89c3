"""Parsing of keys from a command line, and display of keys and values."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Sequence
from datetime import date, time, timedelta
from typing import Any

import pyarrow as pa

from penstock.errors import FlowError
from penstock.state.keys.codec import KeyCodec, Keys


def parse_key(codec: KeyCodec, texts: Sequence[str]) -> Keys:
    """Parse a key from one text per column, or from a single text with commas.

    Nested values are JSON. Bytes are plain text, or 0x and hexadecimal digits. If keys may be null, null
    stands for a null, and "null", with the quotes, for the string.

    >>> codec = KeyCodec(pa.schema([("user", pa.string()), ("day", pa.int32())]))
    >>> codec.one(parse_key(codec, ["ann,7"]), 0)
    ('ann', 7)
    """
    fields = list(codec.schema)
    if len(texts) == 1 and len(fields) > 1:
        texts = next(csv.reader(texts, skipinitialspace=True), [])
    if len(texts) != len(fields):
        return codec.from_values(texts)  # raises an error that names the columns
    value = _value_or_null if codec.nulls else _value
    return codec.from_values([value(t, f) for t, f in zip(texts, fields, strict=True)])


class KeyText(str):
    """A key as a text for `parse_key`, in a place where a key may also be values."""

    __slots__ = ()


def key_of(codec: KeyCodec, key: Any) -> Keys:
    """Encode a key: a tuple or list of values, the value of its only column, or a `KeyText`.

    >>> codec = KeyCodec(pa.schema([("user", pa.int64())]))
    >>> [codec.one(key_of(codec, key), 0) for key in (7, (7,), KeyText("7"))]
    [(7,), (7,), (7,)]
    """
    if isinstance(key, KeyText):
        return parse_key(codec, [key])
    return codec.from_values(key if isinstance(key, tuple | list) else (key,))


def plain(value: Any) -> Any:
    """Convert a value to JSON values. Types that JSON lacks become text.

    >>> plain({"at": date(2026, 1, 31), "raw": b"ab", "x": float("nan")})
    {'at': '2026-01-31', 'raw': '0x6162', 'x': 'nan'}
    """
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case bytes():
            return f"0x{value.hex()}"
        case dict():
            return {str(name): plain(inner) for name, inner in value.items()}
        case list() | tuple():
            return [plain(inner) for inner in value]
        case date() | time():  # a datetime is a date
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case _:
            return str(value)


def shown(value: Any) -> str:
    """Format a value as one cell of a table.

    >>> shown("ann"), shown([1, 2]), shown(None)
    ('ann', '[1, 2]', '-')
    """
    if value is None:
        return "-"
    value = plain(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


_NULLS = {"null": None, '"null"': "null"}


def _value_or_null(text: str, field: pa.Field) -> Any:
    return _NULLS[text] if text in _NULLS else _value(text, field)


def _value(text: str, field: pa.Field) -> Any:
    try:
        if pa.types.is_nested(field.type):
            return json.loads(text)
        if text.startswith("0x") and "binary" in str(field.type):
            return bytes.fromhex(text[2:])
    except ValueError as problem:
        raise FlowError(
            f"{text!r} is not a valid value of the key column {field.name!r} of type {field.type}",
            hint="write lists and structs as JSON, bytes as text or as 0x and hexadecimal digits",
        ) from problem
    return text
