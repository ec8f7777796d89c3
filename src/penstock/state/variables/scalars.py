"""Writers of single values: they check a value from user code and convert it to what Arrow accepts.

None is accepted. A value that does not fit raises a TypeError, or an OverflowError if only its size is
wrong. The caller adds the name of the column.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, tzinfo
from functools import lru_cache, partial
from operator import index
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa

Writer = Callable[[Any], Any]


def write_whole(low: int, high: int, value: Any) -> Any:
    if type(value) is not int:
        if value is None:
            return None
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        try:
            value = index(value)
        except TypeError:
            raise TypeError from None
    if not low <= value <= high:
        raise OverflowError
    return value


def _write_as(kind: type, accepted: tuple[type, ...], value: Any) -> Any:
    """Return a value of class `kind` as it is, and convert one of an accepted class to `kind`."""
    if type(value) is kind or value is None:
        return value
    if isinstance(value, bool) or not isinstance(value, accepted):
        raise TypeError
    return kind(value)


_write_double = partial(_write_as, float, (int, float, np.integer, np.floating))
_SINGLE = struct.Struct("<f")


def _write_float(value: Any) -> Any:
    value = _write_double(value)
    return None if value is None else _SINGLE.unpack(_SINGLE.pack(value))[0]


def _write_text(value: Any) -> Any:
    if value is None:
        return None
    if not isinstance(value, str):
        raise TypeError
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise TypeError("it cannot be written as UTF-8") from None
    return value if type(value) is str else str(value)


def write_time(zone: tzinfo | None, value: Any) -> Any:
    if value is None:
        return None
    if not isinstance(value, datetime):
        raise TypeError
    if hasattr(value, "to_pydatetime"):
        value = value.to_pydatetime()
    if zone is None:
        if value.tzinfo is not None:
            raise TypeError("a timestamp without time zone cannot take a value with one")
        return value
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(zone)


def write_any(type: pa.DataType, value: Any) -> Any:
    try:
        return pa.scalar(value, type).as_py()
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, ValueError) as error:
        raise TypeError(str(error)) from error


WRITERS: dict[pa.DataType, Writer] = {
    pa.float64(): _write_double,
    pa.float32(): _write_float,
    pa.bool_(): partial(_write_as, bool, (np.bool_,)),
    pa.string(): _write_text,
    pa.large_string(): _write_text,
    **dict.fromkeys(
        (pa.binary(), pa.large_binary()), partial(_write_as, bytes, (bytes, bytearray, memoryview))
    ),
    pa.date32(): partial(_write_as, date, ()),
}


PLAIN: dict[pa.DataType, type] = {
    **dict.fromkeys((pa.int8(), pa.int16(), pa.int32(), pa.int64()), int),
    **dict.fromkeys((pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()), int),
    **dict.fromkeys((pa.string(), pa.large_string()), str),
    **dict.fromkeys((pa.binary(), pa.large_binary()), bytes),
    pa.float64(): float,
    pa.bool_(): bool,
}
"""Arrow type -> Python class whose values need no check but that of the range (int) or of the encoding
(str)."""


def limits(type: pa.DataType) -> tuple[int, int]:
    """The lowest and the highest value of an integer type."""
    info = np.iinfo(type.to_pandas_dtype())
    return int(info.min), int(info.max)


@lru_cache(maxsize=64)
def zone_of(type: pa.DataType) -> tzinfo | None:
    """The time zone of a timestamp type; None if it has none or Python does not know it."""
    if type.tz is None:
        return None
    if type.tz in ("UTC", "Etc/UTC", "+00:00"):
        return UTC
    try:
        return ZoneInfo(type.tz)
    except (KeyError, ValueError):
        return None
