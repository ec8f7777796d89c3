"""The order of rows by several columns within groups, as Spark orders them.

Nulls are smallest, NaN is the greatest number, text compares by its bytes. A column is only looked
at for rows that are equal in all before it: with ties decided by every remaining column, most of
them are not looked at at all.

>>> price = pa.array([5, 7, None, 7])
>>> sort_order([(price, True), (pa.array(["d", "z", "b", "a"]), False)], np.array([0, 1, 0, 1]))
array([0, 2, 3, 1])
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit

from penstock.state.arrays import (
    Array,
    fixed_array,
    fixed_values,
    one_chunk,
    physical,
    valid_mask,
)

_SIGN = np.int64(np.iinfo(np.int64).min)


def sort_order(columns: Sequence[tuple[pa.Array, bool]], groups: Array) -> Array:
    """The stable order of rows by group, then by these columns, each with whether it descends."""
    order = np.arange(len(groups))
    if len(groups) < 2:
        return order
    if not (groups[1:] >= groups[:-1]).all():
        order = np.argsort(groups, kind="stable")
    starts = _changes(groups[order])
    for key in _keys(columns):
        tied = _tied(starts)
        if not len(tied):
            break
        rows = order[tied]
        keys = key(rows)
        better = _within_runs(np.argsort(keys), np.cumsum(starts[tied]))
        order[tied] = rows[better]
        # a run is sorted in its own places: only where a key changes does a run begin anew
        starts[tied] |= _changes(keys[better])
    return order


def run_starts(columns: Sequence[tuple[pa.Array, bool]], groups: Array, order: Array) -> Array:
    """Where rows in a `sort_order` differ, in group or columns, from the one before (bool)."""
    starts = _changes(groups[order])
    for column, _ in columns:
        array = one_chunk(column).take(fixed_array(order, pa.int64()))
        for at in range(_parts(array)):
            starts |= _changes(_key(array, at))
    return starts


def _keys(columns: Sequence[tuple[pa.Array, bool]]) -> Iterator[Callable[[Array], Array]]:
    """What gives, for some rows, integers in the order of a column, or of a part of it; and last
    the rows themselves, for equal ones stay in order."""

    def key(array: pa.Array, part: int, descending: bool, rows: Array) -> Array:
        keys = _key(array.take(fixed_array(rows, pa.int64())), part)
        return ~keys if descending else keys

    for column, descending in columns:
        array = one_chunk(column)
        for part in range(_parts(array)):
            yield partial(key, array, part, descending)
    yield lambda rows: rows


@njit(cache=True, nogil=True)
def _within_runs(order, runs):  # type: ignore[no-untyped-def]
    """An order of rows with those of each run put together; runs are numbered from 1 on, in order,
    and the rows of each stand together."""
    ends = np.zeros(runs[-1] + 1, np.int64)
    for i in range(len(runs)):
        ends[runs[i]] = i
    starts = np.zeros(len(ends), np.int64)
    starts[2:] = ends[1:-1] + 1
    out = np.empty(len(order), np.int64)
    for i in range(len(order)):
        run = runs[order[i]]
        out[starts[run]] = order[i]
        starts[run] += 1
    return out


def _tied(starts: Array) -> Array:
    """The places of rows that share their run with others."""
    alone = starts & np.append(starts[1:], True)
    return np.flatnonzero(~alone)


def _changes(values: Array) -> Array:
    """Where a value is not that before it; the first always."""
    changes = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=changes[1:])
    return changes


def _parts(array: pa.Array) -> int:
    """How many keys order such values: one, and one for nulls where there are any."""
    return 1 if array.null_count == 0 else 2


def _key(array: pa.Array, part: int) -> Array:
    """Integers (int64) in the order of the values; the last part is the values themselves."""
    valid = valid_mask(array)
    if valid is None:
        return _values(array)
    if part == 0:
        return valid.astype(np.int64)
    return np.where(valid, _values(array), 0)


def _values(array: pa.Array) -> Array:
    """As `_key` for values that are not null; under nulls lies anything."""
    type = array.type
    if pa.types.is_dictionary(type):
        return _values(array.cast(type.value_type))
    if pa.types.is_floating(type):
        return float_keys(fixed_values(array).astype(np.float64))
    if pa.types.is_uint64(type):
        return fixed_values(array).view(np.int64) ^ _SIGN
    if physical(type) is not None:
        return fixed_values(array).astype(np.int64)
    if pa.types.is_null(type):
        return np.zeros(len(array), np.int64)
    if pa.types.is_fixed_size_binary(type) and not pa.types.is_decimal(type):
        array = array.cast(pa.binary())
    if pa.types.is_decimal(type) or not pa.types.is_nested(type):
        ranks = pc.rank(array, "ascending", tiebreaker="dense")
        return fixed_values(ranks).astype(np.int64)
    return _object_ranks(array)


def float_keys(values: Array) -> Array:
    """The bits of floats as integers of the same order; NaN last, both zeros equal.

    >>> float_keys(np.array([np.nan, np.inf, 1.0, 0.0, -0.0, -2.0])).argsort(kind="stable")
    array([5, 3, 4, 2, 1, 0])
    """
    values = np.where(np.isnan(values), np.nan, values + 0.0)
    bits: Array = values.view(np.int64)
    return np.where(bits < 0, ~bits ^ _SIGN, bits)


def _object_ranks(array: pa.Array) -> Array:
    """Lists, structs and maps, one by one: they only decide between rows that are equal in all
    plain columns before them."""
    keys = [_object_key(value) for value in array.to_pylist()]
    ranks = {key: rank for rank, key in enumerate(sorted(set(keys)))}
    return np.fromiter((ranks[key] for key in keys), np.int64, len(keys))


def _object_key(value: Any) -> tuple[Any, ...]:
    """A value that compares as the nested one does: nulls first, then element by element."""
    if value is None:
        return ()
    if isinstance(value, dict):
        return (0, tuple(_object_key(part) for part in value.values()))
    if isinstance(value, (list, tuple)):
        return (0, tuple(_object_key(part) for part in value))
    if isinstance(value, float):
        return (1, 0.0) if value != value else (0, value)
    if isinstance(value, str):
        return (0, value.encode())
    return (0, value)
