"""Sorting of rows by several columns within groups, in Spark's order.

Nulls come first, NaN is the greatest number, text compares by its bytes. A column is only read for
rows that are equal in all columns before it, so that most tie-breaking columns are never read.

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

from penstock.operators.entry_groups import changes, stable_order
from penstock.state.arrays import Array, fixed_array, fixed_values, one_chunk, physical, valid_mask

_SIGN = np.int64(np.iinfo(np.int64).min)


def sort_order(columns: Sequence[tuple[pa.Array, bool]], groups: Array) -> Array:
    """The stable order of rows by group, then by these (column, descending) pairs."""
    order = np.arange(len(groups))
    if len(groups) < 2:
        return order
    if not (groups[1:] >= groups[:-1]).all():
        order = np.argsort(groups, kind="stable")
    starts = changes(groups[order])
    for key in _keys(columns):
        same = tied(starts)
        if not len(same):
            break
        rows = order[same]
        keys = key(rows)
        by_key, runs = np.argsort(keys), np.cumsum(starts[same])
        better = by_key[stable_order(runs[by_key], runs[-1] + 1)[0]]
        order[same] = rows[better]
        # a run is sorted in place: a new run begins only where the key changes
        starts[same] |= changes(keys[better])
    return order


def run_starts(columns: Sequence[tuple[pa.Array, bool]], groups: Array, order: Array) -> Array:
    """Mask (bool) of the rows, in `sort_order`, that differ in group or columns from the row before."""
    starts = changes(groups[order])
    for column, _ in columns:
        array = one_chunk(column).take(fixed_array(order, pa.int64()))
        for at in range(_parts(array)):
            starts |= changes(_key(array, at))
    return starts


def _keys(columns: Sequence[tuple[pa.Array, bool]]) -> Iterator[Callable[[Array], Array]]:
    """Functions that map row numbers to integer sort keys, one for each column or part of it. The last one
    returns the row numbers themselves, which keeps the sort stable."""

    def key(array: pa.Array, part: int, descending: bool, rows: Array) -> Array:
        keys = _key(array.take(fixed_array(rows, pa.int64())), part)
        return ~keys if descending else keys

    for column, descending in columns:
        array = one_chunk(column)
        for part in range(_parts(array)):
            yield partial(key, array, part, descending)
    yield lambda rows: rows


def tied(starts: Array) -> Array:
    """Positions of rows whose run of equal rows has more than one row."""
    alone = starts & np.append(starts[1:], True)
    return np.flatnonzero(~alone)


def _parts(array: pa.Array) -> int:
    """How many sort keys a column needs: one, or two if it has nulls."""
    return 1 if array.null_count == 0 else 2


def _key(array: pa.Array, part: int) -> Array:
    """Integers (int64) that sort like the values. With nulls, part 0 separates them from values."""
    valid = valid_mask(array)
    if valid is None:
        return _values(array)
    if part == 0:
        return valid.astype(np.int64)
    return np.where(valid, _values(array), 0)


def _values(array: pa.Array) -> Array:
    """Integers (int64) that sort like the values that are not null; undefined for nulls."""
    type = array.type
    if pa.types.is_dictionary(type):
        return _values(array.cast(type.value_type))
    keys = number_keys(array)
    if keys is not None:
        return keys
    if pa.types.is_null(type):
        return np.zeros(len(array), np.int64)
    if pa.types.is_fixed_size_binary(type) and not pa.types.is_decimal(type):
        array = array.cast(pa.binary())
    if pa.types.is_decimal(type) or not pa.types.is_nested(type):
        ranks = pc.rank(array, "ascending", tiebreaker="dense")
        return fixed_values(ranks).astype(np.int64)
    return _object_ranks(array)


def number_keys(array: pa.Array) -> Array | None:
    """Integers (int64) that sort like numbers, bools, dates and times; None for other types."""
    if pa.types.is_floating(array.type):
        return float_keys(fixed_values(array).astype(np.float64))
    if pa.types.is_uint64(array.type):
        return fixed_values(array).view(np.int64) ^ _SIGN
    return None if physical(array.type) is None else fixed_values(array).astype(np.int64)


def float_keys(values: Array) -> Array:
    """Integers (int64) that sort like floats: NaN last, both zeros equal.

    >>> float_keys(np.array([np.nan, np.inf, 1.0, 0.0, -0.0, -2.0])).argsort(kind="stable")
    array([5, 3, 4, 2, 1, 0])
    """
    values = np.where(np.isnan(values), np.nan, values + 0.0)
    bits: Array = values.view(np.int64)
    return np.where(bits < 0, ~bits ^ _SIGN, bits)


def _object_ranks(array: pa.Array) -> Array:
    """Ranks of lists, structs and maps, compared as Python objects. That is slow, but only used for rows
    that are equal in all plain columns before them."""
    keys = [_object_key(value) for value in array.to_pylist()]
    ranks = {key: rank for rank, key in enumerate(sorted(set(keys)))}
    return np.fromiter((ranks[key] for key in keys), np.int64, len(keys))


def _object_key(value: Any) -> tuple[Any, ...]:
    """A tuple that compares like the nested value: nulls first, then element by element."""
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
