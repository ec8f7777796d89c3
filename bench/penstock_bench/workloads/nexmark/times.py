"""Event times in any form that files use, converted to microseconds in UTC.

A time is ISO 8601 text (with a T or a space between date and time, an optional zone, UTC by default, and
an optional fraction), an integer of milliseconds since 1970, or a timestamp of any unit and zone.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock_bench.workloads.draws import Numbers
from penstock_bench.workloads.nexmark.columns import TIME

FORMS = "write times as 2015-07-15T00:00:00.000Z, or as whole milliseconds since 1970"
EARLIEST_US, LATEST_US = -62_135_596_800_000_000, 253_402_300_799_999_999
"""Limits of event times, in microseconds of Unix time: the years 1 to 9999, as in Python and Spark."""

_ZONE = r"[T ]\d.*(Z|[+-]\d\d(:?\d\d)?)$"
_MANY_DIGITS = r"(\.\d{6})\d+"
_PER_US = {"s": 1_000_000, "ms": 1000, "us": 1}


class BadTime(Exception):
    """The value at `place` is not an event time; `reason` ends a sentence about it."""

    def __init__(self, place: int, reason: str) -> None:
        self.place, self.reason = place, reason
        super().__init__(reason)


def as_times(column: pa.Array) -> pa.Array:
    """A column of times in any form as timestamps in UTC. Raises TypeError for other types.

    >>> as_times(pa.array(["2015-07-15 02:00:00.5+02:00", None, "2015-07-15T00:00:00"]))[0]
    <pyarrow.TimestampScalar: '2015-07-15T00:00:00.500000+0000'>
    >>> as_times(pa.array([1_436_918_400_000]))[0]
    <pyarrow.TimestampScalar: '2015-07-15T00:00:00.000000+0000'>
    """
    type = column.type
    if pa.types.is_null(type):
        return pa.nulls(len(column), TIME)
    if pa.types.is_timestamp(type):
        if type.unit != "ns":
            return _micros(column.cast(pa.int64()), _PER_US[type.unit])
        nanos, valid = _numbers(column.cast(pa.int64()))
        return pa.array(nanos // 1000, mask=~valid).cast(TIME)
    if pa.types.is_integer(type):
        return _micros(column.cast(pa.int64()), 1000)
    if pa.types.is_string(type) or pa.types.is_large_string(type):
        return _from_text(column.cast(pa.string()))
    raise TypeError(f"{type} is not a type of times")


def _micros(counts: pa.Array, factor: int) -> pa.Array:
    values, valid = _numbers(counts)
    outside = valid & ((values < -(-EARLIEST_US // factor)) | (values > LATEST_US // factor))
    if outside.any():
        raise BadTime(int(np.argmax(outside)), "which is not within the years 1 to 9999")
    return pa.array(np.where(valid, values, 0) * factor, mask=~valid).cast(TIME)


def _numbers(counts: pa.Array) -> tuple[Numbers, npt.NDArray[np.bool_]]:
    values: Numbers = pc.fill_null(counts, 0).to_numpy(zero_copy_only=False)
    return values, counts.is_valid().to_numpy(zero_copy_only=False)


def _from_text(column: pa.Array) -> pa.Array:
    try:
        times = _parsed(column)
    except pa.ArrowInvalid:
        try:
            times = _parsed(pc.replace_substring_regex(column, _MANY_DIGITS, r"\1"))
        except pa.ArrowInvalid:
            raise BadTime(_first_bad(column), "which is not a time") from None
    return _micros(times.cast(pa.int64()), 1)


def _parsed(column: pa.Array) -> pa.Array:
    ends = pc.ends_with(column, "Z")
    if pc.all(ends, min_count=0).as_py():
        return column.cast(TIME)
    zoned = pc.match_substring_regex(column, _ZONE)
    nothing = pa.scalar(None, pa.string())
    with_zone = pc.if_else(zoned, column, nothing).cast(TIME)
    without = pc.if_else(zoned, nothing, column).cast(pa.timestamp("us"))
    return pc.coalesce(with_zone, without.cast(pa.int64()).cast(TIME))


def _first_bad(column: pa.Array) -> int:
    shortened = pc.replace_substring_regex(column, _MANY_DIGITS, r"\1")
    for place in range(len(column)):
        try:
            _parsed(shortened[place : place + 1])
        except pa.ArrowInvalid:
            return place
    return 0
