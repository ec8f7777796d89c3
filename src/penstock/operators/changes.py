"""Change streams: rows that are put in, and rows that are taken back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from penstock.errors import FlowError
from penstock.operators.operator import CHANGE
from penstock.state.arrays import Array, fixed_array, fixed_values, physical, valid_mask


def differing(old: Sequence[pa.Array], new: Sequence[pa.Array]) -> Array:
    """Mask (bool) of the rows in which some column differs; nulls equal nulls, NaNs equal NaNs.

    >>> differing([pa.array([1.0, None, 2.0])], [pa.array([1.0, None, None])])
    array([False, False,  True])
    """
    rows = len(old[0]) if old else 0
    differ = np.zeros(rows, np.bool_)
    for before, after in zip(old, new, strict=True):
        was_valid, is_valid = _valid(before), _valid(after)
        differ |= was_valid != is_valid
        differ |= _unequal(before, after) & was_valid & is_valid
    return differ


def without_changes(schema: pa.Schema, step: str) -> None:
    """Raise FlowError if the input is a change stream: a step that drops rows cannot take them back."""
    if CHANGE in schema.names:
        raise FlowError(
            f"{step} cannot read a change stream (column {CHANGE})",
            hint='let the step before it emit on "close", or keep the newest row of each key there',
        )


def signs(sign: int, rows: int) -> pa.Array:
    """The column `_change` of rows that are all put in (1) or all taken back (-1)."""
    return fixed_array(np.full(rows, sign, np.int8), pa.int8())


def _valid(array: pa.Array) -> Array:
    mask = valid_mask(array)
    return np.ones(len(array), np.bool_) if mask is None else mask


def _unequal(one: pa.Array, other: pa.Array) -> Array:
    """Mask (bool) of the rows whose values differ; undefined where either value is null."""
    if physical(one.type) is not None:
        a, b = fixed_values(one), fixed_values(other)
        unequal: Array = (a != b) & ((a == a) | (b == b))
        return unequal
    if pa.types.is_nested(one.type):
        pairs = zip(one.to_pylist(), other.to_pylist(), strict=True)
        return np.fromiter((a != b for a, b in pairs), np.bool_, len(one))
    # Imported here: it takes 10 MB of memory, and most hosts do not need it.
    import pyarrow.compute as pc

    return fixed_values(pc.not_equal(one, other))
