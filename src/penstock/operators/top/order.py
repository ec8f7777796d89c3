"""The order of a top-n: parsing it, codes that decide most comparisons, and merging kept and new rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from penstock.errors import FlowError
from penstock.operators.operator import one_field
from penstock.operators.ordering import number_keys, run_starts, sort_order, tied
from penstock.operators.top import kernels
from penstock.state.arrays import Array, fixed_array, look, one_chunk, valid_mask
from penstock.state.keys.encoding import is_text, text_blob
from penstock.state.table.bags import Bags

MOST = 256
"""Largest n for which couriers, and hosts before they sort, select the first rows of each key by code."""
_LEAST = np.iinfo(np.int64).min


class By(NamedTuple):
    """One column of an order."""

    column: str
    descending: bool = False


def parse_order(by: str | Sequence[str], schema: pa.Schema) -> tuple[By, ...]:
    """Parse an order as users write it.

    >>> parse_order("price desc, at", pa.schema([("price", pa.int64()), ("at", pa.int64())]))
    (By(column='price', descending=True), By(column='at', descending=False))
    """
    columns: dict[str, By] = {}
    for item in [by] if isinstance(by, str) else by:
        parts = [item] if item in schema.names else item.split(",")
        for part in parts:
            column = _parse_column(part.strip(), schema)
            columns.setdefault(column.column, column)
    if not columns:
        raise FlowError("the order has no column", hint='name one: by="price desc, at"')
    return tuple(columns.values())


def coarse_codes(column: pa.Array | pa.ChunkedArray, descending: bool) -> Array:
    """Integers (int64) that never contradict the order: a value with a smaller code comes first.

    Different values may have the same code: only the first eight bytes of text are used.

    >>> coarse_codes(pa.array([5, None, 7]), descending=True).argsort()
    array([2, 0, 1])
    """
    array = one_chunk(column)
    codes = _codes(array)
    valid = valid_mask(array)
    if valid is not None:
        codes = np.where(valid, codes, _LEAST)
    return ~codes if descending else codes


def _parse_column(text: str, schema: pa.Schema) -> By:
    name, _, direction = text.rpartition(" ")
    by = By(text)
    if text not in schema.names and direction.lower() in ("asc", "desc"):
        by = By(name.strip(), direction.lower() == "desc")
    hint = f'use for example "price desc, at"; the columns are {", ".join(schema.names)}'
    one_field(schema, by.column, "the order", hint=hint)
    return by


def _codes(array: pa.Array) -> Array:
    type, keys = array.type, number_keys(array)
    if keys is not None:
        return keys
    codes = np.zeros(len(array), np.int64)
    if pa.types.is_decimal128(type):
        words = look(array.buffers()[1], np.int64, 2 * array.offset, 2 * len(array))
        kernels.clip(words, codes)
    elif is_text(type):
        blob = text_blob(array)
        kernels.prefix(blob.offsets, blob.data, codes)
    return codes


class MixedRows:
    """Stored rows of a bag, followed by new rows of a batch.

    Columns are concatenated only on demand, and only for the rows that need them: the first column of an
    order decides most comparisons.
    """

    def __init__(self, bags: Bags, ids: Array, batch: pa.RecordBatch, rows: Array) -> None:
        self._bags, self._ids, self._batch, self._rows = bags, ids, batch, rows

    def first(
        self, n: int, order: Sequence[By], rest: Sequence[By], groups: Array, with_ties: bool
    ) -> Array:
        """The numbers of the first n rows of each group, sorted by group and order.

        Rows that are equal in the order are sorted by `rest`, and then by row number. With ties, rows
        that are equal in the order to the n-th row are included.
        """
        columns = list(self._columns(order, np.arange(len(groups))))
        places: Array = sort_order(columns, groups)
        starts = run_starts(columns, groups, places)
        # keep all rows of a run of equal rows, or none
        near = kernels.places(groups[places], starts, True) < n
        places, starts = places[near], starts[near]
        same = tied(starts)
        if len(same):
            rows = places[same]
            remaining = list(self._columns(rest, rows))
            places[same] = rows[sort_order(remaining, np.cumsum(starts[same]))]
        if not with_ties:
            places = places[kernels.places(groups[places], starts, False) < n]
        return places

    def _columns(self, order: Sequence[By], places: Array) -> Iterator[tuple[pa.Array, bool]]:
        return ((self._column(by.column, places), by.descending) for by in order)

    def _column(self, name: str, places: Array) -> pa.Array:
        old = places < len(self._ids)
        kept = self._bags.values(name, self._ids[places[old]])
        rows = fixed_array(self._rows[places[~old] - len(self._ids)], pa.int64())
        new = one_chunk(self._batch.column(name)).take(rows)
        if not len(kept) or not len(new):
            return new if not len(kept) else kept
        both = pa.concat_arrays([kept, new])
        back = np.empty(len(places), np.int64)
        back[np.concatenate([np.flatnonzero(old), np.flatnonzero(~old)])] = np.arange(len(places))
        if (back[1:] > back[:-1]).all():
            return both
        return both.take(fixed_array(back, pa.int64()))
