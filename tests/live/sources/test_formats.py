"""Values to rows and back, and values that cannot be decoded."""

from __future__ import annotations

import datetime
import json
import pickle
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import FlowError, SettingError
from penstock.live.sources.formats import format_of

UTC = datetime.UTC
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 2}
AVRO = {
    "type": "record",
    "name": "row",
    "fields": [
        {"name": "word", "type": ["null", "string"]},
        {"name": "n", "type": "long"},
        {"name": "price", "type": ["null", DECIMAL]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
    ],
}  # fmt: skip


def read(schema: str, *values: Any) -> list[dict[str, Any]]:
    texts = [v if isinstance(v, bytes) or v is None else json.dumps(v).encode() for v in values]
    decoded = format_of("json", schema).decode(texts)
    assert not decoded.bad, decoded.bad
    return list(decoded.batch.to_pylist())


rows = st.lists(
    st.fixed_dictionaries(
        {
            "odd name": st.none() | st.text(),
            "n": st.none() | st.integers(-(2**63), 2**63 - 1),
            "x": st.none() | st.floats(allow_nan=False, allow_infinity=False),
            "b": st.none() | st.booleans(),
            "at": st.none() | st.datetimes(datetime.datetime(1, 1, 1), timezones=st.just(UTC)),
            "day": st.none() | st.dates(datetime.date(1, 1, 1)),
            "raw": st.none() | st.binary(max_size=9),
            "d": st.none() | st.decimals(-(10**6), 10**6, places=3),
            "deep": st.none()
            | st.fixed_dictionaries({"l": st.lists(st.integers(0, 9), max_size=3)}),
            "m": st.none() | st.dictionaries(st.text(max_size=3), st.integers(0, 9), max_size=3),
        }
    ),
    min_size=1,
    max_size=5,
)
SCHEMA = (
    "`odd name` string, n long, x double, b boolean, at timestamp, day date, raw binary, "
    "d decimal(12,3), deep struct<l: array<long>>, m map<string, long>"
)


@given(rows)
def test_json_round_trip(some: list[dict[str, Any]]) -> None:
    format = format_of("json", SCHEMA)
    batch = pa.RecordBatch.from_pylist(
        [row | {"m": row["m"] and list(row["m"].items())} for row in some], schema=format.schema
    )
    values = format.encode(batch)
    assert all(isinstance(json.loads(value or b""), dict) for value in values)
    decoded = format.decode(values)
    assert not decoded.bad
    assert decoded.batch.equals(batch.set_column(9, batch.schema.field(9), decoded.batch.column(9)))
    assert [dict(m or ()) for m in decoded.batch.column("m").to_pylist()] == [
        row["m"] or {} for row in some
    ]


def test_json_drops_unknown_fields_and_fills_in_nulls() -> None:
    assert read("a long, b string", {"a": 1, "c": {"d": []}}, {"b": "x"}, {}, None) == [
        {"a": 1, "b": None},
        {"a": None, "b": "x"},
        {"a": None, "b": None},
        {"a": None, "b": None},
    ]


@pytest.mark.parametrize(
    "text",
    [
        "2026-01-02T03:04:05.5Z",
        "2026-01-02 03:04:05.5",
        "2026-01-02T04:04:05.5+01:00",
        1767323045.5,
    ],
)
def test_json_times(text: Any) -> None:
    (row,) = read("at timestamp", {"at": text})
    assert row["at"] == datetime.datetime(2026, 1, 2, 3, 4, 5, 500_000, UTC)


def test_json_times_of_many_forms_in_one_chunk() -> None:
    texts = ["2026-01-02T00:00:00Z", 1767312000, "2026-01-02", None] * 20
    times = {row["at"] for row in read("at timestamp", *({"at": text} for text in texts))}
    assert times == {datetime.datetime(2026, 1, 2, tzinfo=UTC), None}


@pytest.mark.parametrize(
    "bad",
    [b"", b" ", b"null", b"5", b"[]", b'{"n": 1', b'{"n": "1"}', b'{"n": 1.5}', b'{"n": 1}{"n": 2}',
     b'{"n": 99999999999999999999}', b'{"n": NaN}', b'{"s": "\xff"}', b'{"at": "yesterday"}', b"\x00"],
)  # fmt: skip
def test_a_bad_value_does_not_affect_others(bad: bytes) -> None:
    format = format_of("json", "n long, s string, at timestamp")
    values = [json.dumps({"n": n}).encode() for n in range(100)]
    values[70] = bad
    decoded = format.decode(values)
    assert decoded.of is not None
    expected = [n for n in range(100) if n != 70]
    assert decoded.batch.column("n").to_pylist() == decoded.of.tolist() == expected
    assert [number for number, _ in decoded.bad] == [70]


def test_avro_round_trip() -> None:
    format = format_of("avro", AVRO)
    batch = pa.RecordBatch.from_pylist(
        [
            {
                "word": w,
                "n": n,
                "price": p,
                "at": datetime.datetime(2026, 1, n, tzinfo=UTC),
                "tags": ["a"] * n,
            }
            for w, n, p in (("x", 1, Decimal("1.50")), (None, 2, None))
        ],
        schema=format.schema,
    )
    values = format.encode(batch)
    assert format.decode(values).batch.equals(batch)
    assert [n for n, _ in format.decode([*values, b"", (values[0] or b"") + b"more"]).bad] == [2, 3]


def test_arrow_values_have_many_rows() -> None:
    format = format_of("arrow", "n long, word string")
    three, one = (
        pa.RecordBatch.from_pylist(
            [{"n": n, "word": "w"} for n in range(count)], schema=format.schema
        )
        for count in (3, 1)
    )
    decoded = format.decode([*format.encode(three), None, *format.encode(one), b"oops"])
    assert decoded.of is not None
    assert decoded.batch.column("n").to_pylist() == [0, 1, 2, 0]
    assert decoded.of.tolist() == [0, 0, 0, 2]
    assert [number for number, _ in decoded.bad] == [3]


def test_raw_values_are_taken_as_they_are() -> None:
    format = format_of("raw", None)
    decoded = format.decode([b"x", None, b""])
    assert decoded.batch.column("value").to_pylist() == [b"x", None, b""]
    assert format.encode(decoded.batch) == [b"x", None, b""]


def test_invalid_formats_are_refused() -> None:
    for name, schema, error, words in (
        ("json", None, FlowError, "needs a schema"),
        ("raw", "n long", FlowError, "takes no schema"),
        ("xml", "n long", SettingError, "unknown format"),
        ("avro", {"type": "string"}, FlowError, "not the schema of an Avro record"),
        ("avro", {"type": "record", "name": "r", "fields": [{"name": "u", "type": ["int", "string"]}]},
         FlowError, "is not supported"),
    ):  # fmt: skip
        with pytest.raises(error, match=words):
            format_of(name, schema)


def test_a_format_can_be_shipped_after_it_was_used() -> None:
    for format in (format_of("json", "n long"), format_of("avro", AVRO), format_of("raw", None)):
        format.decode([b"{}"])
        assert pickle.loads(pickle.dumps(format)) == format
