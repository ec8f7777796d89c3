"""Parsing of DDL text to Arrow schemas, as Spark does it."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.errors import FlowError
from penstock.state.variables.ddl import schema_of


@pytest.mark.parametrize(
    ("text", "type"),
    [
        ("byte", pa.int8()),
        ("tinyint", pa.int8()),
        ("short", pa.int16()),
        ("SMALLINT", pa.int16()),
        ("int", pa.int32()),
        ("integer", pa.int32()),
        ("long", pa.int64()),
        ("bigint", pa.int64()),
        ("float", pa.float32()),
        ("double", pa.float64()),
        ("boolean", pa.bool_()),
        ("string", pa.string()),
        ("binary", pa.binary()),
        ("date", pa.date32()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestamp_ntz", pa.timestamp("us")),
        ("decimal", pa.decimal128(10, 0)),
        ("decimal(7)", pa.decimal128(7, 0)),
        ("decimal( 7 , 2 )", pa.decimal128(7, 2)),
        ("array<int>", pa.list_(pa.field("element", pa.int32()))),
        (
            "map<string,array<long>>",
            pa.map_(pa.string(), pa.list_(pa.field("element", pa.int64()))),
        ),
        ("struct<a:int, b: string>", pa.struct([("a", pa.int32()), ("b", pa.string())])),
        ("struct<>", pa.struct([])),
    ],
)
def test_types(text: str, type: pa.DataType) -> None:
    assert schema_of(f"x {text}").field("x").type == type
    assert schema_of(f"first int, x {text}, last int").field(1).type == type


def test_names_nulls_and_comments() -> None:
    schema = schema_of("`odd ``name` int not null comment 'a, b', date: date, count long")
    assert schema.names == ["odd `name", "date", "count"]
    assert [field.nullable for field in schema] == [False, True, True]


def test_a_bare_type_is_one_column_named_value() -> None:
    assert schema_of("long") == pa.schema([("value", pa.int64())])
    assert schema_of("decimal(5,2)") == pa.schema([("value", pa.decimal128(5, 2))])
    assert schema_of("struct<a:int>") == pa.schema([("a", pa.int32())])


def test_arrow_and_spark_schemas_pass() -> None:
    class StructType:
        def simpleString(self) -> str:  # noqa: N802 - Spark's name
            return "struct<a:int,b:array<string>>"

    schema = pa.schema([("a", pa.int16())])
    assert schema_of(schema) is schema
    assert schema_of(StructType()).names == ["a", "b"]


@pytest.mark.parametrize(
    "text",
    ["", " ", "a", "a int,", "a int b", "a foo", "a int, a long", "a array<int", "a array<int>>",
     "a decimal(39,0)", "a decimal(3,4)", "a decimal(x)", "a$ int", ", a int", "a map<int>", None],
)  # fmt: skip
def test_an_invalid_schema_is_rejected(text: object) -> None:
    with pytest.raises(FlowError, match="schema"):
        schema_of(text)
