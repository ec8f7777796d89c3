"""Rows, and conversion of values between user code and Arrow."""

from __future__ import annotations

import copy
import pickle
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from penstock.state.variables.ddl import schema_of
from penstock.state.variables.values import Row, RowForm, python_values


def test_a_row_is_a_tuple_with_names() -> None:
    row: Any = Row(user="ann", count=3, **{"odd name": 1})
    assert row == ("ann", 3, 1)
    assert (row.user, row.count, row["odd name"], row[-1], row[:2]) == ("ann", 3, 1, 1, ("ann", 3))
    assert row.as_dict() == {"user": "ann", "count": 3, "odd name": 1}
    assert pickle.loads(pickle.dumps(row)) == row
    assert type(copy.copy(row)) is type(row)
    assert hash(row) == hash(("ann", 3, 1))


def test_columns_may_have_any_name() -> None:
    names = ["as_dict", "index", "_fields", "_x", "__len__", "self", "cls", "a b", ""]
    row: Any = Row(**{name: at for at, name in enumerate(names)})
    assert (row.as_dict, row.index, row._x, row.self) == (0, 1, 3, 5)
    assert [row[name] for name in names] == list(range(9)) == list(row)
    assert len(row) == 9
    assert Row.as_dict(row) == dict(zip(names, range(9), strict=True))


def test_a_row_says_which_columns_it_has() -> None:
    row = Row(user="ann")
    with pytest.raises(AttributeError, match="no column 'users', only user"):
        _ = row.users
    with pytest.raises(KeyError, match="no column 'users', only user"):
        _ = row["users"]


@pytest.mark.parametrize(
    ("type", "value", "kept"),
    [
        ("long", 2**63 - 1, 2**63 - 1),
        ("long", np.int32(5), 5),
        ("byte", -128, -128),
        ("double", 3, 3.0),
        ("double", np.float32(0.5), 0.5),
        ("float", 0.1, float(np.float32(0.1))),
        ("boolean", np.True_, True),
        ("string", np.str_("x"), "x"),
        ("string", "grüße", "grüße"),
        ("binary", bytearray(b"x"), b"x"),
        ("date", date(2024, 2, 29), date(2024, 2, 29)),
        ("timestamp", datetime(2024, 1, 1), datetime(2024, 1, 1, tzinfo=UTC)),
        (
            "timestamp",
            datetime(2024, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))),
            datetime(2024, 1, 1, tzinfo=UTC),
        ),
        ("timestamp_ntz", pd.Timestamp("2024-01-01 10:00"), datetime(2024, 1, 1, 10)),
        ("decimal(6,2)", Decimal("1.5"), Decimal("1.50")),
        ("array<int>", (1, None), [1, None]),
        ("array<double>", np.array([1.0]), [1.0]),
        ("map<string,long>", {"a": 1}, {"a": 1}),
        ("struct<a:int,b:string>", {"b": "x", "a": 1}, Row(a=1, b="x")),
        ("struct<a:int,b:string>", (1, None), Row(a=1, b=None)),
        ("array<struct<a:int>>", [(1,)], [Row(a=1)]),
        ("map<struct<a:int>,array<int>>", {(1,): [2]}, {Row(a=1): [2]}),
        ("string", None, None),
        ("struct<a:int>", None, None),
        ("array<int>", None, None),
        ("map<int,int>", None, None),
        ("timestamp", None, None),
    ],
)
def test_written_values_are_read_back_also_after_arrow(type: str, value: Any, kept: Any) -> None:
    form = RowForm(schema_of(f"first int, x {type}"))
    written = form.write((1, value))
    row = form.read(written)
    assert row == (1, kept)
    assert [v.__class__ for v in row] == [v.__class__ for v in form.read(written)]
    batch = form.batch([written])
    assert form.rows(batch.columns, 1) == [row]
    restored = form.restored(batch.to_pylist()[0])
    assert form.read(restored) == row
    assert form.batch([restored]).equals(batch)


@pytest.mark.parametrize(
    ("type", "value"),
    [
        ("long", 2**63),
        ("long", 1.0),
        ("long", "1"),
        ("long", True),
        ("int", 2**31),
        ("byte", 128),
        ("double", "1"),
        ("double", True),
        ("float", 1e300),
        ("boolean", 1),
        ("string", 1),
        ("string", b"x"),
        ("string", "\ud800"),
        ("binary", "x"),
        ("date", datetime(2024, 1, 1)),
        ("timestamp", 5),
        ("timestamp_ntz", datetime(2024, 1, 1, tzinfo=UTC)),
        ("decimal(3,1)", Decimal("1.23")),
        ("array<int>", "text"),
        ("array<int>", [1, "x"]),
        ("map<string,int>", [("a", 1)]),
        ("struct<a:int>", (1, 2)),
        ("struct<a:int>", {"b": 1}),
        ("int not null", None),
    ],
)
def test_an_error_names_the_column_of_a_value_that_does_not_fit(type: str, value: Any) -> None:
    form = RowForm(schema_of(f"first int, x {type}"))
    with pytest.raises(TypeError, match="column 'x'"):
        form.write((1, value))


def test_rows_are_accepted_by_position_or_by_name() -> None:
    form = RowForm(schema_of("a int, b string"))
    for row in [(1, "x"), [1, "x"], {"b": "x", "a": 1}, Row(a=1, b="x"), Row(b="x", a=1)]:
        assert form.write(row) == (1, "x")
    assert form.write(Row(c=1, d="x")) == (1, "x")
    for wrong, problem in [
        ((1,), "a row has 1 values for the 2 columns a, b"),
        ({"a": 1}, "column 'b' is missing"),
        ({"a": 1, "b": "x", "c": 2}, "no column 'c'"),
        (5, "not a row"),
        ("ab", "not a row"),
    ]:
        with pytest.raises(TypeError, match=problem):
            form.write(wrong)


def test_user_code_cannot_change_what_was_written() -> None:
    form = RowForm(schema_of("x array<int>, y map<string,array<int>>"))
    mine: tuple[list[int], dict[str, list[int]]] = ([1], {"a": [1]})
    written = form.write(mine)
    mine[0].append(2)
    mine[1]["a"].append(2)
    row = form.read(written)
    row.x.append(3)
    row.y["b"] = []
    assert form.read(written) == ([1], {"a": [1]})


@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin", "+02:00"])
def test_timestamps_become_the_same_datetimes_as_in_arrow(zone: str | None) -> None:
    array = pa.array([0, 1_700_000_000_123_456, None, -1], pa.timestamp("us", tz=zone))
    values = python_values(array)
    assert values == array.to_pylist()
    assert [v and v.utcoffset() for v in values] == [v and v.utcoffset() for v in array.to_pylist()]
