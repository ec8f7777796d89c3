"""Conversion of rows and values between user code and Arrow.

A *writer* converts a value of user code to one that fits the Arrow type and that user code cannot change,
or raises an error. A *reader* converts a value from Arrow or a writer to one for user code. Types whose
values can be used as they are have no reader.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC
from functools import lru_cache, partial
from operator import length_hint
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from penstock.state.arrays import fixed_values, one_chunk
from penstock.state.variables.scalars import (
    PLAIN,
    WRITERS,
    Writer,
    limits,
    write_any,
    write_time,
    write_whole,
    zone_of,
)

Reader = Callable[[Any], Any]


class Row(tuple[Any, ...]):
    """An immutable row: a tuple whose values also have names.

    >>> row = Row(user="ann", count=3)
    >>> row[1], row.count, row["user"], row.as_dict()
    (3, 3, 'ann', {'user': 'ann', 'count': 3})
    """

    __slots__ = ()
    _fields: ClassVar[tuple[str, ...]] = ()
    _places: ClassVar[Mapping[str, int]] = {}

    def __new__(cls, /, **values: Any) -> Row:
        return tuple.__new__(row_type(tuple(values)), values.values())

    def __getitem__(self, item: Any) -> Any:
        if type(item) is not str:
            return tuple.__getitem__(self, item)
        if item not in self._places:
            raise KeyError(f"the row has no column {item!r}, only {', '.join(self._fields)}")
        return tuple.__getitem__(self, self._places[item])

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the row has no column {name!r}, only {', '.join(self._fields)}")

    def as_dict(self) -> dict[str, Any]:
        return dict(zip(self._fields, self, strict=True))

    def __repr__(self) -> str:
        return f"Row({', '.join(f'{n}={v!r}' for n, v in zip(self._fields, self, strict=True))})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (_row, (self._fields, tuple(self)))


@lru_cache(maxsize=1024)
def row_type(names: tuple[str, ...]) -> type[Row]:
    """The class of rows with these columns."""
    # The descriptors of a namedtuple are by far the fastest access to a tuple's items.
    items = namedtuple("items", [f"at{at}" for at in range(len(names))])  # type: ignore[misc]
    space: dict[str, Any] = {"__slots__": (), "_fields": names}
    space["_places"] = {name: at for at, name in enumerate(names)}
    named = {n: vars(items)[f"at{at}"] for at, n in enumerate(names) if not n.startswith("__")}
    return type("Row", (Row,), named | space)


def _row(names: tuple[str, ...], values: tuple[Any, ...]) -> Row:
    return tuple.__new__(row_type(names), values)


class RowForm:
    """Conversion of rows of one schema to and from user code.

    >>> form = RowForm(pa.schema([("user", pa.string()), ("count", pa.int64())]))
    >>> form.write({"count": 3, "user": "ann"})
    ('ann', 3)
    >>> form.read(("ann", 3))
    Row(user='ann', count=3)
    >>> form.write(("ann", "three"))
    Traceback (most recent call last):
    ...
    TypeError: the column 'count' takes int64, not 'three' (str)
    """

    def __init__(self, schema: Iterable[pa.Field]) -> None:
        fields = list(schema)
        self.schema = pa.schema(fields)
        self.names = tuple(field.name for field in fields)
        self.make: Callable[[Iterable[Any]], Row] = partial(tuple.__new__, row_type(self.names))
        self._type = row_type(self.names)
        self._width = len(fields)
        self._writers = [partial(_write_field, f, writer(f.type), f.nullable) for f in fields]
        self.write: Callable[[Any], tuple[Any, ...]] = _quick_write(fields, self._write)
        """Check and convert a row from user code: a tuple or list in the order of the columns, a dict, or a
        Row."""
        readers = [reader(field.type) for field in fields]
        self._readers = [_same if read is None else read for read in readers]
        self.read: Callable[[Iterable[Any]], Row] = (
            self.make if all(read is None for read in readers) else self._copied
        )
        """Convert a row from `write` to a `Row` for user code."""

    def rows(self, columns: list[pa.Array], count: int) -> list[Row]:
        """Convert columns to rows for user code."""
        if not columns:
            return [self.make(())] * count
        return list(map(self.make, zip(*map(python_values, columns), strict=True)))

    def batch(self, rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
        """Convert rows from `write` to an Arrow batch."""
        columns = zip(*rows, strict=True) if rows else [()] * self._width
        arrays = [pa.array(c, f.type) for c, f in zip(columns, self.schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def restored(self, row: dict[str, Any]) -> tuple[Any, ...]:
        """Convert a row from Arrow to the form that `write` returns."""
        return tuple([read(v) for read, v in zip(self._readers, row.values(), strict=True)])

    def _copied(self, row: Iterable[Any]) -> Row:
        return self.make([read(v) for read, v in zip(self._readers, row, strict=True)])

    def _write(self, row: Any) -> tuple[Any, ...]:
        """Check and convert any row."""
        if type(row) is not tuple and type(row) is not self._type:
            row = self._in_order(row)
        if len(row) != self._width:
            raise TypeError(
                f"a row has {len(row)} values for the {self._width} columns {', '.join(self.names)}: "
                f"use one value for each column"
            )
        return tuple([write(v) for write, v in zip(self._writers, row, strict=True)])

    def _in_order(self, row: Any) -> Any:
        if isinstance(row, Row) and set(row._fields) == set(self.names):
            row = Row.as_dict(row)
        if isinstance(row, (tuple, list)):
            return row
        if not isinstance(row, Mapping):
            raise TypeError(
                f"{row!r} ({type(row).__name__}) is not a row of the columns "
                f"{', '.join(self.names)}: use a tuple, a dict or a Row"
            )
        for name in row:
            if name not in self._type._places:
                raise TypeError(f"there is no column {name!r}, only {', '.join(self.names)}")
        for name in self.names:
            if name not in row:
                raise TypeError(f"the column {name!r} is missing in {row!r}")
        return [row[name] for name in self.names]


def _quick_write(fields: list[pa.Field], write: Writer) -> Writer:
    """A function that returns a tuple of plain values (see `PLAIN`) as it is, and leaves all else to `write`.

    It is made of source text, since it runs for each row of user code: a loop over the fields takes four
    times as long.
    """
    checks = ["type(row) is tuple", f"len(row) == {len(fields)}"]
    for at, field in enumerate(fields):
        plain = PLAIN.get(field.type)
        if plain is None:
            return write
        checks.append(f"type(row[{at}]) is {plain.__name__}")
        if plain is int:
            low, high = limits(field.type)
            checks.append(f"{low} <= row[{at}] <= {high}")
        elif plain is str:
            checks.append(f"row[{at}].isascii()")
    source = f"lambda row: row if {' and '.join(checks)} else write(row)"
    quick: Writer = eval(compile(source, __file__, "eval"), {"write": write})
    return quick


class Rows(Iterator[Row]):
    """The rows of one call, in order. They become Python objects when a handler reads one, and not before.

    `len(rows)` is their number, and `rows.column("v")` the values of a column: neither creates rows.

    >>> batch = pa.record_batch({"user": ["ann", "ann", "bob"], "v": [1, 2, 3]})
    >>> rows = Rows(RowForm(batch.schema), batch)
    >>> rows.choose(0, 2)
    >>> len(rows), rows.column("v"), next(rows), list(rows)
    (2, [1, 2], Row(user='ann', v=1), [Row(user='ann', v=2)])
    """

    __slots__ = ("_batch", "_columns", "_form", "_made", "_whole", "end", "left", "start")

    def __init__(self, form: RowForm, batch: pa.RecordBatch) -> None:
        self._form, self._batch = form, batch
        self._columns: dict[str, list[Any]] = {}
        self._made: list[Row] | None = None
        self._whole = -1
        self.choose(0, batch.num_rows)

    def choose(self, start: int, end: int) -> None:
        """Begin with rows `start` to `end` of the batch."""
        self.start, self.end = start, end
        self.left: Iterator[Row] | None = None

    def __len__(self) -> int:
        """Number of rows of the call, whether read or not."""
        return self.end - self.start

    def __iter__(self) -> Iterator[Row]:
        left = self.left
        if left is None:
            made = self._made
            if made is None:
                made = self._made = self._form.rows(self._batch.columns, self._batch.num_rows)
            left = self.left = iter(made[self.start : self.end])
        return left

    def __next__(self) -> Row:
        return next(iter(self))

    def column(self, name: str) -> list[Any]:
        """The values of a column, one for each row of the call."""
        if name not in self._form.names:
            raise KeyError(f"the rows have no column {name!r}, only {', '.join(self._form.names)}")
        self._whole = self.start
        values = self._columns.get(name)
        if values is None:
            values = self._columns[name] = python_values(self._batch.column(name))
        return values[self.start : self.end]

    @property
    def unread(self) -> int:
        """Number of rows that have not been read. A column that was read is in all rows."""
        if self._whole == self.start:
            return 0
        return len(self) if self.left is None else length_hint(self.left)


def in_type(column: pa.Array | pa.ChunkedArray, field: pa.Field) -> pa.Array:
    """Convert a column from user code to the type of a field. Raises a TypeError if that is not possible."""
    array = one_chunk(column)
    try:
        return array if array.type == field.type else array.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise TypeError(
            f"the column {field.name!r} takes {field.type}, not {array.type}: {error}"
        ) from error


def python_values(array: pa.Array) -> list[Any]:
    """Convert an Arrow column to Python values for user code."""
    values: list[Any]
    if not array.null_count and (pa.types.is_integer(array.type) or array.type == pa.float64()):
        values = fixed_values(array).tolist()  # several times as fast as Arrow
        return values
    values = _datetimes(array) if pa.types.is_timestamp(array.type) else array.to_pylist()
    read = reader(array.type)
    return values if read is None else list(map(read, values))


def _datetimes(array: pa.Array) -> list[Any]:
    """Python datetimes of a column, like `to_pylist`, but several times as fast."""
    zone = zone_of(array.type)
    if array.type.unit != "us" or (array.type.tz is not None and zone is None):
        return list(array.to_pylist())
    values: list[Any] = array.cast(pa.timestamp("us")).to_numpy(zero_copy_only=False).tolist()
    if zone is None:
        return values
    if zone is UTC:
        return [v and v.replace(tzinfo=UTC) for v in values]
    return [v and v.replace(tzinfo=UTC).astimezone(zone) for v in values]


@lru_cache(maxsize=1024)
def reader(type: pa.DataType) -> Reader | None:
    """The function that copies a value of this type for user code; None if values are immutable."""
    if pa.types.is_struct(type):
        return partial(_read_row, RowForm(type).read)
    if pa.types.is_map(type):
        key, item = reader(type.key_type) or _same, reader(type.item_type) or _same
        return partial(_read_map, key, item)
    if pa.types.is_list(type) or pa.types.is_large_list(type):
        return partial(_read_list, reader(type.value_type) or _same)
    return None


def writer(type: pa.DataType) -> Writer:
    """The function that checks and copies a value from user code. It raises a TypeError or OverflowError if
    the value does not fit the type."""
    if pa.types.is_integer(type):
        return partial(write_whole, *limits(type))
    if pa.types.is_struct(type):
        return partial(_write_row, RowForm(type).write)
    if pa.types.is_map(type):
        return partial(_write_map, writer(type.key_type), writer(type.item_type))
    if pa.types.is_list(type) or pa.types.is_large_list(type):
        return partial(_write_list, writer(type.value_type))
    if pa.types.is_timestamp(type) and type.unit == "us" and (type.tz is None or zone_of(type)):
        return partial(write_time, zone_of(type))
    return WRITERS.get(type) or partial(write_any, type)


def _write_field(field: pa.Field, write: Writer, nullable: bool, value: Any) -> Any:
    """Write the value of a field. Errors name the field."""
    try:
        if value is not None or nullable:
            return write(value)
        problem = "must not be null"
    except OverflowError:
        problem = f"takes {field.type}: {value!r} is out of its range"
    except TypeError as cause:
        inner = str(cause)
        wants = f"takes {field.type}, not {value!r} ({type(value).__name__})"
        problem = f"{wants}: {inner}" if inner else wants
    raise TypeError(f"the column {field.name!r} {problem}") from None


def _same(value: Any) -> Any:
    return value


def _read_row(read: Callable[[Iterable[Any]], Row], value: Any) -> Any:
    return None if value is None else read(value.values() if type(value) is dict else value)


def _read_list(read: Reader, value: Any) -> Any:
    return None if value is None else [read(v) for v in value]


def _read_map(key: Reader, item: Reader, value: Any) -> Any:
    if value is None:
        return None
    pairs = value.items() if type(value) is dict else value
    return {key(k): item(v) for k, v in pairs}


def _write_row(write: Writer, value: Any) -> Any:
    return None if value is None else write(value)


def _write_list(write: Writer, value: Any) -> Any:
    if value is None:
        return None
    if not isinstance(value, (list, tuple, np.ndarray)):
        raise TypeError
    return [write(v) for v in value]


def _write_map(key: Writer, item: Writer, value: Any) -> Any:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise TypeError
    return {key(k): item(v) for k, v in value.items()}
