"""Rows as user code sees them."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar


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
    """The class of the rows with these columns."""
    # A namedtuple's own descriptors are by far the fastest way to an item of a tuple.
    items = namedtuple("items", [f"at{at}" for at in range(len(names))])  # type: ignore[misc]
    space: dict[str, Any] = {"__slots__": (), "_fields": names}
    space["_places"] = {name: at for at, name in enumerate(names)}
    named = {n: vars(items)[f"at{at}"] for at, n in enumerate(names) if not n.startswith("__")}
    return type("Row", (Row,), named | space)


def _row(names: tuple[str, ...], values: tuple[Any, ...]) -> Row:
    return tuple.__new__(row_type(names), values)
