"""Parsing of schemas in Spark's DDL, without Spark, since hosts never import pyspark.

>>> schema_of("user string, score double, tags array<string>")
user: string
score: double
tags: list<element: string>
  child 0, element: string
>>> schema_of("struct<at:timestamp,price:decimal(10,2)>").field("price").type
Decimal128Type(decimal128(10, 2))
"""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa

from penstock.errors import FlowError

_TYPES = {
    "byte": pa.int8(), "tinyint": pa.int8(),
    "short": pa.int16(), "smallint": pa.int16(),
    "int": pa.int32(), "integer": pa.int32(),
    "long": pa.int64(), "bigint": pa.int64(),
    "float": pa.float32(), "real": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(), "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"), "timestamp_ltz": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}  # fmt: skip

_TOKEN = re.compile(r"\s*(`(?:[^`]|``)+`|'(?:[^'\\]|\\.)*'|\w+|[<>(),:])")


def schema_of(schema: Any) -> pa.Schema:
    """Convert DDL text, an Arrow schema or a Spark `StructType` to an Arrow schema.

    A text with only a type stands for one column named "value", as in Spark.

    >>> schema_of("long").names
    ['value']
    """
    if isinstance(schema, pa.Schema):
        return schema
    if not isinstance(schema, str) and hasattr(schema, "simpleString"):
        schema = schema.simpleString()  # a Spark type, as DDL
    if isinstance(schema, str) and schema.strip():
        return _Parser(schema).schema()
    raise FlowError(
        f"{schema!r} is not a schema",
        hint='write it as DDL, such as "count long, name string", or as a pyarrow.Schema',
    )


class _Parser:
    """A parser of one DDL text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[str] = []
        self._at = at = 0
        while text[at:].strip():
            match = _TOKEN.match(text, at)
            if match is None:
                raise self._error(f"unexpected {text[at:].strip()[0]!r}")
            self._tokens.append(match.group(1))
            at = match.end()

    def schema(self) -> pa.Schema:
        if self._peek(1) in ("", "<", "("):
            type = self._type()
            fields = list(type) if pa.types.is_struct(type) else [pa.field("value", type)]
        else:
            fields = self._fields()
        if self._peek():
            raise self._error(f"unexpected {self._peek()!r}")
        names = [field.name for field in fields]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise self._error(f"the column {twice!r} occurs twice")
        return pa.schema(fields)

    def _fields(self) -> list[pa.Field]:
        fields = [self._field()]
        while self._took(","):
            fields.append(self._field())
        return fields

    def _field(self) -> pa.Field:
        name = self._next()
        if not re.match(r"[\w`]", name):
            raise self._error(f"expected the name of a column, not {name!r}")
        if name.startswith("`"):
            name = name[1:-1].replace("``", "`")
        self._took(":")
        field = pa.field(name, self._type())
        if self._peek().lower() == "not" and self._peek(1).lower() == "null":
            self._at += 2
            field = field.with_nullable(False)
        if self._peek().lower() == "comment":
            self._at += 2
        return field

    def _type(self) -> pa.DataType:
        word = self._next().lower()
        if word in _TYPES:
            return _TYPES[word]
        if word in ("decimal", "dec", "numeric"):
            return self._decimal()
        if word not in ("array", "map", "struct"):
            raise self._error(f"{word!r} is not a supported type")
        self._expect("<")
        if word == "array":
            type = pa.list_(pa.field("element", self._type()))
        elif word == "struct":
            type = pa.struct(self._fields() if self._peek() != ">" else [])
        else:
            key = self._type()
            self._expect(",")
            type = pa.map_(key, self._type())
        self._expect(">")
        return type

    def _decimal(self) -> pa.DataType:
        precision, scale = 10, 0
        if self._took("("):
            precision = self._number()
            scale = self._number() if self._took(",") else 0
            self._expect(")")
        if not 0 < precision <= 38 or scale > precision:
            raise self._error(f"decimal({precision},{scale}) is not a valid type")
        return pa.decimal128(precision, scale)

    def _number(self) -> int:
        word = self._next()
        if not word.isdecimal():
            raise self._error(f"expected a number, not {word!r}")
        return int(word)

    def _peek(self, ahead: int = 0) -> str:
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else ""

    def _next(self) -> str:
        word = self._peek()
        if not word:
            raise self._error("it ends early")
        self._at += 1
        return word

    def _took(self, word: str) -> bool:
        """Skip the next word if it is this one, and return whether it was."""
        took = self._peek() == word
        self._at += took
        return took

    def _expect(self, word: str) -> None:
        if not self._took(word):
            raise self._error(
                f"expected {word!r}, not {self._peek()!r}" if self._peek() else "it ends early"
            )

    def _error(self, problem: str) -> FlowError:
        return FlowError(
            f"cannot read the schema {self._text!r}: {problem}",
            hint='write it as DDL, such as "count long, tags array<string>", or a pyarrow.Schema',
        )
